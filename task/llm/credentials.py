"""What a caller shows DIAL Core: a key, or a user's token."""

from __future__ import annotations

from typing import TypedDict


class UserToken(str):
    """A token of an identity provider. It goes where a key goes, and is shown to DIAL Core as a bearer token."""

    __slots__ = ()


def core_headers(secret: str) -> dict[str, str]:
    """The header that shows DIAL Core a key or a token."""
    if isinstance(secret, UserToken):
        return {"Authorization": f"Bearer {secret}"}
    return {"Api-Key": str(secret)}


class ClientCredentials(TypedDict, total=False):
    """Arguments of aidial-client's constructors."""

    api_key: str
    bearer_token: str


def client_credentials(secret: str) -> ClientCredentials:
    """The arguments that have aidial-client show a key or a token."""
    return {"bearer_token": str(secret)} if isinstance(secret, UserToken) else {"api_key": str(secret)}
