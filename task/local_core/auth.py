"""Who is calling: a project's key, an application's per-request key, or a user's token."""

from __future__ import annotations

import base64
import binascii
import hmac
from collections.abc import Callable, Mapping
from typing import Any

import orjson

from task.local_core.config import CoreConfig
from task.local_core.identity import Identity
from task.local_core.keys import Keys, identity_of
from task.local_core.refusal import Refusal

NO_CREDENTIALS = "At least API-KEY or Authorization header must be provided"
BOTH_CREDENTIALS = "Either API-KEY or Authorization header must be provided but not both"
UNKNOWN_KEY = "Unknown api key"
BAD_AUTHORIZATION = "Bad Authorization header"


class Authenticator:
    """Reads a request's credentials.

    `unsigned_tokens` lets test tokens (`alg: none`) in; without it no token is accepted, since local Core has no
    identity provider. `bearer_keys` accepts a key as a bearer value, as today's Core does.
    """

    def __init__(
        self,
        config: Callable[[], CoreConfig],
        keys: Keys,
        *,
        unsigned_tokens: bool = False,
        bearer_keys: bool = True,
    ) -> None:
        self._config = config
        self._keys = keys
        self._unsigned_tokens = unsigned_tokens
        self._bearer_keys = bearer_keys

    def identify(self, headers: Mapping[str, str]) -> Identity:
        """The caller. Raises: Refusal with Core's 400 or 401."""
        key = headers.get("Api-Key", "")
        authorization = headers.get("Authorization")
        if not key and authorization is None:
            raise Refusal(401, NO_CREDENTIALS)
        bearer = _bearer(authorization)
        if not key:
            return self._by_bearer(bearer)
        if bearer and bearer != key:
            raise Refusal(400, BOTH_CREDENTIALS)
        identity = (self._by_token(bearer) if bearer else None) or self._by_key(key)
        if identity is None:
            raise Refusal(401, UNKNOWN_KEY)
        return identity

    def _by_bearer(self, bearer: str) -> Identity:
        identity = self._by_token(bearer)
        if identity is None and self._bearer_keys:
            identity = self._by_key(bearer)
        if identity is None:
            raise Refusal(401, BAD_AUTHORIZATION)
        return identity

    def _by_key(self, value: str) -> Identity | None:
        minted = self._keys.find(value)
        if minted is not None:
            return identity_of(minted)
        for known, entry in self._config().keys.items():
            if hmac.compare_digest(known.encode(), value.encode()):
                return Identity(owner=f"Keys/{entry.project}/", roles=entry.all_roles, project=entry.project)
        return None

    def _by_token(self, token: str) -> Identity | None:
        if not self._unsigned_tokens:
            return None
        claims = _unsigned_claims(token)
        if claims is None or not isinstance(subject := claims.get("sub"), str) or not subject:
            return None
        roles = claims.get("roles")
        named = tuple(str(role) for role in roles) if isinstance(roles, list) else ()
        return Identity(owner=f"Users/{subject}/", roles=named, claims=claims)


def _bearer(authorization: str | None) -> str:
    scheme, _, value = (authorization or "").strip().partition(" ")
    return value.strip() if scheme.lower() == "bearer" else scheme


def _unsigned_claims(token: str) -> dict[str, Any] | None:
    parts = token.split(".")
    if len(parts) != 3 or parts[2]:
        return None
    header, claims = _decoded(parts[0]), _decoded(parts[1])
    if header is None or str(header.get("alg", "")).lower() != "none":
        return None
    return claims


def _decoded(part: str) -> dict[str, Any] | None:
    try:
        document = orjson.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
    except (binascii.Error, ValueError):
        return None
    return document if isinstance(document, dict) else None
