"""What the companion servers share: a bearer token, a check of the host, and one way of being run."""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mcp.server.auth.provider import AccessToken
    from mcp.server.mcpserver import MCPServer
    from mcp.server.transport_security import TransportSecuritySettings

TOKEN_VARIABLE = "AGENT_MCP_TOKEN"  # noqa: S105 - a variable's name
SHUTDOWN_SECONDS = 5
_LOCAL = ("localhost", "127.0.0.1", "[::1]")


class OneToken:
    """Accepts exactly one bearer token."""

    def __init__(self, token: str) -> None:
        self._token = token.encode()

    async def verify_token(self, token: str) -> AccessToken | None:
        from mcp.server.auth.provider import AccessToken

        if not hmac.compare_digest(token.encode(), self._token):
            return None
        return AccessToken(token=token, client_id="agent", scopes=["tools"], expires_at=None)


def authentication(token: str | None, url: str) -> dict[str, Any]:
    """The arguments that make an `MCPServer` ask for that token; none without a token."""
    if not token:
        return {}
    from mcp.server.auth.settings import AuthSettings
    from pydantic import AnyHttpUrl

    address = AnyHttpUrl(url)
    settings = AuthSettings(
        issuer_url=address, resource_server_url=address, required_scopes=["tools"], validate_token_resource=False
    )
    return {"token_verifier": OneToken(token), "auth": settings}


def security(allowed_hosts: Sequence[str] = ()) -> TransportSecuritySettings:
    """Lets requests in that name this machine or one of the hosts; without a list the library checks nothing.

    A browser's request comes in from pages of this machine only.
    """
    from mcp.server.transport_security import TransportSecuritySettings

    names = [*_LOCAL, *allowed_hosts]
    return TransportSecuritySettings(
        allowed_hosts=[spelled for name in names for spelled in (name, f"{name}:*")],
        allowed_origins=[f"http://{name}:*" for name in _LOCAL],
    )


def refusal(host: str, token: str | None) -> str | None:
    """Why a server must not listen there, or None: what others can reach has to ask for a token."""
    if token or host == "localhost":
        return None
    try:
        loopback = ipaddress.ip_address(host).is_loopback
    except ValueError:
        loopback = False
    return None if loopback else f"{host} can be reached by others: set {TOKEN_VARIABLE}, or listen on 127.0.0.1."


def run(server: MCPServer[Any], host: str, port: int, allowed_hosts: Sequence[str], log_level: str) -> None:
    """Serve `/mcp` until a signal comes; calls under way get some seconds to end."""
    import uvicorn

    app = server.streamable_http_app(transport_security=security(allowed_hosts), host=host)
    uvicorn.run(
        app, host=host, port=port, log_level=log_level.lower(), access_log=False,
        timeout_graceful_shutdown=SHUTDOWN_SECONDS,
        http="h11",  # httptools hands on white space around header values, which the protocol says to ignore
    )  # fmt: skip
