"""The caller a run works for, and a file that was read with the caller's key."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from task.conversation.messages import Attachment
from task.llm.base import Usage

TOOLS = "tools"  # the model name for tokens of tools that name no model


class Spend(Protocol):
    """Counts the tokens that a tool's own model used."""

    def __call__(self, usage: Usage, model: str = TOOLS, /) -> None: ...


@dataclass(frozen=True, slots=True)
class Caller:
    """The user or program a run works for.

    `api_key` is the key or token of this one request; `headers` are forwarded to models and servers (`X-*`,
    `traceparent`); `principal` resolves the stable identity behind the key, once and only where it is needed. `files`
    are the attachments of the conversation's messages, oldest first. `application` is the id of the application in DIAL
    that the run is of, or empty. A tool that uses a model of its own reports its
    tokens to `spend`: they count for the run.
    """

    api_key: str
    principal: Callable[[], Awaitable[str]]
    conversation_id: str = ""
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    files: tuple[Attachment, ...] = ()
    application: str = ""
    spend: Spend = lambda _usage, _model=TOOLS, /: None


async def nobody() -> str:
    """The principal of a caller without an identity."""
    return ""


@dataclass(frozen=True, slots=True)
class DownloadedFile:
    """A file's content; `etag` is unquoted, None where Core gave none."""

    name: str
    content: bytes
    content_type: str | None
    etag: str | None
