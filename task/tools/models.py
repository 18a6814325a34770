"""What a tool is given: the call, where to write, and who asks."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from task.conversation.messages import Attachment, ToolCall
from task.conversation.sinks import ChoiceSink, StageSink
from task.llm.base import Usage
from task.permissions.effects import Effect as Effect

TOOLS = "tools"  # stands for the models of tools that name none


class Spend(Protocol):
    """Told the tokens that a tool's own model took, and that model's name."""

    def __call__(self, usage: Usage, model: str = TOOLS, /) -> None: ...


def _uncounted(usage: Usage, model: str = TOOLS, /) -> None:
    """Nobody counts the tokens."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Who a run works for.

    `api_key` is the key or token of this one request; `headers` travel on to models and servers (`X-*`, `traceparent`);
    `principal` gives the stable identity behind the key, asked for once and only when somebody needs it. `files` are
    the attachments of the conversation's messages, oldest first. A tool that asks a model of its own tells `spend` the
    tokens and the model: they belong to the run.
    """

    api_key: str
    principal: Callable[[], Awaitable[str]]
    conversation_id: str = ""
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    files: tuple[Attachment, ...] = ()
    spend: Spend = _uncounted


@dataclass
class ToolCallParams:
    """Everything one execution of a tool gets. Source: API reference, Data Models.

    `arguments` are the parsed, schema-checked arguments of `tool_call`; `BaseTool.execute` fills them in when the
    caller has not.
    """

    tool_call: ToolCall
    stage: StageSink
    choice: ChoiceSink
    api_key: str
    conversation_id: str
    arguments: dict[str, Any] | None = None
    caller: Caller | None = None
