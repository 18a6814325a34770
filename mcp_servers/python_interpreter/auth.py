"""Who may call: one bearer token, checked the same way for MCP and for files."""

from __future__ import annotations

import hmac

from mcp.server.auth.provider import AccessToken
from mcp.server.transport_security import TransportSecurityMiddleware, TransportSecuritySettings
from starlette.requests import Request
from starlette.responses import Response

CLIENT = "agent"
SCOPE = "tools"


class OneToken:
    """Knows the server's only token. Source: the SDK's `TokenVerifier`."""

    def __init__(self, token: str) -> None:
        self._token = token.encode()

    async def verify_token(self, token: str) -> AccessToken | None:
        if not hmac.compare_digest(token.encode(), self._token):
            return None
        return AccessToken(token=token, client_id=CLIENT, scopes=[SCOPE])


class Door:
    """The checks of MCP requests, for the routes that the SDK leaves unguarded."""

    def __init__(self, verifier: OneToken, security: TransportSecuritySettings) -> None:
        self._verifier = verifier
        self._security = TransportSecurityMiddleware(security)

    async def refusal(self, request: Request) -> Response | None:
        """The answer for who may not come in; None for who may."""
        if refused := await self._security.validate_request(request):
            return refused
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and await self._verifier.verify_token(token.strip()):
            return None
        return Response("Unauthorized", 401, {"WWW-Authenticate": "Bearer"})


def security(host: str, allowed_hosts: tuple[str, ...]) -> TransportSecuritySettings:
    """Only the names by which this server may be called; bound to all addresses the SDK would check nothing."""
    names = {"127.0.0.1", "localhost", "[::1]", host, *allowed_hosts} - {"0.0.0.0", "::"}  # noqa: S104
    return TransportSecuritySettings(
        enable_dns_rebinding_protection=True,
        allowed_hosts=sorted({form for name in names for form in (name, f"{name}:*")}),
        allowed_origins=["http://127.0.0.1:*", "http://[::1]:*", "http://localhost:*"],
    )
