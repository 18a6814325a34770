"""The agent that an editor talks to: its sessions, each in a folder, with prompts as runs."""

import asyncio
import os
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import acp
from acp import RequestError, schema
from acp.agent.router import build_agent_router
from acp.helpers import update_available_commands
from acp.utils import ensure_dict, serialize_params

from task.acp.editor import UNDONE, Calls, Editor, EditorWorkspace
from task.closing import close_all
from task.conversation.inputs import Answer, user_message
from task.conversation.messages import Attachment, Message, Role
from task.errors import AgentError, Conflict, InvalidRequest, NotFound
from task.permissions.decisions import PermissionMode
from task.product.framework import ConsoleProduct
from task.product.parts import stranger
from task.product.profile import EDITOR, FOLDER, Services
from task.runs.request import RunCaller, RunOptions
from task.runs.runner import Runner
from task.runs.table import Preparing, last_run
from task.store.records import Approval, iso, storable
from task.store.store import Store
from task.tools.toolbox import named
from task.tools.workspace.changes import Changes
from task.tools.workspace.files import shown_path

OWNER = "local"  # as the console calls whoever uses this machine
POLL_SECONDS = 0.5  # between two looks at a question that another door may answer
CAN = {
    "loadSession": True,
    "promptCapabilities": {"image": True, "embeddedContext": True},
    "mcpCapabilities": {"http": True},
    "sessionCapabilities": {"list": {}},
}
MODES = {"default": "Ask when risky", "ask": "Ask always", "read_only": "Read only"}
OPTIONS = ("allow_once", "allow_always", "reject_once", "reject_always")
STOPS = {"length": "max_tokens", "content_filter": "refusal", "limited": "max_turn_requests", "cancelled": "cancelled"}
USAGE = {"totalTokens": "total_tokens", "inputTokens": "prompt_tokens", "outputTokens": "completion_tokens"}
UNDO = schema.AvailableCommand(name="undo", description="Take back what the last prompt changed in the folder.")
NO_ADDRESS = "The MCP server {} has no HTTP address; programs are named in AGENT_MCP_SERVERS."
SHOWN = {"text": acp.update_agent_message_text, "reasoning": acp.update_agent_thought_text}
Place = Callable[[Path, Callable[..., EditorWorkspace]], ConsoleProduct]


async def serve(services: Services, place: Place, given: int, taken: int) -> None:
    """Answer the editor on these descriptors until it is gone; `place` is the product in a folder."""
    loop, reader = asyncio.get_running_loop(), asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(given, "rb", 0))
    protocol = asyncio.StreamReaderProtocol(asyncio.StreamReader())
    pipe, _ = await loop.connect_write_pipe(lambda: protocol, os.fdopen(taken, "wb", 0))
    loop.add_signal_handler(signal.SIGTERM, reader.feed_eof)
    door = Door(services, place)
    router = build_agent_router(door)  # type: ignore[arg-type]

    async def handle(method: str, params: Any, is_notification: bool) -> Any:
        try:
            return await router(method, params, is_notification)
        except AgentError as error:
            raise RequestError(-32603, str(error)) from error

    door.editor = Editor(handle, asyncio.StreamWriter(pipe, protocol, None, loop), reader, listening=False)
    try:
        await door.editor.main_loop()
    finally:
        await door.editor.close()
        await door.close()


