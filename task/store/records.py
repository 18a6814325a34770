"""What the store returns (sessions, runs, events, approvals, grants, keys), with its ids and its JSON text."""

import base64
import binascii
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from datetime import UTC, datetime
from typing import Any, Generic, Literal, TypeVar

import orjson

from task.conversation.inputs import Answer
from task.conversation.messages import Message, Role
from task.errors import AgentError, InvalidRequest

T = TypeVar("T")
FINISHED = "finished"  # the type of a run's last event
RunKind = Literal["answer", "coding"]
RunStatus = Literal["running", "finished", "limited", "suspended", "cancelled", "failed", "interrupted"]
Origin = Literal["page", "console", "api"]
ApprovalStatus = Literal["waiting", "allowed", "denied", "expired"]
TITLE_LENGTH = 200
ENDING_SECONDS = 40.0  # longer than it takes until a dead process's run is marked


def iso(seconds: float) -> str:
    """A time of the store as ISO 8601 in UTC, with its offset."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")


def new_id(prefix: str, digits: int = 8) -> str:
    """An id such as `sess_1a2b3c4d`."""
    return f"{prefix}_{secrets.token_hex(digits // 2)}"


def json_bytes(value: Any) -> bytes:
    """JSON of data and dataclasses; what cannot be encoded (half a surrogate pair) becomes a question mark."""
    try:
        return orjson.dumps(value)
    except orjson.JSONEncodeError:
        return orjson.dumps(_plain(value))


def packed(value: Any) -> str:
    """The same as text."""
    return json_bytes(value).decode()


def unpacked(text: str) -> Any:
    return orjson.loads(text)


def storable(text: str) -> str:
    """The text as every database takes it: no half surrogate pairs, and spaces for NUL characters."""
    return text.encode("utf-8", "replace").decode().replace("\0", " ")


def short_title(text: str) -> str:
    """The text as the title that the store keeps."""
    return " ".join(storable(text).split())[:TITLE_LENGTH]


def position(cursor: str) -> tuple[float, str]:
    """Time and id of the last row of the page before. Raises `InvalidRequest`: the cursor is not valid."""
    try:
        seconds, _, last = base64.urlsafe_b64decode(cursor.encode("ascii")).decode().partition(" ")
        return float(seconds), last
    except (ValueError, binascii.Error) as error:
        raise InvalidRequest("this cursor is not valid; start again without it") from error


def cursor_after(seconds: float, last: str) -> str:
    """The cursor for the page after the row with this time and id."""
    return base64.urlsafe_b64encode(f"{seconds!r} {last}".encode()).decode()


@dataclass(frozen=True, slots=True)
class Prompt:
    """A text that a user has saved under a name."""

    name: str
    text: str


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """Some rows, newest first; `cursor` is for the next page and None on the last one."""

    items: tuple[T, ...]
    cursor: str | None = None

    @property
    def count(self) -> int:
        return len(self.items)


@dataclass(frozen=True, slots=True)
class Session:
    """A conversation that outlives its requests. `length` counts its messages; `parent` is the session it branched off
    after the `fork` messages that both have, `family` the first one of those that branched off each other.

    `version` grows with every change; `messages` and `traces` are empty in listings. `origin` is where it was started;
    `snippet` is the place that a search has found.
    """

    session_id: str
    owner: str
    started_at: float
    updated_at: float
    ended_at: float | None = None
    title: str = ""
    parent: str | None = None
    version: int = 0
    length: int = 0
    family: str = ""
    fork: int = 0
    messages: tuple[Message, ...] = ()
    traces: tuple[str, ...] = ()
    origin: Origin = "page"
    pinned: bool = False
    snippet: str = ""

    @property
    def status(self) -> Literal["active", "completed"]:
        return "active" if self.ended_at is None else "completed"

    @property
    def visible_messages(self) -> tuple[Message, ...]:
        """The conversation as the user sees it: without calls and their results."""
        return tuple(message for message in self.messages if message.role is not Role.TOOL and message.content)


@dataclass(frozen=True, slots=True)
class SessionFilter:
    """Which sessions are listed: those with all these words, of these origins, only the pinned or only the others;
    with `families` the last used one of each family, unless words are searched for."""

    text: str = ""
    origins: tuple[Origin, ...] | None = None
    pinned: bool | None = None
    families: bool = False


@dataclass(frozen=True, slots=True)
class Versions:
    """The versions of the message at `position`, oldest first, each by the session that was last used of those that
    have it; `shown` is the place of the version that this session has."""

    position: int
    sessions: tuple[str, ...]
    shown: int


@dataclass(frozen=True, slots=True)
class RequestKey:
    """What a client calls a request that it may send again, and a digest of that request."""

    name: str
    digest: str


class AlreadyStarted(AgentError):
    """The run was started before: by the same request, or by another answer to the same question."""

    def __init__(self, run_id: str) -> None:
        super().__init__(f"the run {run_id} has been started already")
        self.run_id = run_id


@dataclass(frozen=True, slots=True)
class Run:
    """One answer, or one coding task in `folder`, in progress or complete. `resumes` is the suspended run that it
    continues; `added` are the messages of a suspended run that has no session. Where `status` is interrupted,
    `ended_at` is the last time at which its process was known to be alive."""

    run_id: str
    owner: str
    status: RunStatus
    started_at: float
    session_id: str | None = None
    trace_id: str | None = None
    experiment: str | None = None
    ended_at: float | None = None
    error: str | None = None
    resumes: str | None = None
    added: tuple[Message, ...] = ()
    kind: RunKind = "answer"
    folder: str | None = None

    @property
    def over(self) -> bool:
        return self.status != "running"


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened in a run; `number` counts from 1 without gaps."""

    number: int
    type: str
    data: Mapping[str, Any]

    def as_dict(self) -> dict[str, Any]:
        return {"id": self.number, "type": self.type, **self.data}


@dataclass(frozen=True, slots=True)
class Approval:
    """A question to the user: may this call run? `card` is the ICERC card as JSON data.

    `code` is what the user answers it with in words (`approve k7f3`).
    """

    approval_id: str
    owner: str
    call_id: str
    tool: str
    arguments: Mapping[str, Any]
    digest: str
    asked_at: float
    expires_at: float
    card: Mapping[str, Any] = field(default_factory=dict[str, Any])
    session_id: str | None = None
    run_id: str | None = None
    status: ApprovalStatus = "waiting"
    answered_at: float | None = None
    answer: Answer | None = None
    code: str = ""


@dataclass(frozen=True, slots=True)
class StoredGrant:
    """A permission that the user gave for longer than one call; `data` is the gate's own description of it."""

    grant_id: str
    owner: str
    data: Mapping[str, Any]
    created_at: float
    session_id: str | None = None
    expires_at: float | None = None


@dataclass(frozen=True, slots=True)
class ApiKey:
    """An API key without its secret. An operator's key reads the data of all owners."""

    key_id: str
    owner: str
    label: str
    operator: bool
    created_at: float
    revoked_at: float | None = None


def _plain(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if is_dataclass(value) and not isinstance(value, type):
        return {item.name: _plain(getattr(value, item.name)) for item in fields(value)}
    if isinstance(value, Mapping):
        return {str(_plain(key)): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, int) and not isinstance(value, bool):
        return value if -(2**63) <= value < 2**64 else str(value)  # orjson knows 64 bits
    return value if isinstance(value, (float, bool, type(None))) else str(value)
