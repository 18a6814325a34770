"""The tool that runs the model's Python code."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from hashlib import sha256
from time import monotonic
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

from pydantic import BaseModel, ValidationError

from task.conversation.messages import Attachment, CustomContent, Message, Role
from task.errors import ToolError
from task.llm.transport import KEEP_ALIVE_SECONDS, no_cookies
from task.telemetry.operations import count, queued
from task.tools.base import BaseTool
from task.tools.dial_files import DialFiles, UnpooledFiles
from task.tools.mcp.connection import META_DOMAIN, conversation_meta
from task.tools.mcp.mcp_client import MCPClient, Progress
from task.tools.mcp.results import MCPFile, MCPResult
from task.tools.models import Effect, ToolCallParams
from task.tools.py_interpreter.execution import (
    MAX_BYTES,
    UNSAFE,
    Execution,
    Input,
    Inputs,
    ProducedFile,
    execution_of,
    heading,
    inputs_of,
    outcome,
)
from task.tools.toolbox import RESPONSE_CHARS, clipped

INPUTS = f"{META_DOMAIN}/inputs"
SECONDS = f"{META_DOMAIN}/seconds"
PICTURES = f"{META_DOMAIN}/pictures"
CODE_SECONDS = 30.0
AROUND_SECONDS = 90.0  # to start a kernel, and to move files
REPORT_SECONDS = 2.0  # in which the server reports that the code was stopped
TRANSFERS = 4
ATTEMPTS = 3
MAX_PROGRESS_LINES = 10
MAX_FOREIGN_FILES = 20
FOREIGN = (
    "This interpreter server is of another kind: attached files are not in its working directory, and it may forget "
    "variables between two calls."
)
DESCRIPTION = (
    "Run Python code in an IPython session that keeps variables, imports and files for the whole conversation. "
    "Use it for calculations, data analysis, tables, charts and for making files. Installed: numpy, pandas, scipy, "
    "scikit-learn, matplotlib, plotly, openpyxl, python-docx, pillow. Files attached to the conversation lie in the "
    "working directory under their titles, for example pd.read_csv('report.csv'). Figures, plotly charts and every "
    "file written to the working directory are shown to the user. There is no network and no input(). Print what you "
    "need to know."
)
CONFINED = ("bubblewrap", "landlock")
TIERS = (*CONFINED, UNSAFE)
UNCONFINED = frozenset({Effect.READ, Effect.WRITE, Effect.NETWORK})
CONNECT_SECONDS = 5.0
HEALTH_SECONDS = 3.0
TRANSFER_SECONDS = 60.0


class PythonCodeInterpreterTool(BaseTool):
    """Python in a kernel that belongs to the conversation. Source: API reference, PythonCodeInterpreterTool.

    `files` are the caller's files in DIAL; `max_bytes` limits one file in either direction, `seconds` is the
    server's limit of the code of one call.
    """

    def __init__(
        self,
        dial_endpoint: str,
        mcp_url: str,
        tool_name: str = "execute_code",
        *,
        token: str | None = None,
        files: DialFiles | None = None,
        max_bytes: int = MAX_BYTES,
        seconds: float = CODE_SECONDS,
    ) -> None:
        self._name = tool_name
        self._seconds = seconds + AROUND_SECONDS
        self._server = InterpreterServer(mcp_url, token, self._seconds)
        self._files = files or UnpooledFiles(dial_endpoint)
        self._max_bytes = max_bytes
        self._transfers = asyncio.Semaphore(TRANSFERS)

    @staticmethod
    async def create(
        dial_endpoint: str, mcp_url: str, tool_name: str = "execute_code", *, token: str | None = None
    ) -> PythonCodeInterpreterTool:
        """The documented way to make the tool; nothing is sent to the server yet."""
        return PythonCodeInterpreterTool(dial_endpoint, mcp_url, tool_name, token=token)

    @property
    def name(self) -> str:
        return self._name

    @property
    def description(self) -> str:
        return DESCRIPTION

    @property
    def parameters(self) -> dict[str, Any]:
        return {
            "type": "object",
            "properties": {"code": {"type": "string", "description": "Python code to execute"}},
            "required": ["code"],
        }

    @property
    def show_in_stage(self) -> bool:
        return False

    @property
    def effects(self) -> frozenset[Effect]:
        return frozenset({Effect.EXECUTE})

    async def effects_now(self) -> frozenset[Effect]:
        """Only code on our own server and in its sandbox can do nothing but compute."""
        try:
            confined = self._server.is_ours and await self._server.sandbox_tier() in CONFINED
        except ToolError:  # nothing answers, so nothing can run
            confined = True
        return self.effects if confined else self.effects | UNCONFINED

    @property
    def timeout(self) -> float | None:
        return self._seconds

    async def close(self) -> None:
        await self._server.close()

    async def _execute(self, tool_call_params: ToolCallParams) -> str | Message:
        params = tool_call_params
        code = str((params.arguments or self.parse(params.tool_call))["code"])
        if not code.strip():
            raise ToolError("There is no code to run. Send Python code.")
        params.stage.append_content(heading(code))
        attached = params.caller.files if params.caller else ()
        inputs = await inputs_of(attached, self._files, params.api_key, self._max_bytes)
        result, notes = await self._run(code, inputs, params)
        execution = execution_of(result)
        if execution is None:
            fetched = [
                self._kept(file.name, file.mime_type, partial(self._server.read, file, self._max_bytes), params.api_key)
                for file in result.files[:MAX_FOREIGN_FILES]
            ]
            return await self._message(Execution(files_path="", stdout=result.text), code, [FOREIGN], fetched, params)
        fetched = [
            self._produced(file, execution.files_path, params.api_key)
            for file in sorted(execution.files, key=ProducedFile.order)
        ]
        return await self._message(execution, code, [*inputs.notes, *notes], fetched, params)

    async def _run(self, code: str, inputs: Inputs, params: ToolCallParams) -> tuple[MCPResult, list[str]]:
        session, versions, notes = await _session(params), inputs.versions(), list[str]()
        end = monotonic() + (self._seconds if params.seconds is None else params.seconds) - REPORT_SECONDS
        for _ in range(ATTEMPTS):
            meta = {**session, INPUTS: versions, PICTURES: "links", SECONDS: end - monotonic()}
            with queued("kernels"):
                result = await self._server.call(self._name, code, meta, _Progress(params))
            if result.is_error:
                raise ToolError(result.text or "The code could not be run.")
            execution = execution_of(result)
            if execution is None or not execution.missing:
                count("sandbox", _tier(execution))
                return result, notes
            wanted = inputs.named(execution.missing)
            failed = await asyncio.gather(*(self._place(file, execution.files_path, params.api_key) for file in wanted))
            notes += [note for note in failed if note]
            refused = {file.name for file, note in zip(wanted, failed, strict=True) if note}
            versions = {name: version for name, version in versions.items() if name not in refused}
        raise ToolError("The Python interpreter repeatedly lost the conversation's files. Try again later.")

    async def _place(self, file: Input, files_path: str, api_key: str) -> str:
        try:
            async with self._transfers:
                content = file.content
                if content is None:
                    content = (await self._files.download(file.url, api_key, self._max_bytes)).content
                await self._server.put(files_path, file.name, file.version, content)
        except ToolError as error:
            return f"{file.name} is not in the working directory: {error}"
        return ""

    async def _message(
        self,
        execution: Execution,
        code: str,
        notes: Sequence[str],
        files: Sequence[Awaitable[Attachment | str]],
        params: ToolCallParams,
    ) -> Message:
        kept = await asyncio.gather(*files)
        attachments = tuple(item for item in kept if isinstance(item, Attachment))
        links = [(item.title or "file", item.url or "") for item in attachments]
        text = outcome(execution, links, [*notes, *(item for item in kept if isinstance(item, str))])
        custom = CustomContent(attachments) if attachments else None
        if execution.failed:  # the toolbox shows the text of a failure itself, below the code already in the stage
            return Message(Role.TOOL, text, custom_content=custom, failed=True)
        params.stage.append_content(clipped(text, RESPONSE_CHARS))
        return Message(Role.TOOL, heading(code) + text, custom_content=custom)

    async def _produced(self, file: ProducedFile, files_path: str, api_key: str) -> Attachment | str:
        if file.size > self._max_bytes:
            return f"{file.name} is larger than {self._max_bytes:,} bytes and cannot be handed over."
        return await self._kept(file.name, file.mime_type, partial(self._server.get, files_path, file.path), api_key)

    async def _kept(
        self, name: str, mime_type: str, fetch: Callable[[], Awaitable[bytes]], api_key: str
    ) -> Attachment | str:
        try:
            async with self._transfers:
                url = await self._files.upload(name, await fetch(), mime_type, api_key)
        except ToolError as error:
            return f"{name} could not be handed over: {error}"
        return Attachment(mime_type, name, url=url)


class _Progress:
    """Reports in the stage that the code is still running, at growing intervals."""

    def __init__(self, params: ToolCallParams) -> None:
        self._stage = params.stage
        self._lines = 0
        self._next = 1.0

    def __call__(self, done: float, total: float | None, message: str | None) -> None:
        if done < self._next or self._lines >= MAX_PROGRESS_LINES:
            return
        self._lines, self._next = self._lines + 1, done * 1.5
        self._stage.append_content(f"*{message or 'running'} …*\n\n")


def _tier(execution: Execution | None) -> str:
    return execution.sandbox_tier if execution is not None and execution.sandbox_tier in TIERS else "unknown"


async def _session(params: ToolCallParams) -> dict[str, Any]:
    caller = params.caller
    principal = await caller.principal() if caller else f"key:{sha256(params.api_key.encode()).hexdigest()}"
    return conversation_meta(params.conversation_id, principal)


if TYPE_CHECKING:
    import httpx


class _Health(BaseModel):
    sandbox_tier: str


class InterpreterServer:
    """The server at `url`; nothing is sent before the first call. Every method raises `ToolError` when it fails."""

    def __init__(self, url: str, token: str | None, seconds: float) -> None:
        self._mcp = MCPClient(url, token=token, timeout=seconds, name="the Python interpreter")
        parts = urlsplit(url)
        self._origin = f"{parts.scheme}://{parts.netloc}"
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._http: httpx.AsyncClient | None = None

    async def call(self, name: str, code: str, meta: Mapping[str, Any], on_progress: Progress) -> MCPResult:
        return await self._mcp.call(name, {"code": code}, meta=meta, on_progress=on_progress)

    async def put(self, files_path: str, name: str, version: str, content: bytes) -> None:
        """Place a file into the session's working directory."""
        path = f"{files_path}inputs/{quote(name, safe='')}"
        await self._request("PUT", path, params={"version": version}, content=content)

    async def get(self, files_path: str, path: str) -> bytes:
        """The content of a file that the session has produced."""
        return await self._request("GET", f"{files_path}{path}")

    async def read(self, file: MCPFile, max_bytes: int) -> bytes:
        """The content of a file in the result of a server of another kind."""
        if file.content is not None or file.uri is None:
            return file.content or b""
        found = await self._mcp.read(file.uri, max_bytes=max_bytes)
        return b"".join(item.content or b"" for item in found)

    @property
    def is_ours(self) -> bool:
        """Whether it is called with the token that only our own servers get."""
        return bool(self._headers)

    async def sandbox_tier(self) -> str | None:
        """How the server confines code, as it reports itself; None if it is of another kind.

        Raises:
            ToolError: nothing answers at its address.
        """
        import httpx

        try:
            answer = await self._client().get(f"{self._origin}/health", timeout=HEALTH_SECONDS)
            return _Health.model_validate_json(answer.content).sandbox_tier if answer.status_code == 200 else None
        except httpx.ConnectError as error:
            raise ToolError("The Python interpreter cannot be reached.") from error
        except (httpx.HTTPError, ValidationError):
            return None

    async def close(self) -> None:
        await self._mcp.close()
        if self._http is not None:
            await self._http.aclose()

    async def _request(self, method: str, path: str, **rest: Any) -> bytes:
        import httpx

        if not path.startswith("/sessions/"):  # the token is sent to this server only
            raise ToolError("The Python interpreter named a place for files that is not its own.")
        try:
            response = await self._client().request(method, f"{self._origin}{path}", **rest)
        except httpx.HTTPError as error:
            raise ToolError("The Python interpreter broke off while a file was sent. Try again.") from error
        if response.status_code != 200:
            raise ToolError(f"The Python interpreter refused a file (status {response.status_code}).")
        return response.content

    def _client(self) -> httpx.AsyncClient:
        import httpx

        if self._http is None:
            timeout = httpx.Timeout(TRANSFER_SECONDS, connect=CONNECT_SECONDS)
            secure = self._origin.startswith("https:")
            self._http = httpx.AsyncClient(
                headers=self._headers,
                timeout=timeout,
                trust_env=False,
                verify=secure,
                cookies=no_cookies(),
                limits=httpx.Limits(keepalive_expiry=KEEP_ALIVE_SECONDS),
            )
        return self._http