class EditorSession:
    """A conversation in a folder, where the product works; `servers` are the MCP servers that the editor names for it.

    `answering` is the prompt in progress, if there is one; when it is cancelled, its run is stopped.
    """

    def __init__(self, session_id: str, editor: Editor, store: Store, product: ConsoleProduct, servers: Any) -> None:
        self.session_id, self.mode = session_id, PermissionMode.DEFAULT
        self.answering: asyncio.Task[Any] | None = None
        self._editor, self._store, self._rejected = editor, store, set[tuple[str, str]]()
        self._product, folder = product, product.tools
        self._changes = Changes(folder.folder, product.settings.data_dir, store.database.place)
        workspace = next((item for item in folder.workspaces if isinstance(item, EditorWorkspace)), None)
        if workspace is not None:
            workspace.changes = self._changes
        self.calls = Calls(named([*product.profile.tools, *folder.tools]), workspace)
        web = [stranger(item.model_dump()) for item in servers if isinstance(item, schema.HttpMcpServer)]
        self._programs = [item.name for item in servers if not isinstance(item, schema.HttpMcpServer)]
        self._profile = replace(product.profile, servers=tuple(web))
        self._caller = RunCaller(OWNER, product.services.core_key)
        self._runner = Runner(product.services, self._profile, observed=self.calls.before)
        self._preparing = Preparing(product.services, self._profile)

    async def update(self, *updates: Any) -> None:
        """Send the editor updates of the session."""
        for update in updates:
            params = serialize_params(schema.SessionNotification(session_id=self.session_id, update=update))
            await self._editor.send_notification("session/update", params)

    async def prompt(self, message: Message) -> dict[str, Any]:
        """Answer the user's message: why that ended, and the tokens it took."""
        if (words := message.text().split())[:1] == ["/undo"]:
            done = await self._changes.undo(force="--force" in words)
            await self.update(acp.update_agent_message_text(done))
            return {"stopReason": "end_turn"}
        if not self._changes.run_id:
            for note in (*map(NO_ADDRESS.format, self._programs), *await self._product.tools.missing()):
                await self.update(acp.update_agent_thought_text(f"{note}\n\n"))
            await self.update(update_available_commands([UNDO]))
        used, ended, metadata = dict.fromkeys(USAGE, 0), dict[str, Any](), {FOLDER: self._profile.folder}
        options = RunOptions(EDITOR, self._profile.model, mode=self.mode, metadata=metadata)
        try:
            request = await self._preparing.in_session(self._caller, [message], options, self.session_id)
            while request is not None:
                run = await self._runner.start(request)
                self._changes.run_id = run.run_id
                async for event in self._runner.events(OWNER, run.run_id):
                    match event.type:
                        case "text" | "reasoning" as kind:
                            await self.update(SHOWN[kind](event.data["text"]))
                        case "usage":
                            used = {name: count + event.data[USAGE[name]] for name, count in used.items()}
                        case "error" | "finished" | "approval":
                            ended |= event.data
                        case _:
                            await self.update(*self.calls.take())
                if ended.get("status") != "suspended":
                    break
                for item in await self._store.approvals.list(OWNER, run_id=run.run_id):
                    await self._decide(item)
                request = await self._preparing.resumed(self._caller, run.run_id)
        finally:
            await self._runner.end_in(OWNER, self.session_id)
            self._changes.end_prompt()
            await self.update(*self.calls.close())
        if (status := ended.get("status")) in ("failed", "interrupted", None):
            raise RequestError(-32603, ended.get("error", {}).get("message", "The answer was interrupted."))
        if status == "suspended":  # words can answer it, here and elsewhere
            await self.update(acp.update_agent_message_text(ended["text"]))
        return {"stopReason": STOPS.get(status) or STOPS.get(ended["finish_reason"], "end_turn"), "usage": used}

    async def close(self) -> None:
        """End what runs, and what was opened; the conversation stays."""
        if self.answering is not None:
            self.answering.cancel()
        await close_all(self._runner.close, self._changes.close, self._product.tools.close)

    async def _decide(self, item: Approval) -> None:
        """Ask about an open call, unless such calls are always rejected."""
        wider = item.card["grant_description"]
        lasting = wider and self._product.settings.teps.remember_confirmations
        offered = [name for name in OPTIONS if lasting or "always" not in name]
        options = [{"optionId": name, "name": name.replace("_", " ").capitalize(), "kind": name} for name in offered]
        chosen: Any = "reject_always"
        if (item.tool, wider) not in self._rejected:
            *before, asked = await self.calls.asked(item)
            await self.update(*before)
            params = {"sessionId": self.session_id, "toolCall": serialize_params(asked), "options": options}
            asking = asyncio.create_task(self._editor.send_request("session/request_permission", params))
            while not asking.done() and (await self._store.approvals.get(OWNER, item.approval_id)).status == "waiting":
                await asyncio.wait({asking}, timeout=POLL_SECONDS)
            asking.cancel()
            chosen = ""
            with suppress(*UNDONE, asyncio.InvalidStateError):  # or another door has answered
                chosen = ensure_dict(ensure_dict(asking.result()).get("outcome")).get("optionId")
        if chosen in offered:
            self._rejected |= {(item.tool, wider)} if chosen == "reject_always" else set()
            answer = Answer(chosen.startswith("allow"), always=chosen == "allow_always")
            with suppress(Conflict):  # another door was faster, or it has expired
                await self._preparing.answer(self._caller, item.approval_id, answer)


