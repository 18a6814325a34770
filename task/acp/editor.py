"""What an editor shows and has: the calls of a session, and the texts of files that are not saved."""

import asyncio
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import acp
from acp import RequestError, schema
from acp.connection import Connection
from acp.utils import ensure_dict
from pydantic import TypeAdapter

from task.conversation.inner import outer_id
from task.conversation.messages import FunctionCall, Message, Role, ToolCall
from task.documents.model import code
from task.errors import ToolError
from task.llm.base import Usage
from task.loop import LoopObserver
from task.output.sinks import RESPONSE_CHARS, clipped
from task.permissions.decisions import Effect
from task.permissions.icerc import ICERC, visible, words
from task.store.records import Approval, new_id, packed
from task.tools.base import BaseTool
from task.tools.workspace.root import Workspace

SECONDS = 10.0  # for a text
UNDONE = (RequestError, ValueError, OSError)  # refused, rubbish, late, or gone
READ, WRITE = "fs/read_text_file", "fs/write_text_file"
KINDS = {Effect.EXECUTE: "execute", Effect.WRITE: "edit", Effect.NETWORK: "fetch", Effect.READ: "read"}
_CARD = TypeAdapter(ICERC)


class Editor(Connection):
    """The SDK's connection. `does` are the methods for files that the editor offers."""

    does = frozenset[str]()

    def _process_message(self, message: Any) -> None:
        with suppress(AttributeError, TypeError):  # JSON that is not a message must not end the process
            super()._process_message(message)


class EditorWorkspace(Workspace):
    """A workspace whose saved texts come from the editor, and are written by it, where it does that.

    Paths are checked as in any other. `shown` is the folder as the editor calls it, perhaps a link. `written` are the
    changes, by the files, until the editor is shown them; `asked` the texts that open questions show.
    """

    def __init__(self, path: Path, *, shown: Path, editor: Editor, session_id: str, **given: Any) -> None:
        super().__init__(path, **given)
        self.shown, self._editor, self._session_id = shown, editor, session_id
        self.written, self.asked = dict[str, schema.FileEditToolCallContent](), dict[str, str | None]()
        self._loop = asyncio.get_running_loop()

    def read(self, path: str) -> bytes:
        content = super().read(path)
        with suppress(UnicodeDecodeError):
            content.decode()
            given = self._ask(READ, self.normalised(path)) if READ in self._editor.does else None
            text = given and given.get("content")
            return text.encode(errors="replace") if isinstance(text, str) else content
        return content

    def before(self, path: str) -> str | None:
        """The text that is there now; None: there is none."""
        with suppress(OSError, ToolError):
            return self.read(path).decode(errors="replace")
        return None

    def _put(self, relative: str, content: bytes, folder: int, name: str, old: os.stat_result | None) -> None:
        before, place, text = self.before(relative), str(self.shown / relative), content.decode()
        if self.asked.pop(place, before) != before:
            raise ToolError("it has changed since the user was asked; read it again")
        if WRITE not in self._editor.does:
            super()._put(relative, content, folder, name, old)
        elif self._ask(WRITE, relative, content=text) is None:
            raise ToolError("the editor did not write it; read the file before you try again")
        self.written[place] = acp.tool_diff_content(place, text, before)

    def _ask(self, method: str, relative: str, **params: Any) -> dict[str, Any] | None:
        params |= {"sessionId": self._session_id, "path": str(self.shown / relative)}
        asked = asyncio.wait_for(self._editor.send_request(method, params), SECONDS)
        with suppress(*UNDONE):
            return ensure_dict(asyncio.run_coroutine_threadsafe(asked, self._loop).result())
        return None


