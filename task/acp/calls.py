"""The calls of a session as its editor shows them: kinds, locations, diffs and results."""

import asyncio
import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import acp
from acp import schema

from task.acp.files import EditorWorkspace
from task.conversation.inner import INNER
from task.conversation.messages import FunctionCall, Message, ToolCall
from task.documents.model import code
from task.llm.base import Usage
from task.loop import LoopObserver
from task.output.sinks import RESPONSE_CHARS, clipped
from task.permissions.icerc import ICERC, RiskAssessment, visible, words
from task.store.records import Approval, new_id
from task.tools.base import BaseTool

BY_KIND: Mapping[schema.ToolKind, str] = {
    "read": "fs_read fs_list file_content_extraction_tool",
    "edit": "fs_write fs_edit",
    "search": "fs_search rag_search_tool duckduckgo_web_search",
    "execute": "shell_run python_run execute_code",
    "fetch": "fetch_page",
}
KINDS: Mapping[str, schema.ToolKind] = {name: kind for kind, names in BY_KIND.items() for name in names.split()}


class Calls(LoopObserver):
    """Announces calls in the order of the answer's text, and ends them when their results come.

    It observes each run. `tools` are those of the folder, whose `workspace` has what was written; `update` sends an
    update. Ids of models recur: the editor gets ids of ours.
    """

    def __init__(
        self, tools: Mapping[str, BaseTool], workspace: EditorWorkspace | None, update: Callable[[Any], None]
    ) -> None:
        super().__init__()
        self._tools, self._workspace, self._update = tools, workspace, update
        self._made = list[ToolCall]()  # not announced yet: the text before them may still be on its way
        self._ended, self._shown = dict[str, Message](), dict[str, schema.ToolCallStart]()

    def before(self, observer: LoopObserver) -> LoopObserver:
        """The same in front of the observer of the next run."""
        self.then, self.trace_id = observer, observer.trace_id
        return self

    def model_answered(self, message: Message, usage: Usage, seconds: float) -> None:
        self._made += message.tool_calls
        super().model_answered(message, usage, seconds)

    def call_ended(self, call: ToolCall, message: Message, seconds: float) -> None:
        if not message.interim:  # of a call that waits for the user
            self._ended[call.id] = message
            self._end()
        super().call_ended(call, message, seconds)

    def announce(self) -> None:
        """Show the calls that were made since the last time, and the results that have come already."""
        made, self._made = self._made, []
        for call in made:
            self._start(call)
        self._end()

    async def asked(self, item: Approval) -> schema.ToolCallUpdate:
        """The call of a question, with the change it would make, and its card."""
        if item.call_id not in self._shown:  # it was made in another process
            self._start(ToolCall(item.call_id, FunctionCall(item.tool, json.dumps(dict(item.arguments)))))
        shown, data, given = self._shown[item.call_id], item.card, item.arguments
        own = item.tool if item.tool in self._tools else ""
        texts = (given["new_text"], given["old_text"]) if own == "fs_edit" else None
        if own == "fs_write" and self._workspace is not None:
            texts = given["content"], await asyncio.to_thread(self._workspace.before, given["path"])
            self._workspace.asked |= {place.path: texts[1] for place in shown.locations or ()}
        content: list[Any] = [acp.tool_diff_content(place.path, *texts) for place in shown.locations or () if texts]
        risk = RiskAssessment(**data["risk_assessment"])
        card = ICERC(data["intent"], data["command"], data["expected_outcome"], risk)
        always = f"*Always* would cover {words(wider)}.\n\n" if (wider := data["grant_description"]) else ""
        content.append(_text(f"{card.markdown(data['reason'])}\n{always}Code: {item.code}"))
        about = shown.model_dump(include={"tool_call_id", "title", "kind", "locations", "raw_input"})
        return schema.ToolCallUpdate(**about, status="pending", content=content)

    def settle(self, call_id: str, *, allowed: bool) -> None:
        """End the question of a tool or a sub-agent, if it was shown; a call of ours ends with its result."""
        if INNER in call_id and (shown := self._shown.pop(call_id, None)) is not None:
            status: schema.ToolCallStatus = "completed" if allowed else "failed"
            self._update(acp.update_tool_call(shown.tool_call_id, status=status))

    def close(self) -> None:
        """End what will not run any more in this prompt."""
        self.announce()
        for shown in self._shown.values():
            self._update(acp.update_tool_call(shown.tool_call_id, status="failed"))
        self._shown.clear()
        self._ended.clear()
        if self._workspace is not None:
            self._workspace.asked.clear()

    def _start(self, call: ToolCall) -> None:
        given, tool, places = call.arguments(), self._tools.get(call.name), list[schema.ToolCallLocation]()
        line = line if isinstance(line := given.get("first_line"), int) else None
        with suppress(ValueError, KeyError):  # no file can have this path, or none is named
            access = tool.workspace_access(given) if tool is not None else None
            root = self._workspace.shown if self._workspace is not None else Path("/")
            paths = access.paths if access is not None else ()
            places = [schema.ToolCallLocation(path=str(root / path), line=line) for path in paths]
        first = next((value.strip() for value in given.values() if isinstance(value, str) and value.strip()), "")
        title = visible(f"{call.name}: {first.splitlines()[0][:60]}" if first else call.name).replace("](", "] (")
        kind: schema.ToolKind = KINDS.get(call.name, "other")
        start = acp.start_tool_call(
            new_id("call"), title, kind=kind, status="in_progress", locations=places, raw_input=given
        )
        self._shown[call.id] = start
        self._update(start)

    def _end(self) -> None:
        for call_id in [call_id for call_id in self._ended if call_id in self._shown]:
            message, shown = self._ended.pop(call_id), self._shown.pop(call_id)
            tool, text, content = self._tools.get(message.name or ""), message.text(), list[Any]()
            changed = self._workspace.written if self._workspace is not None and shown.kind == "edit" else {}
            for place in shown.locations or ():
                if (written := changed.pop(place.path, None)) is not None:
                    content.append(acp.tool_diff_content(place.path, written[1], written[0]))
            shown_text = clipped(tool.shown(text) if tool is not None else text, RESPONSE_CHARS)
            content.append(_text(code(shown_text).text))  # a picture in it must not be loaded
            status: schema.ToolCallStatus = "failed" if message.failed else "completed"
            self._update(acp.update_tool_call(shown.tool_call_id, status=status, content=content))


def _text(text: str) -> schema.ContentToolCallContent:
    return acp.tool_content(acp.text_block(text))
