"""The tool that runs the model's Python code."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from hashlib import sha256
from typing import Any

from task.conversation.messages import Attachment, CustomContent, Message, Role
from task.errors import ToolError
from task.tools.base import BaseTool
from task.tools.mcp.meta import META_DOMAIN, conversation_meta
from task.tools.mcp.results import MCPFile, MCPResult
from task.tools.models import Effect, ToolCallParams
from task.tools.py_interpreter.execution import Execution, ProducedFile, execution_of
from task.tools.py_interpreter.inputs import MAX_BYTES, Input, Inputs, inputs_of
from task.tools.py_interpreter.interpreter_server import InterpreterServer
from task.tools.py_interpreter.layout import heading, outcome
from task.tools.py_interpreter.own_files import ConversationFiles, OwnFiles

INPUTS = f"{META_DOMAIN}/inputs"
PICTURES = f"{META_DOMAIN}/pictures"
SECONDS = 120.0
TRANSFERS = 4
ATTEMPTS = 3
MAX_PROGRESS_LINES = 10
MAX_FOREIGN_FILES = 20
FOREIGN = (
    "This interpreter server is of another kind: attached files do not lie in its working directory, and it may forget "
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


class PythonCodeInterpreterTool(BaseTool):
    """Python in a kernel that belongs to the conversation. Source: API reference, PythonCodeInterpreterTool.

    `files` are the caller's files in DIAL; without them the tool opens its own connections to `dial_endpoint`.
    `seconds` is what one call may take with everything around it, `max_bytes` the largest file in either direction.
    """

    def __init__(
        self,
        dial_endpoint: str,
        mcp_url: str,
        tool_name: str = "execute_code",
        *,
        token: str | None = None,
        files: ConversationFiles | None = None,
        seconds: float = SECONDS,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        self._name = tool_name
        self._server = InterpreterServer(mcp_url, token, seconds)
        self._files: ConversationFiles = files or OwnFiles(dial_endpoint)
        self._seconds = seconds
        self._max_bytes = max_bytes
        self._transfers = asyncio.Semaphore(TRANSFERS)

    @staticmethod
    async def create(
        dial_endpoint: str,
        mcp_url: str,
        tool_name: str = "execute_code",
        *,
        token: str | None = None,
        files: ConversationFiles | None = None,
        seconds: float = SECONDS,
        max_bytes: int = MAX_BYTES,
    ) -> PythonCodeInterpreterTool:
        """The tool; the server is not asked anything yet, so that a dead one stops nobody."""
        return PythonCodeInterpreterTool(
            dial_endpoint, mcp_url, tool_name, token=token, files=files, seconds=seconds, max_bytes=max_bytes
        )

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
        caller = params.caller
        inputs = await inputs_of(caller.files if caller else (), self._files, params.api_key, self._max_bytes)
        result, placed = await self._run(code, inputs, params)
        execution = execution_of(result)
        if execution is None:
            return await self._foreign(result, code, params)
        return await self._message(execution, code, [*inputs.notes, *placed], params)

    async def _run(self, code: str, inputs: Inputs, params: ToolCallParams) -> tuple[MCPResult, list[str]]:
        session, versions, notes = await _session(params), inputs.versions(), list[str]()
        for _ in range(ATTEMPTS):
            meta = {**session, INPUTS: versions, PICTURES: "links"}
            result = await self._server.call(self._name, code, meta, _Progress(params))
            if result.is_error:
                raise ToolError(result.text or "The code could not be run.")
            execution = execution_of(result)
            if execution is None or not execution.missing:
                return result, notes
            wanted = inputs.named(execution.missing)
            failed = await asyncio.gather(*(self._place(file, execution.files_path, params.api_key) for file in wanted))
            notes += [note for note in failed if note]
            refused = {file.name for file, note in zip(wanted, failed, strict=True) if note}
            versions = {name: version for name, version in versions.items() if name not in refused}
        raise ToolError("The Python interpreter lost the conversation's files again and again. Try again later.")

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

    async def _message(self, execution: Execution, code: str, notes: Sequence[str], params: ToolCallParams) -> Message:
        files = sorted(execution.files, key=ProducedFile.order)
        kept = await asyncio.gather(*(self._keep(file, execution.files_path, params.api_key) for file in files))
        attachments = [item for item in kept if isinstance(item, Attachment)]
        links = [(item.title or "file", item.url or "") for item in attachments]
        text = outcome(execution, links, [*notes, *(item for item in kept if isinstance(item, str))])
        custom = CustomContent(tuple(attachments)) if attachments else None
        if execution.failed:  # the toolbox shows a failure's text itself, below the code that stands there already
            return Message(Role.TOOL, text, custom_content=custom, failed=True)
        params.stage.append_content(text)
        return Message(Role.TOOL, heading(code) + text, custom_content=custom)

    async def _keep(self, file: ProducedFile, files_path: str, api_key: str) -> Attachment | str:
        if file.size > self._max_bytes:
            return f"{file.name} is larger than {self._max_bytes:,} bytes and cannot be handed over."
        try:
            async with self._transfers:
                content = await self._server.get(files_path, file.path)
                url = await self._files.upload(file.name, content, file.mime_type, api_key)
        except ToolError as error:
            return f"{file.name} could not be handed over: {error}"
        return Attachment(file.mime_type, file.name, url=url)

    async def _foreign(self, result: MCPResult, code: str, params: ToolCallParams) -> Message:
        wanted = result.files[:MAX_FOREIGN_FILES]
        kept = await asyncio.gather(*(self._keep_foreign(file, params.api_key) for file in wanted))
        attachments = tuple(item for item in kept if isinstance(item, Attachment))
        links = [(item.title or "file", item.url or "") for item in attachments]
        notes = [FOREIGN, *(item for item in kept if isinstance(item, str))]
        text = outcome(Execution(files_path="", stdout=result.text), links, notes)
        params.stage.append_content(text)
        return Message(Role.TOOL, heading(code) + text, custom_content=CustomContent(attachments))

    async def _keep_foreign(self, file: MCPFile, api_key: str) -> Attachment | str:
        try:
            async with self._transfers:
                content = await self._server.read(file, self._max_bytes)
                url = await self._files.upload(file.name, content, file.mime_type, api_key)
        except ToolError as error:
            return f"{file.name} could not be handed over: {error}"
        return Attachment(file.mime_type, file.name, url=url)


class _Progress:
    """Says in the stage that the code still runs, less and less often."""

    def __init__(self, params: ToolCallParams) -> None:
        self._stage = params.stage
        self._told = 0
        self._next = 1.0

    def __call__(self, done: float, total: float | None, message: str | None) -> None:
        if done < self._next or self._told >= MAX_PROGRESS_LINES:
            return
        self._told, self._next = self._told + 1, done * 1.5
        self._stage.append_content(f"*{message or 'running'} …*\n\n")


async def _session(params: ToolCallParams) -> dict[str, Any]:
    caller = params.caller
    principal = await caller.principal() if caller else f"key:{sha256(params.api_key.encode()).hexdigest()}"
    return conversation_meta(params.conversation_id, principal)
