"""One session of an editor: its prompts as runs, its questions as permission requests."""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import acp
from acp import RequestError, schema
from acp.utils import serialize_params

from task.acp.calls import Calls
from task.acp.editor import Editor
from task.acp.files import EditorWorkspace
from task.closing import close_all
from task.conversation.inputs import Answer
from task.conversation.messages import Message
from task.errors import Conflict
from task.permissions.decisions import PermissionMode
from task.product.framework import ConsoleProduct
from task.product.parts import stranger
from task.product.profile import EDITOR, FOLDER
from task.runs.request import RunCaller, RunOptions
from task.runs.runner import Runner
from task.runs.table import Preparing
from task.store.records import Approval, Event
from task.store.store import Store
from task.tools.base import BaseTool
from task.tools.mcp.hub import MCPHub
from task.tools.models import Caller
from task.tools.workspace.changes import Changes

OWNER = "local"  # as the console calls whoever uses this machine
EDITOR_SECONDS, POLL_SECONDS = 10.0, 0.5  # for a text; between two looks at a question that another door may answer
NEVER = "the user rejects such calls in this session"
NO_ADDRESS = "The MCP server {} has no HTTP address; programs are named in AGENT_MCP_SERVERS."
OPTIONS = {
    "allow_once": "Allow",
    "allow_always": "Always allow",
    "reject_once": "Reject",
    "reject_always": "Always reject",
}
STOPS = {"length": "max_tokens", "content_filter": "refusal", "limited": "max_turn_requests", "cancelled": "cancelled"}
USAGE = {"totalTokens": "total_tokens", "inputTokens": "prompt_tokens", "outputTokens": "completion_tokens"}
UNDONE = (RequestError, ValueError, OSError, asyncio.CancelledError, CancelledError)  # refused, late, rubbish, or gone
Place = Callable[[Path, Callable[..., EditorWorkspace]], ConsoleProduct]


