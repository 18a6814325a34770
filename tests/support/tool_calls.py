"""Calls of one tool, with a stage that remembers what was written into it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from task.conversation.messages import FunctionCall, Message, ToolCall
from task.tools.base import BaseTool
from task.tools.models import ToolCallParams


@dataclass
class RecordedStage:
    """A stage or a choice: its text, attachments, sub-stages and state, as they were written."""

    name: str | None = None
    text: str = ""
    status: str | None = None
    attachments: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    stages: list[RecordedStage] = field(default_factory=list["RecordedStage"])
    state: dict[str, Any] = field(default_factory=dict[str, Any])

    def open(self) -> None: ...

    def close(self, status: Any = "completed") -> None:
        self.status = str(status)

    def append_name(self, name: str) -> None:
        self.name = (self.name or "") + name

    def append_content(self, content: str) -> None:
        self.text += content

    def append_reasoning_content(self, content: str) -> None:
        self.text += content

    def add_attachment(self, **attachment: Any) -> None:
        self.attachments.append(attachment)

    def create_stage(self, name: str | None = None) -> RecordedStage:
        self.stages.append(RecordedStage(name))
        return self.stages[-1]

    def set_state(self, state: dict[str, Any]) -> None:
        self.state = state


def call_of(name: str, arguments: dict[str, Any] | str) -> ToolCall:
    """A call with the given arguments, or with this very text in their place."""
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return ToolCall("call_1", FunctionCall(name, text))


def params_of(call: ToolCall, *, api_key: str = "key", stage: RecordedStage | None = None) -> ToolCallParams:
    return ToolCallParams(call, stage or RecordedStage(), RecordedStage(), api_key, "conversation")


async def called(
    tool: BaseTool, *, api_key: str = "key", stage: RecordedStage | None = None, **arguments: Any
) -> Message:
    """The tool's answer to a call with these arguments."""
    return await tool.execute(params_of(call_of(tool.name, arguments), api_key=api_key, stage=stage))
