"""What a run is asked to do, as its first event records it so that another process can continue it, and what has become
of it: its state is a fold over its events."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter

from task.conversation.inputs import attachment_note
from task.conversation.messages import Attachment, Message, Role, SentCall, frozen_data, repaired, unanswered
from task.core_client.models import Caller
from task.errors import InvalidRequest, NotFound, with_reference
from task.llm.base import ModelOptions
from task.permissions.decisions import PermissionMode
from task.store.records import Approval, Event, Run, Session

if TYPE_CHECKING:
    from task.store.store import Store

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


@frozen_data
class RunOptions:
    """How to answer. `prompt` is the caller's own system prompt, None where there is none; `persona` is the one chosen,
    empty: that of the settings; `tools` are the caller's functions; `choice` is OpenAI's `tool_choice`; `previous` is
    the response that a response continues; `metadata` is the caller's own, returned as it is; `warnings` name what has
    no effect; `skills` are those that the user picked for the newest message."""

    door: str
    model: str
    prompt: str | None = None
    model_options: ModelOptions = field(default_factory=ModelOptions)
    tools: tuple[Mapping[str, object], ...] = ()
    choice: str | Mapping[str, Any] | None = None
    mode: PermissionMode = PermissionMode.DEFAULT
    experiment: str | None = None
    previous: str | None = None
    metadata: Mapping[str, str] = field(default_factory=dict[str, str])
    warnings: tuple[str, ...] = ()
    persona: str = ""
    skills: tuple[str, ...] = ()

    @classmethod
    async def of_run(cls, store: Store, owner: str, run_id: str) -> RunOptions:
        """The options of a run, for the one that continues it.

        Raises:
            NotFound: the owner has no such run.
        """
        async for event in store.runs.events_after(owner, run_id):
            if event.type == "started":
                # The choice of a tool and the skills are for the first run only.
                return replace(_OPTIONS.validate_python(event.data["request"]), choice=None, skills=())
        raise NotFound(f"there is no run {run_id!r}")


_OPTIONS = TypeAdapter(RunOptions)


@frozen_data
class RunRequest:
    """One run: `history` is the conversation before it, `new` what this request adds to it and to its `session`.

    `answered` are the decisions about the calls that `history` ends with; `resumes` is the run that made these calls.
    With `again` no run starts: the answer of that run is given again.
    """

    caller: RunCaller
    options: RunOptions
    new: tuple[Message, ...]
    history: tuple[Message, ...] = ()
    session: Session | None = None
    answered: tuple[Approval, ...] = ()
    resumes: str | None = None
    again: str | None = None

    @classmethod
    def repeat(cls, caller: RunCaller, run_id: str) -> RunRequest:
        """A request that starts nothing: it gets the answer of that run."""
        return cls(caller, RunOptions("", ""), (), again=run_id)

    @property
    def conversation(self) -> tuple[Message, ...]:
        return (*self.history, *self.new)

    @property
    def files(self) -> tuple[Attachment, ...]:
        """The files of the user's messages."""
        users = (message for message in self.conversation if message.role is Role.USER)
        return tuple(item for message in users for item in message.attachments)


BROKEN_OFF = "The answer was interrupted."
UNAVAILABLE = 503  # the process went away: no fault of the request, and none of the product


