"""The interpreter as an MCP server: three tools, one resource template, files over HTTP, health."""

import asyncio
import base64
import importlib.metadata
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import mcp.types as wire
from mcp.server.caching import CacheHint
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ResourceNotFoundError, ToolError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse

from mcp_servers import serving
from mcp_servers.callers import ApiKeyAsBearer, identity_of
from mcp_servers.python_interpreter.files import NoSuchFile, read_file
from mcp_servers.python_interpreter.interpreter import Interpreter
from mcp_servers.python_interpreter.line import Ticket
from mcp_servers.python_interpreter.meta import CallMeta, call_meta
from mcp_servers.python_interpreter.report import as_text
from mcp_servers.python_interpreter.sessions import CallRefused, NotHere
from mcp_servers.python_interpreter.transfer import Transfer

PROGRESS_SECONDS = 2.0
MAX_IMAGE_BYTES = 512 * 1024  # base64 of more does not fit into one event of the protocol
MAX_RESOURCE_BYTES = 10 * 2**20
DESCRIPTION = (
    "Run Python code in an IPython session that keeps its variables for the whole conversation. Installed: numpy, "
    "pandas, scipy, scikit-learn, matplotlib, plotly, openpyxl, python-docx, pillow. The conversation's attached files "
    "are in the working directory under their own names. There is no network and no input(). The value of the last "
    "line, print output, tables and figures come back; every file written to the working directory is handed to the "
    "user. Processes forked by the code should not print. One call may take {seconds:g} seconds."
)


class Tools:
    """The tools and the resource of the server."""

    def __init__(self, interpreter: Interpreter) -> None:
        self._interpreter = interpreter
        self._token = interpreter.config.token

    async def execute_code(self, code: str, ctx: Context[Any, Any]) -> wire.CallToolResult:
        call = self._call(ctx)
        ticket = Ticket(call.owner)
        async with _progress(ctx, ticket, self._interpreter.config.limits.seconds):
            try:
                content = await self._interpreter.execute(code, call, ticket)
            except NotHere as refusal:
                text = wire.TextContent(type="text", text=str(refusal))
                return wire.CallToolResult(
                    content=[text], structured_content={"refused": refusal.reason}, is_error=True
                )
            except CallRefused as refusal:
                raise ToolError(str(refusal)) from refusal
        if "missing" in content:
            text = f"Files are missing: {', '.join([*content['missing'], *content['restore']])}"
            return wire.CallToolResult(content=[wire.TextContent(type="text", text=text)], structured_content=content)
        text = wire.TextContent(type="text", text=as_text(content, call.kept))
        parts = [self._image(call, file) or _link(file) for file in content["files"]]
        return wire.CallToolResult(content=[text, *parts], structured_content=content)

    async def list_session_files(self, ctx: Context[Any, Any]) -> wire.CallToolResult:
        """List the files in the conversation's working directory."""
        files = await self._interpreter.files(self._call(ctx).handle)
        text = "\n".join(f"- {file['name']} ({file['size']:,} bytes)" for file in files) or "There are no files."
        return wire.CallToolResult(
            content=[wire.TextContent(type="text", text=text)], structured_content={"files": files}
        )

    async def clear_session(self, ctx: Context[Any, Any]) -> str:
        """End the conversation's Python session: its variables and its files are deleted."""
        cleared = await self._interpreter.clear(self._call(ctx).handle)
        return "The session was cleared: variables and files are gone." if cleared else "There was no session to clear."

    async def file(self, session: str, path: str) -> bytes:
        """A file of a session."""
        area, _, name = path.partition("/")
        found = self._interpreter.session(session)
        root = found.folder(area) if found else None
        try:
            if root is None:
                raise NoSuchFile(path)
            content = await asyncio.to_thread(read_file, root, name, MAX_RESOURCE_BYTES + 1)
        except NoSuchFile:
            raise ResourceNotFoundError(f"there is no kernel://{session}/{path}") from None
        if len(content) > MAX_RESOURCE_BYTES:
            raise ValueError(f"the file is larger than {MAX_RESOURCE_BYTES} bytes")
        return content

    def _call(self, ctx: Context[Any, Any]) -> CallMeta:
        legacy = (ctx.headers or {}).get("mcp-session-id")
        caller = identity_of(ctx.request_context.request)
        return call_meta(dict(ctx.request_context.meta or {}), legacy, caller, self._token)

    def _image(self, call: CallMeta, file: dict[str, Any]) -> wire.ImageContent | None:
        small = file["mime_type"] in ("image/png", "image/jpeg") and file["size"] <= MAX_IMAGE_BYTES
        session = self._interpreter.session(call.handle)
        if call.link_pictures or not small or session is None or not file["path"].startswith("shown/"):
            return None
        content = (session.place.shown / file["name"]).read_bytes()
        return wire.ImageContent(type="image", mime_type=file["mime_type"], data=base64.b64encode(content).decode())