class Calls(LoopObserver):
    """Follows the calls of each run; what the editor is to be shown of them is kept until it is taken, since the text
    of the answer before them comes later.

    `tools` are the agent's own, by their names, and `workspace` has what those of the folder have written. Ids of
    models recur: the editor gets ids of ours.
    """

    def __init__(self, tools: Mapping[str, BaseTool], workspace: EditorWorkspace | None) -> None:
        super().__init__()
        self._tools, self._workspace = tools, workspace
        self._updates, self._shown = list[Any](), dict[str, schema.ToolCallStart]()

    def before(self, observer: LoopObserver) -> LoopObserver:
        """The same in front of the observer of the next run."""
        self.then, self.trace_id = observer, observer.trace_id
        return self

    def model_answered(self, message: Message, usage: Usage, seconds: float) -> None:
        self.add(message)
        super().model_answered(message, usage, seconds)

    def call_ended(self, call: ToolCall, message: Message, seconds: float) -> None:
        self.add(replace(message, tool_call_id=call.id))  # a sub-agent's call has another id outside
        super().call_ended(call, message, seconds)

    def add(self, message: Message) -> None:
        """Show the calls that the message makes, or the result that it is; with a call ends what its tool has asked."""
        for call in message.tool_calls:
            self._start(call)
        ended = message.tool_call_id if message.role is Role.TOOL and not message.interim else ""
        for known in [known for known in self._shown if ended in (known, outer_id(known))]:
            shown, tool = self._shown.pop(known), self._tools.get(message.name or "")
            text = clipped(tool.shown(message.text()) if tool is not None else message.text(), RESPONSE_CHARS)
            content: list[Any] = [acp.tool_content(acp.text_block(code(text).text))]  # no picture in it is loaded
            if self._workspace is not None and shown.kind == "edit":
                written = [self._workspace.written.pop(place.path, None) for place in shown.locations or ()]
                content[:0] = filter(None, written)
            status: schema.ToolCallStatus = "failed" if message.failed else "completed"
            self._updates.append(acp.update_tool_call(shown.tool_call_id, status=status, content=content))

    def close(self) -> list[Any]:
        """The last updates of a prompt: what has not ended will not run any more in it."""
        self._updates += [acp.update_tool_call(item.tool_call_id, status="failed") for item in self._shown.values()]
        self._shown.clear()
        if self._workspace is not None:
            self._workspace.asked.clear()
        return self.take()

    def take(self) -> list[Any]:
        """The updates since the last time."""
        taken, self._updates = self._updates, []
        return taken

    async def asked(self, item: Approval) -> list[Any]:
        """The updates since the last time, and the call of a question, with the change it would make, and its card."""
        if item.call_id not in self._shown:  # it is a tool's, a sub-agent's, or was made in another process
            self._start(ToolCall(item.call_id, FunctionCall(item.tool, packed(item.arguments))))
        shown, given, card, texts = self._shown[item.call_id], item.arguments, item.card, None
        if (workspace := self._workspace) is not None and item.tool == "fs_edit":
            texts = given["new_text"], given["old_text"]
        elif workspace is not None and item.tool == "fs_write":
            texts = given["content"], await asyncio.to_thread(workspace.before, given["path"])
            workspace.asked |= {place.path: texts[1] for place in shown.locations or ()}
        content: list[Any] = [acp.tool_diff_content(place.path, *texts) for place in shown.locations or () if texts]
        always = f"*Always* would cover {words(wider)}.\n\n" if (wider := card["grant_description"]) else ""
        text = f"{_CARD.validate_python(card).markdown(card['reason'])}\n{always}Code: {item.code}"
        content.append(acp.tool_content(acp.text_block(text)))
        return [*self.take(), acp.update_tool_call(shown.tool_call_id, status="pending", content=content)]

    def _start(self, call: ToolCall) -> None:
        given, tool, kind, places = call.arguments(), self._tools.get(call.name), "other", list[Any]()
        if tool is not None:
            kind = next((kind for effect, kind in KINDS.items() if effect in tool.effects), kind)
            with suppress(ValueError, KeyError):  # no file can have this path, or none is named
                access, folder = tool.workspace_access(given), self._workspace
                paths = access.paths if access is not None else ()
                places = [schema.ToolCallLocation(path=str(folder.shown / path)) for path in paths if folder]
        title = visible(tool.title(given) if tool is not None else call.name).replace("](", "] (")
        about: dict[str, Any] = {"kind": kind, "status": "in_progress", "locations": places, "raw_input": given}
        self._shown[call.id] = start = acp.start_tool_call(new_id("call"), title, **about)
        self._updates.append(start)
