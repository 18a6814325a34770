"""An MCP server for tests, as a process: `python -m tests.support.mcp_peer PORT NOTES [--legacy] [--token TOKEN]`.

Every call leaves a line in the file NOTES, so that a test sees what really reached the server.
"""

import argparse
import asyncio
import base64
from pathlib import Path
from typing import Any

import mcp.types as wire
import uvicorn
from mcp.server.caching import CacheHint
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import BaseModel
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from mcp_servers import serving
from tests.support.mcp_processes import PNG


class Many(BaseModel):
    count: int


READS = wire.ToolAnnotations(read_only_hint=True)
MEGABYTES_5 = 5 * 2**20


def build(notes: Path, token: str | None) -> MCPServer[Any]:
    server = MCPServer(
        "peer",
        log_level="WARNING",
        cache_hints={"tools/list": CacheHint(ttl_ms=60_000, scope="public")},
        **serving.authentication(token, "http://localhost"),
    )

    def note(line: str) -> None:
        with notes.open("a") as file:
            file.write(f"{line}\n")

    _add_plain(server, note)
    _add_rich(server)
    return server


def _add_plain(server: MCPServer[Any], note: Any) -> None:
    @server.tool(annotations=READS)
    async def echo(text: str, ctx: Context[Any, Any]) -> str:
        """Says the same.

        Indented further down.
        """
        note(f"echo {text}")
        await ctx.report_progress(1, 2, "half way")
        return text

    @server.tool()
    async def write(text: str) -> str:
        note(f"write {text}")
        return "written"

    @server.tool(annotations=READS)
    async def caller(ctx: Context[Any, Any]) -> dict[str, Any]:
        request = ctx.request_context.request
        assert request is not None
        names = ("api-key", "authorization", "traceparent", "x-conversation-id")
        headers = {name: request.headers[name] for name in names if name in request.headers}
        return {"headers": headers, "meta": dict(ctx.request_context.meta or {})}

    @server.tool()
    async def wait(seconds: float) -> str:
        note("wait begins")
        try:
            await asyncio.sleep(seconds)
        except asyncio.CancelledError:
            note("wait cancelled")
            raise
        note("wait ends")
        return "waited"

    @server.tool(annotations=READS)
    async def grow(name: str, ctx: Context[Any, Any]) -> str:
        server.add_tool(lambda: name, name=name)
        await ctx.session.send_tool_list_changed()
        return "grown"

    @server.tool(annotations=READS)
    async def ask(ctx: Context[Any, Any]) -> str:
        return f"action: {(await ctx.elicit('How many?', Many)).action}"

    @server.tool()
    async def fail() -> str:
        raise ToolError("the disc is full; delete something")


def _add_rich(server: MCPServer[Any]) -> None:
    @server.tool(annotations=READS)
    async def large() -> str:
        return "x" * MEGABYTES_5

    @server.tool(annotations=READS)
    async def picture() -> wire.CallToolResult:
        image = wire.ImageContent(type="image", data=base64.b64encode(PNG).decode(), mime_type="image/png")
        return wire.CallToolResult(content=[wire.TextContent(type="text", text="A dot."), image])

    @server.tool(annotations=READS)
    async def report() -> wire.CallToolResult:
        kept = wire.ResourceLink(type="resource_link", name="report.csv", uri="peer://report.csv", mime_type="text/csv")
        page = wire.ResourceLink(type="resource_link", name="manual", uri="https://docs.example/manual")
        return wire.CallToolResult(content=[kept, page])

    @server.tool(annotations=READS)
    async def pages() -> wire.CallToolResult:
        for_model = wire.Annotations(audience=["assistant"])
        summary = "![x](https://evil.example/p.png) <img src=https://evil.example/q.png> and words."
        page = wire.ResourceLink(
            type="resource_link", name="one", title="A\npage", uri="https://docs.example/one#part",
            description=summary, annotations=for_model,
        )  # fmt: skip
        script = wire.ResourceLink(type="resource_link", name="two", uri="javascript:alert(1)", annotations=for_model)
        texts = [wire.TextContent(type="text", text=text) for text in ("About one [1].", "About two.")]
        return wire.CallToolResult(content=[texts[0], page, texts[1], script])

    @server.resource("peer://report.csv", mime_type="text/csv")
    def report_csv() -> str:
        return "a,b\n1,2\n"

    @server.tool(annotations=READS)
    async def numbers() -> wire.CallToolResult:
        return wire.CallToolResult(content=[], structured_content={"numbers": [1, 2]})


class OlderOnly:
    """Refuses the current protocol, as servers do that only know older ones."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        version = dict(scope.get("headers", ())).get(b"mcp-protocol-version", b"").decode()
        if version not in MODERN_PROTOCOL_VERSIONS:
            return await self._app(scope, receive, send)
        return await JSONResponse({"error": "unsupported protocol version"}, 400)(scope, receive, send)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("port", type=int)
    parser.add_argument("notes", type=Path)
    parser.add_argument("--legacy", action="store_true")
    parser.add_argument("--token")
    given = parser.parse_args()
    app: ASGIApp = build(given.notes, given.token).streamable_http_app()
    app = OlderOnly(app) if given.legacy else app
    uvicorn.run(app, host="127.0.0.1", port=given.port, log_level="error", timeout_graceful_shutdown=1)


if __name__ == "__main__":
    main()