class EditorSession:
    """A conversation in a folder. One prompt is answered at a time, while `busy`.

    `servers` are the MCP servers that the editor names. `cancelled` is about the prompt in progress.
    """

    def __init__(
        self, session_id: str, editor: Editor, store: Store, folder: Path, place: Place, servers: Sequence[Any]
    ) -> None:
        web = [item.model_dump() for item in servers if isinstance(item, schema.HttpMcpServer)]
        others = [item.name for item in servers if not isinstance(item, schema.HttpMcpServer)]
        specs, self._missing = [stranger(item) for item in web], [NO_ADDRESS.format(name) for name in others]
        self.session_id, self.mode, self.run_id = session_id, PermissionMode.DEFAULT, ""
        self.busy, self.cancelled = False, False
        self._editor, self._store = editor, store
        self._loop, self._rejected, self._shown = asyncio.get_running_loop(), set[tuple[str, str]](), set[str]()
        can = {"reads": editor.reads, "writes": editor.writes}
        product = place(folder, partial(EditorWorkspace, shown=folder, ask=self._ask, **can))
        self._folder, self.caller = product.tools, RunCaller(OWNER, product.services.core_key)
        self.changes = Changes(self._folder.folder, product.settings.data_dir, store.database.place)
        self._hub = MCPHub(specs, product.services.files)
        self.product = replace(product, profile=replace(product.profile, workspace_tools=self._tools))
        workspace = next((item for item in product.tools.workspaces if isinstance(item, EditorWorkspace)), None)
        if workspace is not None:
            workspace.changes = self.changes
        self.calls = Calls({tool.name: tool for tool in product.tools.tools}, workspace, self.update)
        self._runner = Runner(product.services, self.product.profile, observed=self.calls.before)
        self._preparing = Preparing(product.services, self.product.profile)

    def update(self, update: Any) -> None:
        """Send the editor an update of the session."""
        params = serialize_params(schema.SessionNotification(session_id=self.session_id, update=update))
        self._editor.put({"jsonrpc": "2.0", "method": "session/update", "params": params})

    async def prompt(self, message: Message) -> dict[str, Any]:
        """Answer the user's message: why that ended, and the tokens it took."""
        used, ended = dict.fromkeys(USAGE, 0), dict[str, Any]()
        profile = self.product.profile
        options = RunOptions(EDITOR, profile.model, mode=self.mode, metadata={FOLDER: profile.folder})
        try:
            request = await self._preparing.in_session(self.caller, [message], options, self.session_id)
            while request is not None and not self.cancelled:
                run = await self._runner.start(request)
                self.run_id = self.changes.run_id = run.run_id
                if self.cancelled:  # while it was being started
                    await self.cancel()
                async for event in self._runner.events(self.caller.owner, run.run_id):
                    self._show(event, used)
                    ended |= event.data if event.type in ("error", "finished", "approval") else {}
                    await self._editor.drain()
                if ended.get("status") != "suspended" or not await self._decided():
                    break
                request = await self._preparing.resumed(self.caller, run.run_id)
        finally:
            self.calls.close()
            self.changes.end_prompt()
        status = "cancelled" if self.cancelled else ended.get("status")
        if status in ("failed", "interrupted", None):
            raise RequestError(-32603, ended.get("error", {}).get("message", "The answer was interrupted."))
        if status == "suspended":
            self.update(acp.update_agent_message_text(ended["text"]))  # words can answer it, here and elsewhere
        return {"stopReason": STOPS.get(status) or STOPS.get(ended["finish_reason"], "end_turn"), "usage": used}

    async def cancel(self) -> None:
        """End the prompt in progress, if there is one: its run is stopped, its questions stay open."""
        self.cancelled = True
        if self.run_id:
            await self._runner.stop(self.caller.owner, self.run_id)

    async def close(self) -> None:
        """End what runs, and what was opened; the conversation stays."""
        self.cancelled = True
        await close_all(self._runner.close, self._hub.close, self.changes.close, self._folder.close)

    def _ask(self, method: str, **params: Any) -> dict[str, Any] | None:
        if self.cancelled:  # a prompt ends with its calls
            return None
        asked = self._editor.connection.send_request(method, {"sessionId": self.session_id, **params})
        waiting = asyncio.run_coroutine_threadsafe(asyncio.wait_for(asked, EDITOR_SECONDS), self._loop)
        with suppress(*UNDONE):
            found = waiting.result()
            return found if isinstance(found, dict) else {}
        return None

    async def _tools(self, caller: Caller) -> list[BaseTool]:
        own = await self._folder.of(caller)
        found = await self._hub.discover(caller, [tool.name for tool in own])
        issues = [f"{issue.server}: {issue}" for issue in found.issues]
        for sentence in (*self._missing, *await self._folder.missing(), *issues):
            if sentence not in self._shown:
                self._shown.add(sentence)
                self.update(acp.update_agent_thought_text(f"{sentence}\n\n"))
        return [*own, *found.tools]

    def _show(self, event: Event, used: dict[str, int]) -> None:
        data: Any = event.data
        match event.type:
            case "text":
                self.update(acp.update_agent_message_text(data["text"]))
            case "reasoning":
                self.update(acp.update_agent_thought_text(data["text"]))
            case "usage":
                used |= {name: used[name] + data[field] for name, field in USAGE.items()}
            case _:
                self.calls.announce()

    async def _decided(self) -> bool:
        """Ask about the open calls of the run; False where the prompt was cancelled."""
        remembers = self.product.settings.teps.remember_confirmations
        for item in await self._store.approvals.list(self.caller.owner, run_id=self.run_id):
            kind = item.tool, (wider := item.card["grant_description"])
            offered = [name for name in OPTIONS if "always" not in name or (wider and (remembers or "reject" in name))]
            chosen = "reject_always" if kind in self._rejected else await self._permission(item, offered)
            if chosen == "reject_always":
                self._rejected.add(kind)
            if chosen and not self.cancelled:
                reason = NEVER if chosen == "reject_always" else ""
                answer = Answer(chosen.startswith("allow"), reason, always=chosen == "allow_always")
                with suppress(Conflict):  # another door was faster, or it has expired
                    await self._preparing.answer(self.caller, item.approval_id, answer)
                self.calls.settle(item.call_id, allowed=answer.allowed)
        return not self.cancelled

    async def _permission(self, item: Approval, offered: Sequence[str]) -> str:
        """What the user chose of what is offered; empty: nothing, or another door has answered."""
        options: list[Any] = [{"option_id": name, "name": OPTIONS[name], "kind": name} for name in offered]
        about = {"session_id": self.session_id, "tool_call": await self.calls.asked(item), "options": options}
        params = serialize_params(schema.RequestPermissionRequest.model_validate(about))
        asking = asyncio.create_task(self._editor.connection.send_request("session/request_permission", params))
        try:
            while not asking.done():
                await asyncio.wait({asking}, timeout=POLL_SECONDS)
                now = await self._store.approvals.get(self.caller.owner, item.approval_id)
                if self.cancelled or now.status != "waiting":
                    return ""
            with suppress(*UNDONE):
                outcome = schema.RequestPermissionResponse.model_validate(asking.result()).outcome
                chosen = outcome.option_id if isinstance(outcome, schema.AllowedOutcome) else ""
                return chosen if chosen in offered else ""
            return ""
        finally:
            asking.cancel()