class Door:
    """The protocol's methods, by the SDK's names."""

    editor: Editor

    def __init__(self, services: Services, place: Place) -> None:
        self._services, self._place = services, place
        self._sessions = dict[str, EditorSession]()

    async def initialize(self, client_capabilities: schema.ClientCapabilities | None = None, **_: Any) -> Any:
        files = (client_capabilities or schema.ClientCapabilities()).fs or ()
        self.editor.does = frozenset(f"fs/{name}" for name, does in files if does is True)
        info = {"name": "dial-agent", "title": "DIAL agent", "version": version("dial-general-purpose-agent")}
        return {"protocolVersion": acp.PROTOCOL_VERSION, "agentCapabilities": CAN, "agentInfo": info}

    async def new_session(self, cwd: str, mcp_servers: Sequence[Any], **_: Any) -> Any:
        folder, store = _folder(cwd)[0], await self._services.store.get()
        session_id = (await store.sessions.start(OWNER, origin="console")).session_id
        return {"sessionId": session_id, **self._open(session_id, folder, store, mcp_servers)}

    async def load_session(self, cwd: str, session_id: str, mcp_servers: Sequence[Any], **_: Any) -> Any:
        (folder, real), store = _folder(cwd), await self._services.store.get()
        await store.processes.interrupt_orphans()
        stored = await store.sessions.get(OWNER, session_id)
        if (other := await _folder_of(store, session_id)) not in (None, real):
            raise InvalidRequest(f"This session works in {other}; open it there.")
        if (before := self._sessions.pop(session_id, None)) is not None:
            await before.close()
        modes = self._open(session_id, folder, store, mcp_servers)
        session = self._sessions[session_id]
        for message in stored.messages:
            session.calls.add(message)
            if message.text() and message.role is not Role.TOOL:
                shown = acp.update_user_message_text if message.role is Role.USER else acp.update_agent_message_text
                await session.update(shown(message.text()))
            await session.update(*session.calls.take())
        for item in await store.approvals.list(OWNER, session_id=session_id):
            await session.update(*await session.calls.asked(item))
        return modes

    async def list_sessions(self, cwd: str | None = None, cursor: str | None = None, **_: Any) -> Any:
        store, found = await self._services.store.get(), list[dict[str, Any]]()
        page, real = await store.sessions.list(OWNER, cursor=cursor), cwd and _folder(cwd)[1]
        for item in page.items:
            folder = await _folder_of(store, item.session_id) or real
            if item.length and folder is not None and real in (None, folder):
                about = {"title": item.title, "updatedAt": iso(item.updated_at)}
                found.append({"sessionId": item.session_id, "cwd": cwd or folder, **about})
        return {"sessions": found, "nextCursor": page.cursor}

    async def set_session_mode(self, session_id: str, mode_id: str, **_: Any) -> None:
        if mode_id not in MODES:
            raise InvalidRequest(f"There is no mode {mode_id!r}. Modes: {', '.join(MODES)}.")
        self._sessions[session_id].mode = PermissionMode(mode_id)

    async def prompt(self, session_id: str, prompt: Sequence[Any], **_: Any) -> Any:
        if (session := self._sessions.get(session_id)) is None:
            raise NotFound("There is no such session here. Load it first.")
        if session.answering is not None and not session.answering.done():
            raise Conflict("This session is answering already. Wait for the answer, or cancel it.")
        session.answering = answering = asyncio.create_task(session.prompt(_message(prompt)))
        await asyncio.wait({answering})
        return {"stopReason": "cancelled"} if answering.cancelled() else answering.result()

    async def cancel(self, session_id: str, **_: Any) -> None:
        answering = self._sessions[session_id].answering
        if answering is not None and not answering.cancelling():
            answering.cancel()

    async def close(self) -> None:
        """End all sessions, and remove those in which nothing was said."""
        for session_id, session in self._sessions.items():
            await session.close()
            with suppress(AgentError):  # the store is gone, or another door has deleted the session
                store = await self._services.store.get()
                if not (await store.sessions.get(OWNER, session_id)).length:
                    await store.sessions.delete(OWNER, session_id)

    def _open(self, session_id: str, folder: Path, store: Store, servers: Sequence[Any]) -> dict[str, Any]:
        make = partial(EditorWorkspace, shown=folder, editor=self.editor, session_id=session_id)
        self._sessions[session_id] = EditorSession(session_id, self.editor, store, self._place(folder, make), servers)
        modes = [{"id": mode, "name": name} for mode, name in MODES.items()]
        return {"modes": {"currentModeId": str(PermissionMode.DEFAULT), "availableModes": modes}}


def _folder(cwd: str) -> tuple[Path, str]:
    """The folder as the editor calls it, perhaps by a link, and its real path."""
    if not os.path.isabs(cwd) or not os.path.isdir(cwd):
        raise InvalidRequest("cwd is not the absolute path of a folder.")
    return Path(cwd), os.path.realpath(cwd)


async def _folder_of(store: Store, session_id: str) -> str | None:
    """The folder of the editor's last run in the session; None: it may continue in any."""
    run = await last_run(store, OWNER, session_id)
    with suppress(NotFound):
        options = await RunOptions.of_run(store, OWNER, run.run_id if run is not None else "")
        return options.metadata.get(FOLDER) if options.door == EDITOR else None
    return None


def _message(blocks: Sequence[Any]) -> Message:
    """The user's message: pictures and texts of files go with it, files are named."""
    texts, files = list[str](), list[Attachment]()
    for block in blocks:
        match block:
            case schema.TextContentBlock():
                texts.append(block.text)
            case schema.ImageContentBlock():
                files.append(Attachment(block.mime_type, "picture", data=block.data))
            case schema.ResourceContentBlock():
                texts.append(f"@{shown_path(unquote(block.uri.removeprefix('file://')))}")
            case schema.EmbeddedResourceContentBlock(resource=schema.TextResourceContents() as text):
                files.append(Attachment("text/plain", storable(text.uri), data=storable(text.text)))
            case _:
                raise InvalidRequest("This agent takes texts, pictures, files and texts of files.")
    if not any(map(str.strip, texts)) and not files:
        raise InvalidRequest("The prompt is empty.")
    return user_message(Message(Role.USER, storable("\n\n".join(texts)), attachments=tuple(files)))