@dataclass(slots=True)
class RunState:
    """A run up to its latest event.

    `calls` are handed out to the caller, `question` is the text that asks the user about others, `attachments` belong
    to the answer itself. `usage` and `failure` are the data of their events; `finish_reason` is OpenAI's, None where
    the run has failed. `start` and `end` count the messages of the conversation before and after the run.
    """

    run: Run
    options: RunOptions
    question: str = ""
    calls: list[SentCall] = field(default_factory=list[SentCall])
    attachments: list[dict[str, str]] = field(default_factory=list[dict[str, str]])
    usage: Mapping[str, object] | None = None
    failure: Mapping[str, Any] | None = None
    finish_reason: str | None = None
    start: int = 0
    end: int | None = None
    _pieces: list[str] = field(default_factory=list[str])

    @property
    def ids(self) -> dict[str, str | None]:
        return {"session_id": self.run.session_id, "run_id": self.run.run_id, "trace_id": self.run.trace_id}

    @property
    def failed(self) -> bool:
        """Whether the run has ended without an answer."""
        return self.failure is not None and self.finish_reason is None

    @property
    def answer(self) -> str:
        """The whole answer, with a question about waiting calls."""
        return "\n\n".join(filter(None, (self.written, self.question)))

    @property
    def written(self) -> str:
        """The text so far, without a question about waiting calls."""
        return "".join(self._pieces)

    def apply(self, event: Event) -> None:
        """Add the next event."""
        data = event.data
        match event.type:
            case "text":
                self._pieces.append(data["text"])
            case "started":
                self.start = data["messages"]
            case "approval":
                self.question = data["text"]
            case "tool_calls":
                self.calls = data["tool_calls"]
            case "attachment" if data["stage"] is None:
                self.attachments.append(data["attachment"])
            case "usage":
                self.usage = data
            case "error":
                self.failure = data
            case "finished":
                self.run = replace(self.run, status=data["status"], session_id=data["session_id"])
                self.finish_reason, self.end = data.get("finish_reason"), data.get("messages")
            case _:
                pass

    def fail(self, failure: Mapping[str, object]) -> None:
        """The run has failed after its last event: it could not be stored."""
        self.failure, self.finish_reason = failure, None


def state_of(run: Run, events: Iterable[Event]) -> RunState | None:
    """The state of a stored run; None where none of its events was stored.

    A run whose process died has no last event; its status is in its row.
    """
    found = list(events)
    started = bool(found) and found[0].type == "started"
    if not started and run.status != "interrupted":
        return None
    # A process may die before the first event is stored; a client that asks again is to learn that.
    state = RunState(run, _OPTIONS.validate_python(found[0].data["request"]) if started else RunOptions("", ""))
    for event in found:
        state.apply(event)
    if run.over:
        state.run = run
    if run.status == "interrupted":
        error = {"message": BROKEN_OFF, "type": "api_error", "param": None, "code": run.status, "reference": run.run_id}
        shown = {**error, "display_message": with_reference(BROKEN_OFF, run.run_id)}
        state.fail(state.failure or {"error": shown, "status": UNAVAILABLE})
    return state


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


async def restored(
    store: Store, owner: str, sent: Sequence[Message]
) -> tuple[tuple[Message, ...], tuple[Message, ...]]:
    """The conversation that a client keeps itself, with our own calls in it, `parted`."""
    makers = [next(filter(None, (run_of_call(call.id) for call in item.tool_calls)), None) for item in sent]
    kept = await store.runs.added(owner, list(dict.fromkeys(filter(None, makers))))
    messages: list[Message] = []
    for message, made_by in zip(sent, makers, strict=True):
        # A caller was sent only the calls of its own tools: here are ours of the same run.
        messages += kept.get(made_by or "") or (message,)
    # Calls that are not the caller's stay open when its results have come.
    theirs = next((message.tool_calls for message in reversed(sent) if message.tool_calls), ())
    ours = {call.id for call in unanswered(messages)} - {call.id for call in theirs}
    return parted(repaired(messages, ours))


def parted(messages: Sequence[Message]) -> tuple[tuple[Message, ...], tuple[Message, ...]]:
    """What came before, and the last message or the results at the end.

    Raises:
        InvalidRequest: there is no such message.
    """
    if not messages or messages[-1].role is Role.ASSISTANT:
        raise InvalidRequest("The last message is the result of a call that no message before it makes.")
    results = list(takewhile(lambda message: message.role is Role.TOOL, reversed(messages)))
    start = len(messages) - (len(results) or 1)
    return tuple(messages[:start]), tuple(messages[start:])
