"""The agent that an editor talks to: its sessions, each in a folder, and what the protocol asks of them."""

import asyncio
import os
import signal
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import acp
from acp import RequestError, schema
from acp.agent.router import build_agent_router
from acp.connection import Connection

from task.acp.editor import Editor
from task.acp.session import OWNER, EditorSession, Place
from task.conversation.inputs import user_message
from task.conversation.messages import Attachment, FunctionCall, Message, Role, ToolCall
from task.errors import AgentError, Conflict, InvalidRequest, NotFound
from task.llm.base import Usage
from task.llm.pictures import MAX_IMAGE_BYTES
from task.permissions.decisions import PermissionMode
from task.product.profile import EDITOR, FOLDER, Services
from task.runs.request import RunOptions
from task.runs.table import last_run
from task.store.records import iso
from task.store.store import Store
from task.tools.workspace.files import shown_path

CAN = {
    "loadSession": True,
    "promptCapabilities": {"image": True, "embeddedContext": True},
    "mcpCapabilities": {"http": True},
    "sessionCapabilities": {"list": {}},
}
MODES = {"default": "Ask when risky", "ask": "Ask always", "read_only": "Read only"}
UNDO = {"name": "undo", "description": "Take back what the last prompt changed in the folder."}
BUSY = "This session is answering already. Wait for the answer, or cancel it."


async def serve(services: Services, place: Place, version: str, given: int, taken: int) -> None:
    """Answer the editor on these descriptors until it is gone; `place` is the product in a folder."""
    editor = await Editor.open(given, taken)
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, editor.end)
    door = Door(services, place, version, editor)
    router = build_agent_router(door)  # type: ignore[arg-type]

    async def handle(method: str, params: Any, is_notification: bool) -> Any:
        try:
            return await router(method, params, is_notification)
        except AgentError as error:
            ours = -32002 if isinstance(error, NotFound) else -32602 if isinstance(error, InvalidRequest) else -32603
            raise RequestError(ours, str(error)) from error

    editor.connection = Connection(handle, editor, listening=False)
    try:
        await editor.connection.main_loop()
    finally:
        await editor.connection.close()
        await door.close()


@dataclass(eq=False)
class Door:
    """The protocol's methods, by the SDK's names."""

    services: Services
    place: Place
    version: str
    editor: Editor
    sessions: dict[str, EditorSession] = field(default_factory=dict[str, EditorSession])
    made: list[str] = field(default_factory=list[str])

    async def initialize(self, client_capabilities: Any = None, **_: Any) -> Any:
        if client_capabilities is not None and (files := client_capabilities.fs) is not None:
            self.editor.reads, self.editor.writes = bool(files.read_text_file), bool(files.write_text_file)
        info = {"name": "dial-agent", "title": "DIAL agent", "version": self.version}
        return {"protocolVersion": acp.PROTOCOL_VERSION, "agentCapabilities": CAN, "agentInfo": info}

    async def new_session(self, cwd: str, mcp_servers: Sequence[Any] | None = None, **_: Any) -> Any:
        folder, store = _existing(cwd), await self.services.store.get()
        session_id = (await store.sessions.start(OWNER, origin="console")).session_id
        self.made.append(session_id)
        return {"sessionId": session_id, **self._open(session_id, folder, store, mcp_servers or ())}

    async def load_session(self, cwd: str, session_id: str, mcp_servers: Sequence[Any] | None = None, **_: Any) -> Any:
        folder, store = _existing(cwd), await self.services.store.get()
        await store.processes.interrupt_orphans()
        stored = await store.sessions.get(OWNER, session_id)
        if (other := await _folder_of(store, session_id)) not in (None, _real(cwd)):
            raise InvalidRequest(f"This session works in {other}; open it there.")
        if (before := self.sessions.pop(session_id, None)) is not None:
            await before.close()
        modes = self._open(session_id, folder, store, mcp_servers or ())
        _replay(session := self.sessions[session_id], stored.messages)
        run = await last_run(store, OWNER, session_id)
        if run is not None and run.status == "suspended":
            async for event in store.runs.events_after(OWNER, run.run_id):
                if event.type == "approval":
                    session.update(acp.update_agent_message_text(event.data["text"]))
        return modes

    async def list_sessions(self, cwd: str | None = None, cursor: str | None = None, **_: Any) -> Any:
        store, found = await self.services.store.get(), list[dict[str, Any]]()
        page, real = await store.sessions.list(OWNER, cursor=cursor), cwd and _real(cwd)
        for item in page.items:
            folder = await _folder_of(store, item.session_id) or real
            if item.length and folder is not None and real in (None, folder):
                about = {"title": item.title, "updatedAt": iso(item.updated_at)}
                found.append({"sessionId": item.session_id, "cwd": cwd or folder, **about})
        return {"sessions": found, "nextCursor": page.cursor}

    async def set_session_mode(self, session_id: str, mode_id: str, **_: Any) -> None:
        if mode_id not in MODES:
            raise InvalidRequest(f"There is no mode {mode_id!r}. Modes: {', '.join(MODES)}.")
        self._session(session_id).mode = PermissionMode(mode_id)

    async def prompt(self, session_id: str, prompt: Sequence[Any], **_: Any) -> Any:
        session = self._session(session_id)
        if session.busy:
            raise Conflict(BUSY)
        session.busy, session.cancelled, session.run_id = True, False, ""
        try:
            message = _message(prompt)
            if (words := message.text().split()) and words[0] == "/undo":
                done = await session.changes.undo(force="--force" in words)
                session.update(acp.update_agent_message_text(done))
                return {"stopReason": "end_turn"}
            return await session.prompt(message)
        finally:
            session.busy = False

    async def cancel(self, session_id: str, **_: Any) -> None:
        if session_id in self.sessions:
            await self.sessions[session_id].cancel()

    async def close(self) -> None:
        """End all sessions, and remove the new ones in which nothing was said."""
        for session in self.sessions.values():
            await session.close()
        for session_id in self.made:
            with suppress(AgentError):  # the store is gone, or another door has deleted the session
                store = await self.services.store.get()
                if not (await store.sessions.get(OWNER, session_id)).length:
                    await store.sessions.delete(OWNER, session_id)

    def _session(self, session_id: str) -> EditorSession:
        if session_id not in self.sessions:
            raise NotFound("There is no such session here. Load it first.")
        return self.sessions[session_id]

    def _open(self, session_id: str, folder: Path, store: Store, servers: Sequence[Any]) -> dict[str, Any]:
        session = EditorSession(session_id, self.editor, store, folder, self.place, servers)
        self.sessions[session_id] = session
        commands: Any = {"session_update": "available_commands_update", "available_commands": [UNDO]}
        # Once the editor knows the session: the answer is written in this step of the event loop.
        asyncio.get_running_loop().call_soon(session.update, schema.AvailableCommandsUpdate(**commands))
        modes = [{"id": mode, "name": name} for mode, name in MODES.items()]
        return {"modes": {"currentModeId": str(session.mode), "availableModes": modes}}


