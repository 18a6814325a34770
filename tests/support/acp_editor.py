"""An editor in front of `dial-agent acp`: the SDK's own client, with a user who answers, and unsaved buffers.

async with openai_upstream(*script) as upstream, editor(tmp_path, **openai(upstream.url)) as at:
    session = await at.open(folder)
    answer = await session.say("Write it.", "allow_once")     answers of the permission requests, in order
    answer.stop, answer.text, answer.calls, answer.asked
"""

import asyncio
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import acp
from acp import schema

from tests.support.console import openai as openai
from tests.support.up import environment

SECONDS = 60
LATER = "later"  # an answer that comes from the queue of this name


@dataclass
class Answer:
    """What the editor was shown during one prompt; `calls` are by their ids, each with all that was updated."""

    stop: str = ""
    text: str = ""
    calls: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    asked: list[schema.RequestPermissionRequest] = field(default_factory=list[schema.RequestPermissionRequest])
    others: list[Any] = field(default_factory=list[Any])
    usage: schema.Usage | None = None

    @property
    def titles(self) -> list[tuple[str, str]]:
        return [(call["title"], call["status"]) for call in self.calls.values()]

    def diffs(self) -> list[tuple[str, str | None, str]]:
        found = [item for call in self.calls.values() for item in call.get("content") or () if item.type == "diff"]
        return [(Path(item.path).name, item.old_text, item.new_text) for item in found]


class EditorClient:
    """The client's side: `buffers` are texts by their path, `refuses` lets no file be read or written, `writing` holds
    off writes while it is not set."""

    def __init__(self) -> None:
        self.writing, self.waits_to_write = asyncio.Event(), False
        self.writing.set()
        self.buffers, self.refuses = dict[str, str](), False
        self.shown, self.answers = Answer(), list[Any]()
        self.more = asyncio.Condition()
        self.later = asyncio.Queue[str | None]()

    def on_connect(self, conn: Any) -> None: ...

    async def request_permission(
        self, session_id: str, tool_call: schema.ToolCallUpdate, options: list[schema.PermissionOption], **_: Any
    ) -> schema.RequestPermissionResponse:
        asked = schema.RequestPermissionRequest(session_id=session_id, tool_call=tool_call, options=options)
        self.shown.asked.append(asked)
        await self._changed()
        choice = self.answers.pop(0) if self.answers else LATER
        if choice == LATER:
            choice = await self.later.get()
        if choice is None:
            return schema.RequestPermissionResponse(outcome=schema.DeniedOutcome(outcome="cancelled"))
        return schema.RequestPermissionResponse(outcome=schema.AllowedOutcome(outcome="selected", option_id=choice))

    async def session_update(self, session_id: str, update: Any, **_: Any) -> None:
        match update:
            case schema.AgentMessageChunk(content=schema.TextContentBlock() as block):
                self.shown.text += block.text
            case schema.ToolCallStart() | schema.ToolCallProgress():
                given = {name: value for name, value in update if value is not None}
                self.shown.calls.setdefault(update.tool_call_id, {}).update(given)
            case _:
                self.shown.others.append(update)
        await self._changed()

    async def read_text_file(self, session_id: str, path: str, **_: Any) -> schema.ReadTextFileResponse:
        if self.refuses or path not in self.buffers:
            raise acp.RequestError.resource_not_found(path)
        return schema.ReadTextFileResponse(content=self.buffers[path])

    async def write_text_file(self, session_id: str, path: str, content: str, **_: Any) -> None:
        if self.refuses:
            raise acp.RequestError.internal_error()
        self.waits_to_write = not self.writing.is_set()
        await self._changed()
        await self.writing.wait()
        self.buffers[path] = content
        Path(path).write_text(content)

    async def _changed(self) -> None:
        async with self.more:
            self.more.notify_all()


@dataclass
class EditorSession:
    """One session in the editor."""

    connection: Any
    client: EditorClient
    session_id: str
    modes: schema.SessionModeState | None = None

    async def say(self, text: str | Sequence[Any], *answers: str | None) -> Answer:
        """A prompt, to its end; its permission requests get these answers."""
        shown = self.client.shown = Answer()
        self.client.answers[:] = answers
        blocks = [acp.text_block(text)] if isinstance(text, str) else list(text)
        response = await asyncio.wait_for(self.connection.prompt(session_id=self.session_id, prompt=blocks), SECONDS)
        shown.stop, shown.usage = response.stop_reason, response.usage
        return shown

    async def until(self, holds: Any) -> None:
        """Wait until this holds of what is shown."""
        async with asyncio.timeout(SECONDS), self.client.more:
            await self.client.more.wait_for(lambda: holds(self.client.shown))

    async def cancel(self) -> None:
        await self.connection.cancel(session_id=self.session_id)


@dataclass
class Editor:
    """The editor and the process that it has started."""

    connection: Any
    client: EditorClient
    process: asyncio.subprocess.Process
    home: Path

    async def open(self, folder: Path, **given: Any) -> EditorSession:
        made = await self.connection.new_session(cwd=str(folder), mcp_servers=given.get("mcp_servers", []))
        return EditorSession(self.connection, self.client, made.session_id, made.modes)

    async def load(self, session_id: str, folder: Path) -> tuple[EditorSession, Answer]:
        """A session, and what was shown of its conversation."""
        shown = self.client.shown = Answer()
        made = await self.connection.load_session(cwd=str(folder), session_id=session_id, mcp_servers=[])
        return EditorSession(self.connection, self.client, session_id, made.modes), shown


@asynccontextmanager
async def editor(home: Path, *, files: bool = True, **variables: str) -> AsyncGenerator[Editor]:
    """The process in a home of its own, spoken to by the SDK's client; `files`: the editor reads and writes them."""
    home.mkdir(exist_ok=True)
    client, environ = EditorClient(), environment(home, AGENT_DATA_DIR=str(home / "data"), **variables)
    command, kept = (sys.executable, "-m", "task", "acp"), {"stderr": None, "shutdown_timeout": 20}
    started = acp.spawn_agent_process(cast("Any", client), *command, env=environ, cwd=home, transport_kwargs=kept)
    async with started as (connection, process):
        can = schema.FileSystemCapabilities(read_text_file=files, write_text_file=files)
        await asyncio.wait_for(
            connection.initialize(
                protocol_version=acp.PROTOCOL_VERSION, client_capabilities=schema.ClientCapabilities(fs=can)
            ),
            SECONDS,
        )
        yield Editor(connection, client, process, home)


@asynccontextmanager
async def raw(home: Path, **variables: str) -> AsyncGenerator[asyncio.subprocess.Process]:
    """The process with its bare streams."""
    home.mkdir(exist_ok=True)
    environ = environment(home, AGENT_DATA_DIR=str(home / "data"), **variables)
    pipes = {"stdin": asyncio.subprocess.PIPE, "stdout": asyncio.subprocess.PIPE, "limit": 2**26}
    command = [sys.executable, "-m", "task", "acp"]
    process = await asyncio.create_subprocess_exec(*command, cwd=home, env=environ, **pipes)  # type: ignore[arg-type]
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