def _link(file: dict[str, Any]) -> wire.ResourceLink:
    known = {name: file[name] for name in ("name", "uri", "mime_type", "size")}
    return wire.ResourceLink(type="resource_link", **known)


def create_app(interpreter: Interpreter) -> Starlette:
    """The ASGI application of the server; its lifespan includes the interpreter's."""
    config = interpreter.config
    security = serving.security((config.host, *config.allowed_hosts))
    server = MCPServer(
        "python-interpreter",
        version=importlib.metadata.version("dial-general-purpose-agent"),
        log_level="WARNING",
        cache_hints={"tools/list": CacheHint(ttl_ms=60_000, scope="public")},
        **serving.authentication(config.token, f"http://{config.host}:{config.port}", config.core),
    )
    tools = Tools(interpreter)
    runs = wire.ToolAnnotations(read_only_hint=False, idempotent_hint=False, open_world_hint=False)
    looks = wire.ToolAnnotations(read_only_hint=True, idempotent_hint=True, open_world_hint=False)
    description = DESCRIPTION.format(seconds=config.limits.seconds)
    server.tool(annotations=runs, description=description)(tools.execute_code)
    server.tool(annotations=looks)(tools.list_session_files)
    server.tool(annotations=runs)(tools.clear_session)
    server.resource("kernel://{session}/{+path}", description="A file of a Python session.")(tools.file)
    transfer = Transfer(interpreter, serving.RouteGuard(config.token, security))
    server.custom_route("/health", methods=["GET"])(_health(interpreter))
    server.custom_route("/ready", methods=["GET"])(_ready(interpreter))
    server.custom_route("/sessions/{handle}/files/{path:path}", methods=["PUT"])(transfer.restore)
    server.custom_route("/sessions/{handle}/inputs/{path:path}", methods=["PUT"])(transfer.put)
    server.custom_route("/sessions/{handle}/{area}/{path:path}", methods=["GET"])(transfer.get)
    app = server.streamable_http_app(host=config.host, transport_security=security)
    app.add_middleware(ApiKeyAsBearer)
    return _with_interpreter(app, interpreter)


def _with_interpreter(app: Starlette, interpreter: Interpreter) -> Starlette:
    inner = app.router.lifespan_context

    @asynccontextmanager
    async def lifespan(application: Starlette) -> AsyncGenerator[Any]:
        async with interpreter.running(), inner(application) as state:
            yield state

    app.router.lifespan_context = lifespan
    return app


def _health(interpreter: Interpreter) -> Any:
    async def health(_: Request) -> JSONResponse:
        return JSONResponse(interpreter.health())

    return health


def _ready(interpreter: Interpreter) -> Any:
    async def ready(_: Request) -> JSONResponse:
        content = interpreter.ready()
        return JSONResponse(content, 200 if content["status"] == "ready" else 503)

    return ready


@asynccontextmanager
async def _progress(ctx: Context[Any, Any], ticket: Ticket, seconds: float) -> AsyncGenerator[None]:
    async def report() -> None:
        started = time.monotonic()
        while True:
            await asyncio.sleep(PROGRESS_SECONDS)
            elapsed = time.monotonic() - started
            running = f"running for {elapsed - ticket.waited:.0f} s"
            waiting = f"waiting for a kernel: place {ticket.place} of {ticket.length}"
            await ctx.report_progress(elapsed, seconds, waiting if ticket.place else running)

    reporting = asyncio.create_task(report())
    try:
        yield
    finally:
        reporting.cancel()
        await asyncio.wait({reporting})
