"""What a run is asked to do, as its first event records it so that another process can continue it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from task.conversation.inputs import attachment_note
from task.conversation.messages import Attachment, Message, Role
from task.core_client.models import Caller
from task.llm.base import ModelOptions
from task.permissions.decisions import PermissionMode
from task.store.records import Approval, Session

TITLE_CHARS = 80
_HANDED_OUT = re.compile(r"call_([0-9a-f]{16})_\d+", re.ASCII)


@dataclass(frozen=True, slots=True)
class RunCaller:
    """Whose run it is. `core_key` is the key or token for DIAL Core; `headers` are forwarded."""

    owner: str
    core_key: str = ""
    headers: Mapping[str, str] = field(default_factory=dict[str, str])

    def of_tools(self, conversation_id: str = "", files: Sequence[Attachment] = ()) -> Caller:
        """The same caller as tools and models know it."""

        async def principal() -> str:
            return self.owner

        return Caller(self.core_key, principal, conversation_id, dict(self.headers), tuple(files))


@dataclass(frozen=True, slots=True)
class RunOptions:
    """How to answer. `prompt` is the caller's own system prompt, None where there is none; `persona` is the one chosen,
    empty: that of the settings; `tools` are the caller's functions; `choice` is OpenAI's `tool_choice`; `previous` is
    the response that a response continues; `metadata` is the caller's own, returned as it is; `warnings` name what has
    no effect."""

    door: str
    model: str
    prompt: str | None = None
    model_options: ModelOptions = field(default_factory=ModelOptions)
    tools: tuple[Mapping[str, Any], ...] = ()
    choice: str | Mapping[str, Any] | None = None
    mode: PermissionMode = PermissionMode.DEFAULT
    experiment: str | None = None
    previous: str | None = None
    metadata: Mapping[str, str] = field(default_factory=dict[str, str])
    warnings: tuple[str, ...] = ()
    persona: str = ""

    def as_dict(self) -> dict[str, Any]:
        data = asdict(self)
        return {**data, "options": data.pop("model_options")}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> RunOptions:
        read: dict[str, Any] = {
            "model_options": ModelOptions(**data["options"]),
            "tools": tuple(data["tools"]),
            "mode": PermissionMode(data["mode"]),
            "warnings": tuple(data["warnings"]),
        }
        return cls(**{name: value for name, value in data.items() if name != "options"} | read)


@dataclass(frozen=True, slots=True)
class RunRequest:
    """One run: `history` is the conversation before it, `new` what this request adds to it and to its `session`.

    `files` are the conversation's attachments; `answered` are the decisions about the calls that `history` ends with;
    `resumes` is the run that made these calls. With `again` no run starts: the answer of that run is given again.
    """

    caller: RunCaller
    options: RunOptions
    new: tuple[Message, ...]
    history: tuple[Message, ...] = ()
    session: Session | None = None
    files: tuple[Attachment, ...] = ()
    answered: tuple[Approval, ...] = ()
    resumes: str | None = None
    again: str | None = None

    @classmethod
    def repeat(cls, caller: RunCaller, run_id: str) -> RunRequest:
        """A request that starts nothing: it gets the answer of that run."""
        return cls(caller, RunOptions("", ""), (), again=run_id)


def session_title(messages: Sequence[Message]) -> str:
    """The title of a session that begins with these messages: the user's last text, or the names of its files."""
    message = next((message for message in reversed(messages) if message.role is Role.USER), None)
    if message is None:
        return ""
    written = message.text().removesuffix(attachment_note(message.attachments)).strip()
    return (written or ", ".join(file.title or "file" for file in message.attachments))[:TITLE_CHARS]


def handed_out_id(run_id: str, number: int) -> str:
    """The id of a call that the run hands out to its caller."""
    return f"call_{run_id.removeprefix('run_')}_{number}"


def run_of_call(call_id: str) -> str | None:
    """The run that handed out the call; None where the id is not ours."""
    found = _HANDED_OUT.fullmatch(call_id)
    return f"run_{found[1]}" if found else None