def _existing(cwd: str) -> Path:
    if not os.path.isabs(cwd) or not os.path.isdir(cwd):
        raise InvalidRequest("cwd is not the absolute path of a folder.")
    return Path(cwd)


def _real(cwd: str) -> str:
    return os.path.realpath(cwd)  # the editor may know it by a link


async def _folder_of(store: Store, session_id: str) -> str | None:
    """The folder of the editor's last run in the session; None: it may continue in any."""
    run, options = await last_run(store, OWNER, session_id), RunOptions("", "")
    with suppress(NotFound):
        options = await RunOptions.of_run(store, OWNER, run.run_id) if run is not None else options
    return options.metadata.get(FOLDER) if options.door == EDITOR else None


def _replay(session: EditorSession, messages: Sequence[Message]) -> None:
    for message in messages:
        if message.role is Role.TOOL:
            session.calls.call_ended(ToolCall(message.tool_call_id or "", FunctionCall("", "")), message, 0.0)
        elif message.text():
            shown = acp.update_user_message_text if message.role is Role.USER else acp.update_agent_message_text
            session.update(shown(message.text()))
        session.calls.model_answered(message, Usage(), 0.0)
        session.calls.announce()


def _message(blocks: Sequence[Any]) -> Message:
    """The user's message: pictures and texts of files go with it, files are named."""
    texts, pictures, outside = list[str](), list[Attachment](), False
    for block in blocks:
        match block:
            case schema.TextContentBlock():
                texts.append(block.text)
            case schema.ImageContentBlock():
                pictures.append(Attachment(block.mime_type, "picture", data=block.data))
                if not pictures[-1].is_picture or len(block.data) * 3 / 4 > MAX_IMAGE_BYTES:
                    raise InvalidRequest(f"A picture has at most {MAX_IMAGE_BYTES:,} bytes, and a usual format.")
            case schema.ResourceContentBlock():
                texts.append(f"@{shown_path(unquote(block.uri.removeprefix('file://')))}")
            case schema.EmbeddedResourceContentBlock(resource=schema.TextResourceContents() as text):
                outside = True
                texts.append(f"{text.uri}:\n\n{text.text}")
            case _:
                raise InvalidRequest("This agent takes texts, pictures, files and texts of files.")
    if not any(map(str.strip, texts)) and not pictures:
        raise InvalidRequest("The prompt is empty.")
    message = Message(Role.USER, "\n\n".join(texts), attachments=tuple(pictures))
    return replace(user_message(message), unsourced=outside)
