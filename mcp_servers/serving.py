"""What the companion servers share: a bearer token, checks of host and origin, and the way they are served."""

from __future__ import annotations

import asyncio
import ipaddress
import signal
import sys
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from types import FrameType
from typing import TYPE_CHECKING, Any

from mcp_servers.callers import SCOPE, Callers

if TYPE_CHECKING:
    from mcp.server.transport_security import TransportSecuritySettings
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

STARTUP_FAILURE = 3  # uvicorn's exit code
KEEP_ALIVE_SECONDS = 330  # longer than any caller keeps an idle connection: a request on one being closed is lost
TOKEN_VARIABLE = "AGENT_MCP_TOKEN"  # noqa: S105 - a variable's name
_LOCAL = ("localhost", "127.0.0.1", "[::1]")


def authentication(token: str | None, url: str, core: str | None = None) -> dict[str, Any]:
    """The arguments with which an `MCPServer` requires the token, or a key of DIAL Core; none without a token."""
    if not token:
        return {}
    from mcp.server.auth.settings import AuthSettings
    from pydantic import AnyHttpUrl

    address = AnyHttpUrl(url)
    settings = AuthSettings(
        issuer_url=address, resource_server_url=address, required_scopes=[SCOPE], validate_token_resource=False
    )
    return {"token_verifier": Callers(token, core), "auth": settings}


def security(names: Sequence[str] = ()) -> TransportSecuritySettings:
    """Accepts requests to this machine's or these host names, and from web pages of this machine only."""
    from mcp.server.transport_security import TransportSecuritySettings

    # An empty list, or the name of all addresses, would switch the SDK's check off.
    hosts = dict.fromkeys((*_LOCAL, *(name for name in names if name not in ("0.0.0.0", "::"))))  # noqa: S104
    return TransportSecuritySettings(
        enable_dns_rebinding_protection=True,
        allowed_hosts=[form for name in hosts for form in (name, f"{name}:*")],
        allowed_origins=[f"http://{name}:*" for name in _LOCAL],
    )


class RouteGuard:
    """The checks of MCP requests, for additional routes that the SDK leaves unguarded."""

    def __init__(self, token: str, security: TransportSecuritySettings) -> None:
        from mcp.server.transport_security import TransportSecurityMiddleware

        self._token = Callers(token)
        self._security = TransportSecurityMiddleware(security)

    async def refusal(self, request: Request) -> Response | None:
        """The answer to a request that is not allowed, otherwise None."""
        from starlette.responses import Response

        if refused := await self._security.validate_request(request):
            return refused
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and await self._token.verify_token(token.strip()):
            return None
        return Response("Unauthorized", 401, {"WWW-Authenticate": "Bearer"})


def refusal(host: str, token: str | None) -> str | None:
    """Why a server must not listen there: other machines can reach it and it has no token. Otherwise None."""
    if token or host == "localhost" or is_loopback(host):
        return None
    return f"{host} can be reached by others: set {TOKEN_VARIABLE}, or listen on 127.0.0.1."


def is_loopback(address: str) -> bool:
    """Whether it is a numeric address that only this machine can reach."""
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


def run(
    app: Starlette,
    host: str,
    port: int,
    *,
    keep_alive_seconds: int,
    log_level: str = "warning",
    shutdown_seconds: int = 5,
    drain: Callable[[], Coroutine[Any, Any, None]] | None = None,
) -> None:
    """Serve until a signal arrives; running calls have `shutdown_seconds` to finish.

    After SIGTERM `drain` comes first, while requests are still taken; a second signal ends it.
    """
    import uvicorn

    from mcp_servers.connections import HEAD_BYTES, BoundedConnection

    class Server(uvicorn.Server):
        _asked = False
        _draining: asyncio.Task[None] | None = None

        def handle_exit(self, sig: int, frame: FrameType | None) -> None:
            if drain is None or sig != signal.SIGTERM or self._asked:
                super().handle_exit(sig, frame)
            else:
                self._asked = True

        async def on_tick(self, counter: int) -> bool:
            if drain is not None and self._asked and self._draining is None:
                self._draining = asyncio.create_task(drain())
                self._draining.add_done_callback(lambda _: self.handle_exit(signal.SIGTERM, None))
            return await super().on_tick(counter)

    server = Server(uvicorn.Config(
        app, host=host, port=port, log_level=log_level.lower(), access_log=False,
        timeout_keep_alive=keep_alive_seconds, timeout_graceful_shutdown=shutdown_seconds,
        # Of h11: httptools keeps white space around header values, which the protocol says to ignore.
        http=BoundedConnection, h11_max_incomplete_event_size=2 * HEAD_BYTES,
    ))  # fmt: skip
    with suppress(KeyboardInterrupt):
        server.run()
    if not server.started:
        sys.exit(STARTUP_FAILURE)
