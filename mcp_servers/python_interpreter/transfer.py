"""Files over HTTP, to and from a session's working directory, with the checks of MCP requests."""

import asyncio
import os
from collections.abc import AsyncGenerator
from typing import BinaryIO

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from mcp_servers.python_interpreter.files import NewFile, NoSuchFile, open_file
from mcp_servers.python_interpreter.interpreter import Interpreter
from mcp_servers.python_interpreter.report import guessed_type
from mcp_servers.python_interpreter.sessions import KernelSession
from mcp_servers.serving import RouteGuard

CHUNK = 256 * 1024
LONGEST_NAME = 200
DEEPEST = 16


class Transfer:
    """The handlers of `/sessions/{handle}/inputs/{path}`, `/sessions/{handle}/{files|shown}/{path}`."""

    def __init__(self, interpreter: Interpreter, guard: RouteGuard) -> None:
        self._interpreter = interpreter
        self._guard = guard

    async def put(self, request: Request) -> Response:
        """Store the body in the working directory; later calls refer to it by the `version` of the query."""
        return await self._put(request, restores=False)

    async def restore(self, request: Request) -> Response:
        """Store the body where an earlier session of the conversation had it, unless code has run since; `version` as
        for `put`.
        """
        return await self._put(request, restores=True)

    async def get(self, request: Request) -> Response:
        """The content of one file."""
        if refused := await self._guard.refusal(request):
            return refused
        handle, area, path = (request.path_params[name] for name in ("handle", "area", "path"))
        session = self._interpreter.session(handle)
        root = session.folder(area) if session else None
        if root is None:
            return _refused(404, "there is no such session")
        try:
            file = os.fdopen(open_file(root, path), "rb")
        except NoSuchFile:
            return _refused(404, "there is no such file")
        size = os.fstat(file.fileno()).st_size
        if size > self._interpreter.config.limits.file_bytes:
            file.close()
            return _refused(413, "the file is too large")
        return StreamingResponse(
            _content(file, size), media_type=guessed_type(path), headers={"Content-Length": str(size)}
        )

    async def _put(self, request: Request, *, restores: bool) -> Response:
        if refused := await self._guard.refusal(request):
            return refused
        session = self._interpreter.session(request.path_params["handle"])
        if session is None:
            return _refused(404, "there is no such session")
        path = request.path_params["path"]
        if path.count("/") > DEEPEST or not all(map(usable_name, path.split("/"))):
            return _refused(400, f"the name must be plain: at most {DEEPEST} folders, no leading dot")
        try:
            size = await self._receive(request, session, path, restores=restores)
        except OSError as error:
            return _refused(409, f"the file cannot be written: {error.strerror}")
        if size is None:
            return _refused(413, f"the file is larger than {self._interpreter.config.limits.file_bytes} bytes")
        known = session.restored if restores else session.inputs
        known[path] = request.query_params.get("version", "")
        return JSONResponse({"name": path, "size": size})

    async def _receive(self, request: Request, session: KernelSession, name: str, *, restores: bool) -> int | None:
        limit, size = self._interpreter.config.limits.file_bytes, 0
        with NewFile(session.place, name) as file:
            async for chunk in request.stream():
                size += len(chunk)
                if size > limit:
                    return None
                file.write(chunk)
            if not (restores and session.calls):  # the code of another call may have changed the file by now
                file.finish()
        return size


def usable_name(name: str) -> bool:
    return (
        0 < len(name.encode()) <= LONGEST_NAME and not name.startswith(".") and "/" not in name and name.isprintable()
    )


async def _content(file: BinaryIO, size: int) -> AsyncGenerator[bytes]:
    with file:
        while size > 0 and (chunk := await asyncio.to_thread(file.read, min(CHUNK, size))):
            size -= len(chunk)
            yield chunk


def _refused(status: int, reason: str) -> Response:
    return JSONResponse({"error": reason}, status)
