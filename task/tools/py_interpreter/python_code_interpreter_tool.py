"""The tool that runs the model's Python code."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from hashlib import sha256
from time import monotonic
from typing import Any, TypeVar
from urllib.parse import unquote

from task.conversation.messages import Attachment, Message, Role
from task.core_client.files import DialFiles
from task.errors import ToolError
from task.output.sinks import RESPONSE_CHARS, StageSink, clipped
from task.shares import Shares
from task.telemetry.operations import count, queued
from task.tools.base import BaseTool, ToolSpec, object_schema, text
from task.tools.mcp.connection import META_DOMAIN, conversation_meta
from task.tools.mcp.mcp_client import Progress
from task.tools.mcp.results import MCPFile, MCPResult
from task.tools.models import Effect, ToolCallParams
from task.tools.py_interpreter.execution import (
    MAX_BYTES,
    UNSAFE,
    Execution,
    Input,
    MadeFile,
    ProducedFile,
    SessionMemo,
    execution_of,
    heading,
    inputs_of,
    outcome,
    refusal_of,
    remembered,
    skill_inputs,
)
from task.tools.py_interpreter.interpreter_server import InterpreterServer, ServersAway, Way

INPUTS = f"{META_DOMAIN}/inputs"
SECONDS = f"{META_DOMAIN}/seconds"
KERNEL = f"{META_DOMAIN}/kernel"
FRESH = f"{META_DOMAIN}/fresh"
MADE = f"{META_DOMAIN}/made"
PICTURES = f"{META_DOMAIN}/pictures"
CODE_SECONDS = 30.0
AROUND_SECONDS = 90.0  # to start a kernel, and to move files
REPORT_SECONDS = 2.0  # in which the server reports that the code was stopped
AWAY = "away"
WORK = "files/"  # begins the paths of files that lie in the working directory
TRANSFERS = 4
PAUSES = (0.0, 0.1, 0.3, 1.0, 2.0, 2.0)  # before an attempt that follows a refusal: balancers take time to notice
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
AnyFile = TypeVar("AnyFile", ProducedFile, MCPFile)


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
        self._seconds = seconds + AROUND_SECONDS
        self.spec = ToolSpec(
            tool_name,
            DESCRIPTION,
            object_schema("code", code=text("Python code to execute")),
            effects=frozenset({Effect.EXECUTE}),
            show_in_stage=False,
            timeout=self._seconds,
        )
        self._server = InterpreterServer(mcp_url, token, self._seconds)
        self._files = files or DialFiles(dial_endpoint)
        self._max_bytes = max_bytes
        self._transfers = Shares(TRANSFERS)

    @staticmethod
    async def create(
        dial_endpoint: str, mcp_url: str, tool_name: str = "execute_code", *, token: str | None = None
    ) -> PythonCodeInterpreterTool:
        """The documented way to make the tool; nothing is sent to the server yet."""
        return PythonCodeInterpreterTool(dial_endpoint, mcp_url, tool_name, token=token)

    async def effects_now(self, arguments: Mapping[str, Any]) -> frozenset[Effect]:
        """Only code on our own server and in its sandbox can do nothing but compute."""
        try:
            confined = self._server.is_ours and await self._server.sandbox_tier() in CONFINED
        except ToolError:  # nothing answers, so nothing can run
            confined = True
        return self.effects if confined else self.effects | UNCONFINED

    async def close(self) -> None:
        await self._server.close()

    async def _execute(self, tool_call_params: ToolCallParams) -> str | Message:
        params = tool_call_params
        code = str((params.arguments or self.parse(params.tool_call))["code"])
        if not code.strip():
            raise ToolError("There is no code to run. Send Python code.")
        params.stage.append_content(heading(code))
        attached = params.known_caller.files
        inputs, unavailable = await inputs_of(attached, self._files, params.api_key, self._max_bytes)
        inputs += skill_inputs(params.known_caller.skills, params.earlier)
        result, notes, way = await self._run(code, inputs, params)
        execution = execution_of(result)
        if execution is None:
            foreign = Execution(files_path="", stdout=result.text)
            read, found = partial(self._server.read, max_bytes=self._max_bytes), result.files[:MAX_FOREIGN_FILES]
            kept = await asyncio.gather(*(self._handed_over(file, read, params) for file in found))
            return _message(foreign, code, [FOREIGN], kept, params.stage)
        files = sorted(execution.files, key=ProducedFile.order)
        get = partial(self._server.get, files_path=execution.files_path, way=way)
        kept = await asyncio.gather(*(self._handed_over(file, get, params, file.size) for file in files))
        made = tuple(
            MadeFile(path=unquote(file.path.removeprefix(WORK)), url=item.url, size=file.size)
            for file, item in zip(files, kept, strict=True)
            if isinstance(item, Attachment) and item.url and file.path.startswith(WORK)
        )
        memo = SessionMemo(kernel=execution.kernel, route=way.route, files=made)
        message = _message(execution, code, [*unavailable, *notes], kept, params.stage)
        return replace(message, memo=memo.model_dump_json())

    async def _run(
        self, code: str, inputs: Sequence[Input], params: ToolCallParams
    ) -> tuple[MCPResult, list[str], Way]:
        caller, memo, notes = params.caller, remembered(params.earlier, self.name), list[str]()
        principal = await caller.principal() if caller else f"key:{sha256(params.api_key.encode()).hexdigest()}"
        session = conversation_meta(params.conversation_id, principal)
        made = memo.restorable()
        versions, restored = ({file.name: file.version for file in files} for files in (inputs, made))
        end = monotonic() + (self._seconds if params.seconds is None else params.seconds) - REPORT_SECONDS
        way, refusal, refused = Way(session, memo.route), "", ""
        for pause in PAUSES:
            await asyncio.sleep(pause if refusal else 0)
            try:
                way = await self._server.way(way, memo, refusal)
            except ServersAway as away:
                refusal, refused = AWAY, str(away)
                continue
            meta = {
                **session,
                INPUTS: versions,
                MADE: restored,
                PICTURES: "links",
                SECONDS: end - monotonic(),
                KERNEL: memo.kernel,
                FRESH: way.fresh,
            }
            with queued("kernels"):
                result = await self._server.call(self.name, code, meta, way, _progress_in(params.stage))
            if refusal := refusal_of(result):
                refused = result.text
                continue
            if result.is_error:
                raise ToolError(result.text or "The code could not be run.")
            execution = execution_of(result)
            if execution is None or not (execution.missing or execution.restore):
                count("sandbox", execution.sandbox_tier if execution and execution.sandbox_tier in TIERS else "unknown")
                return result, notes, way
            for area, missing, files, known in (
                ("inputs", execution.missing, inputs, versions),
                ("files", execution.restore, made, restored),  # later: the code may have changed an attached file
            ):
                wanted, path = [file for file in files if file.name in missing], f"{execution.files_path}{area}/"
                notes += await self._placed(wanted, known, path, way, params.api_key)
        if refusal:
            raise ToolError(f"{refused} Try again in a minute, or tell the user.")
        raise ToolError("The Python interpreter repeatedly lost the conversation's files. Try again later.")

    async def _placed(
        self, files: Sequence[Input], known: dict[str, str], path: str, way: Way, api_key: str
    ) -> list[str]:
        async def place(file: Input) -> str:
            try:
                async with self._transfers.place():
                    content = file.content
                    if content is None:
                        content = (await self._files.download(file.url, api_key, self._max_bytes)).content
                    await self._server.put(path, file.name, file.version, content, way)
            except ToolError as error:
                del known[file.name]
                return f"{file.name} is not in the working directory: {error}"
            return ""

        return [note for note in await asyncio.gather(*map(place, files)) if note]

    async def _handed_over(
        self, file: AnyFile, fetch: Callable[[AnyFile], Awaitable[bytes]], params: ToolCallParams, size: int = 0
    ) -> Attachment | str:
        if size > self._max_bytes:
            return f"{file.name} is larger than {self._max_bytes:,} bytes and cannot be handed over."
        try:
            async with self._transfers.place():
                url = await self._files.upload(file.name, await fetch(file), file.mime_type, params.api_key)
        except ToolError as error:
            return f"{file.name} could not be handed over: {error}"
        return Attachment(file.mime_type, file.name, url=url)


def _message(
    execution: Execution, code: str, notes: Sequence[str], kept: Sequence[Attachment | str], stage: StageSink
) -> Message:
    attachments = tuple(item for item in kept if isinstance(item, Attachment))
    links = [(item.title or "file", item.url or "") for item in attachments]
    shown = outcome(execution, links, [*notes, *(item for item in kept if isinstance(item, str))])
    if not execution.failed:  # the toolbox shows the text of a failure itself, below the code already in the stage
        stage.append_content(clipped(shown, RESPONSE_CHARS))
        shown = heading(code) + shown
    return Message(Role.TOOL, shown, attachments=attachments, failed=execution.failed)


def _progress_in(stage: StageSink) -> Progress:
    """Reports in the stage that the code is still running, at growing intervals."""
    lines, due = 0, 1.0

    async def progressed(done: float, total: float | None, message: str | None) -> None:
        nonlocal lines, due
        if done >= due and lines < MAX_PROGRESS_LINES:
            lines, due = lines + 1, done * 1.5
            stage.append_content(f"*{message or 'running'} …*\n\n")

    return progressed
