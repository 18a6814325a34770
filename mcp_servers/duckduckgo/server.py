"""The search server: two tools, a health page, and the command that runs them."""

import argparse
import logging
import os
import sys
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from typing import Annotated, Any

from mcp.server.caching import CacheHint
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import CallToolResult, ToolAnnotations
from pydantic import Field
from starlette.requests import Request
from starlette.responses import JSONResponse

from mcp_servers import serving
from mcp_servers.callers import CORE_VARIABLE, ApiKeyAsBearer, identity_of, principal_of
from mcp_servers.duckduckgo import engine
from mcp_servers.duckduckgo.answers import page_content, page_data, results_content, results_data
from mcp_servers.duckduckgo.fetch import FetchFailed, PageFetcher
from mcp_servers.duckduckgo.search import SearchFailed, WebSearch

VERSION = version("dial-general-purpose-agent")
PORT = 8051
LIST_KEPT_MS = 300_000
LONGEST_PIECE = 30_000
_READS_THE_WEB = ToolAnnotations(read_only_hint=True, idempotent_hint=True, open_world_hint=True)


@dataclass(frozen=True, slots=True)
class Options:
    host: str
    port: int
    token: str | None
    allowed_hosts: tuple[str, ...]
    search_url: str
    region: str
    searches_per_minute: int
    fetches_per_minute: int
    pause_seconds: float
    log_level: str
    keep_alive_seconds: int
    core: str | None


def build(
    search: WebSearch, pages: PageFetcher, token: str | None = None, url: str = "", core: str | None = None
) -> MCPServer[Any]:
    """The server with its two tools; `/mcp` requires the `token` or a key of Core at `core`, `/health` is open."""

    @asynccontextmanager
    async def lifespan(_: MCPServer[Any]) -> AsyncGenerator[None]:
        yield
        await pages.close()

    server = MCPServer(
        "duckduckgo",
        version=VERSION,
        log_level="WARNING",
        lifespan=lifespan,
        cache_hints={"tools/list": CacheHint(ttl_ms=LIST_KEPT_MS, scope="public")},
        **serving.authentication(token, url, core),
    )
    _add_search(server, search)
    _add_fetch(server, pages)

    @server.custom_route("/health", methods=["GET"])
    async def health(_: Request) -> JSONResponse:
        return JSONResponse(
            {
                "status": "ok",
                "version": VERSION,
                "search": "paused" if search.breaker.left() else "ok",
                "paused_seconds": search.breaker.left(),
                "kept_searches": len(search.kept),
                "kept_pages": len(pages.kept),
            }
        )

    return server


def _add_search(server: MCPServer[Any], search: WebSearch) -> None:
    @server.tool(annotations=_READS_THE_WEB)
    async def duckduckgo_web_search(
        ctx: Context[Any, Any],
        query: Annotated[str, Field(description="What to search for: a few key words.")],
        max_results: Annotated[
            int, Field(description="How many results to give, 1 to 20; a larger number counts as 20.")
        ] = 5,
    ) -> CallToolResult:
        """Search the web using DuckDuckGo: titles, addresses and snippets of the best results.

        Use it for current events, weather, prices, people, places and whatever may have changed. To read more of a
        result, call fetch_page with its URL.
        """
        try:
            found = await search.search(query, max_results, _principal(ctx))
        except SearchFailed as error:
            raise ToolError(str(error)) from error
        return CallToolResult(content=[*results_content(found)], structured_content=results_data(found))


def _add_fetch(server: MCPServer[Any], pages: PageFetcher) -> None:
    @server.tool(annotations=_READS_THE_WEB)
    async def fetch_page(
        ctx: Context[Any, Any],
        url: Annotated[str, Field(description="Address of a public page, http:// or https://.")],
        start: Annotated[int, Field(ge=0, description="First character of the text to give.")] = 0,
        max_length: Annotated[int, Field(ge=1, description="How many characters to give, at most 30,000.")] = 8000,
    ) -> CallToolResult:
        """Read the text of a web page, PDF or JSON document on the public internet, piece by piece."""
        try:
            page = await pages.page(url, _principal(ctx))
        except FetchFailed as error:
            raise ToolError(str(error)) from error
        length = min(max_length, LONGEST_PIECE)
        content = page_content(page, start, length)
        return CallToolResult(content=[*content], structured_content=page_data(page, start, length))


def _principal(ctx: Context[Any, Any]) -> str:
    return principal_of(identity_of(ctx.request_context.request), dict(ctx.request_context.meta or {}))


def options(arguments: Sequence[str], environment: Mapping[str, str]) -> Options:
    """The command's options, with defaults from the environment."""
    parser = argparse.ArgumentParser(prog="dial-agent duckduckgo", description=__doc__)
    parser.add_argument("--host", default=environment.get("DDG_HOST", "127.0.0.1"), help="address to listen on")
    parser.add_argument("--port", type=int, default=int(environment.get("DDG_PORT", PORT)), help="port to listen on")
    parser.add_argument(
        "--allowed-hosts",
        default=environment.get("DDG_ALLOWED_HOSTS", ""),
        help="additional host names to accept, separated by commas",
    )
    parser.add_argument(
        "--search-url", default=environment.get("DDG_SEARCH_URL", engine.SEARCH_URL), help="address of the search page"
    )
    parser.add_argument("--region", default=environment.get("DDG_REGION", "us-en"), help="region of the results")
    parser.add_argument(
        "--keep-alive-seconds", type=int, default=serving.KEEP_ALIVE_SECONDS, help="life of idle connections"
    )
    parser.add_argument("--searches-per-minute", type=int, default=30)
    parser.add_argument("--fetches-per-minute", type=int, default=30)
    parser.add_argument("--pause-seconds", type=float, default=600, help="pause after DuckDuckGo has refused")
    parser.add_argument("--log-level", default=environment.get("LOG_LEVEL", "INFO"))
    given = parser.parse_args(arguments)
    hosts = tuple(host.strip() for host in given.allowed_hosts.split(",") if host.strip())
    return Options(
        given.host, given.port, environment.get(serving.TOKEN_VARIABLE) or None, hosts, given.search_url, given.region,
        given.searches_per_minute, given.fetches_per_minute, given.pause_seconds, given.log_level,
        given.keep_alive_seconds, environment.get(CORE_VARIABLE) or None,
    )  # fmt: skip


def main() -> None:
    """Serve until a signal arrives; exit code 2 with one line if that is not possible."""
    chosen = options(sys.argv[1:], os.environ)
    if reason := serving.refusal(chosen.host, chosen.token):
        print(reason, file=sys.stderr)
        sys.exit(2)
    logging.basicConfig(level=chosen.log_level.upper(), format="%(levelname)s %(name)s %(message)s")
    for noisy in ("httpx2", "httpcore2", "primp", "trafilatura", "ddgs", "mcp"):
        logging.getLogger(noisy).setLevel(logging.WARNING)  # they log addresses and queries
    ask = partial(engine.ask, url=chosen.search_url, region=chosen.region)
    search = WebSearch(ask, per_minute=chosen.searches_per_minute, pause_seconds=chosen.pause_seconds)
    pages = PageFetcher(per_minute=chosen.fetches_per_minute)
    server = build(search, pages, chosen.token, f"http://localhost:{chosen.port}", chosen.core)
    security = serving.security(chosen.allowed_hosts)
    app = server.streamable_http_app(transport_security=security, host=chosen.host)
    app.add_middleware(ApiKeyAsBearer)
    serving.run(app, chosen.host, chosen.port, keep_alive_seconds=chosen.keep_alive_seconds, log_level=chosen.log_level)
