"""Who calls a companion: the agent with the token that both share, or a person through DIAL Core with Core's key."""

from __future__ import annotations

import hmac
import ssl
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mcp.server.auth.provider import AccessToken
    from starlette.types import ASGIApp, Receive, Scope, Send

AGENT = "agent"
META_DOMAIN = "dial-general-purpose-agent"
PRINCIPAL = f"{META_DOMAIN}/principal"
SCOPE = "tools"
CORE_VARIABLE = "DIAL_ENDPOINT"
_SECONDS = 5.0


def identity_of(request: Any) -> str:
    """Who sent the request: the agent, or a person through Core."""
    user = request.scope.get("user") if request is not None else None
    return user.access_token.client_id if user else AGENT


def principal_of(identity: str, meta: Mapping[str, Any]) -> str:
    """For whom a call is made; only the agent may name a principal, another caller is its own."""
    return str(meta.get(PRINCIPAL) or "") if identity == AGENT else identity


class Callers:
    """Accepts the token, and every key that Core at `core` knows. Source: the SDK's `TokenVerifier`.

    The client's id is `agent`, or `dial:` and the bucket of the person on whose behalf Core made the key.
    """

    def __init__(self, token: str, core: str | None = None) -> None:
        self._token = token.encode()
        self._core = core.rstrip("/") if core else None
        self._trusted = ssl.create_default_context() if core else None

    async def verify_token(self, token: str) -> AccessToken | None:
        from mcp.server.auth.provider import AccessToken

        client = AGENT if hmac.compare_digest(token.encode(), self._token) else await self._person(token)
        return AccessToken(token=token, client_id=client, scopes=[SCOPE], expires_at=None) if client else None

    async def _person(self, key: str) -> str | None:
        import httpx2

        if self._core is None or self._trusted is None:
            return None
        try:
            none = CookieJar(DefaultCookiePolicy(allowed_domains=()))
            async with httpx2.AsyncClient(
                verify=self._trusted, timeout=_SECONDS, trust_env=False, cookies=none
            ) as client:
                reply = await client.get(f"{self._core}/v1/bucket", headers={"Api-Key": key})
            found: Any = reply.json() if reply.status_code == 200 else {}
        except (httpx2.HTTPError, ValueError):
            return None
        # A key that Core made for a call belongs to the person whose files `appdata` leads to.
        bucket = str(found.get("appdata") or found.get("bucket") or "").partition("/")[0]
        return f"dial:{bucket}" if bucket else None


class ApiKeyAsBearer:
    """Lets Core's header `Api-Key` count where no `Authorization` is sent: the SDK reads that header only."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            headers: dict[bytes, bytes] = dict(scope["headers"])
            if (key := headers.get(b"api-key")) and b"authorization" not in headers:
                scope = {**scope, "headers": [*scope["headers"], (b"authorization", b"Bearer " + key)]}
        await self._app(scope, receive, send)
