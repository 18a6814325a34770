"""Foreign interpreter servers: `python -m tests.support.foreign_interpreter PORT plain|echo|other`."""

import contextlib
import io
import json
import sys
from typing import Any

import mcp.types as wire
import uvicorn
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError

DOT = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="


def build(kind: str) -> MCPServer[Any]:
    server = MCPServer("foreign", log_level="ERROR")
    if kind == "plain":
        server.tool()(execute_code)
    elif kind == "echo":
        server.tool(name="execute_code")(name_what_was_sent)
    else:
        server.tool(name="something_else")(execute_code)
    return server


async def execute_code(code: str) -> wire.CallToolResult:
    """Runs it here, with nothing remembered."""
    image = wire.ImageContent(type="image", data=DOT, mime_type="image/png")
    return wire.CallToolResult(content=[wire.TextContent(type="text", text=_output(code)), image])


async def name_what_was_sent(code: str, ctx: Context[Any, Any]) -> str:
    """The metadata of the call, as JSON."""
    return json.dumps(dict(ctx.request_context.meta or {}))


def _output(code: str) -> str:
    written = io.StringIO()
    try:
        with contextlib.redirect_stdout(written):
            exec(code, {})  # a test's own code, in a process of its own
    except Exception as error:
        raise ToolError(f"{type(error).__name__}: {error}") from error
    return written.getvalue()


if __name__ == "__main__":
    uvicorn.run(build(sys.argv[2]).streamable_http_app(), host="127.0.0.1", port=int(sys.argv[1]), log_level="error")
