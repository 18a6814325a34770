"""What a tool receives: the call, where to write, and the caller."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from task.conversation.messages import Attachment, Message, ToolCall
from task.conversation.sinks import ChoiceSink, StageSink
from task.conversation.sources import Sources
from task.errors import new_reference
from task.llm.base import Usage
from task.permissions.decisions import Effect as Effect

TOOLS = "tools"  # the model name for tokens of tools that name no model


class Spend(Protocol):
    """Counts the tokens that a tool's own model used."""

    def __call__(self, usage: Usage, model: str = TOOLS, /) -> None: ...


def _uncounted(usage: Usage, model: str = TOOLS, /) -> None:
    return


@dataclass(frozen=True, slots=True)
class Caller:
    """The person or program a run works for.

    `api_key` is the key or token of this one request; `headers` are forwarded to models and servers (`X-*`,
    `traceparent`); `principal` resolves the stable identity behind the key, once and only where it is needed. `files`
    are the attachments of the conversation's messages, oldest first. A tool that uses a model of its own reports its
    tokens to `spend`: they count for the run.
    """

    api_key: str
    principal: Callable[[], Awaitable[str]]
    conversation_id: str = ""
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    files: tuple[Attachment, ...] = ()
    spend: Spend = _uncounted


async def nobody() -> str:
    """The principal of a caller without an identity."""
    return ""


@dataclass
class ToolCallParams:
    """Everything one execution of a tool receives. Source: API reference, Data Models.

    `arguments` are the parsed, schema-checked arguments of `tool_call`; `BaseTool.execute` sets them if they are None.
    `sources` numbers what the tool finds, for the whole answer.
    `earlier` are the messages of the conversation before the call. After `seconds` the call is stopped.
    `reference` connects a failure of the call to its line in the log.
    """

    tool_call: ToolCall
    stage: StageSink
    choice: ChoiceSink
    api_key: str
    conversation_id: str
    arguments: dict[str, Any] | None = None
    caller: Caller | None = None
    sources: Sources = field(default_factory=Sources)
    seconds: float | None = None
    reference: str = field(default_factory=new_reference)
    earlier: Sequence[Message] = ()


@dataclass(frozen=True, slots=True)
class DownloadedFile:
    """A file's content; `etag` is unquoted, None where Core gave none."""

    name: str
    content: bytes
    content_type: str | None
    etag: str | None
