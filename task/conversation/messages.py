"""Chat messages in OpenAI's shape, as frozen data, and how a list of them becomes valid for a model."""

import json
import re
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import chain
from operator import attrgetter
from typing import Any, Literal, Self, TypedDict, TypeVar, dataclass_transform

from pydantic import JsonValue

T = TypeVar("T")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def frozen_data(cls: type[T]) -> type[T]:
    """A dataclass with slots, compared and hashed by its fields, that only type checkers treat as frozen.

    Python's frozen dataclasses set each field through a call, so that a message takes five times as long to make; a
    request with a long history makes hundreds of them.
    """
    return dataclass(slots=True, unsafe_hash=True)(cls)


class Role(StrEnum):
    SYSTEM = "system"
    DEVELOPER = "developer"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"


INSTRUCTIONS = (Role.SYSTEM, Role.DEVELOPER)
ANSWERING = (Role.ASSISTANT, Role.TOOL)


class SentCall(TypedDict):
    """A call in OpenAI's format."""

    id: str
    type: Literal["function"]
    function: dict[str, str]


@frozen_data
class FunctionCall:
    """The function part of a call; `arguments` is always valid JSON text of an object."""

    name: str
    arguments: str = "{}"


@frozen_data
class ToolCall:
    """One call that the model requests; `problem` says what was wrong with its raw arguments, if anything."""

    id: str
    function: FunctionCall
    type: Literal["function"] = "function"
    problem: str | None = None

    @property
    def name(self) -> str:
        return self.function.name

    def as_dict(self) -> SentCall:
        function = {"name": self.function.name, "arguments": self.function.arguments}
        return {"id": self.id, "type": "function", "function": function}

    def texts(self) -> list[str]:
        """The text of each argument; JSON for what is not text."""
        return [_text_of(value) for value in self.arguments().values()]

    def with_texts(self, change: Callable[[str], str]) -> Self:
        """The call with each of its `texts` changed."""
        texts = {name: (_text_of(value), value) for name, value in self.arguments().items()}
        changed = {name: value if (new := change(text)) == text else new for name, (text, value) in texts.items()}
        return replace(self, function=FunctionCall(self.name, json.dumps(changed, ensure_ascii=False)))

    def arguments(self) -> dict[str, JsonValue]:
        """The arguments by name; text that is not an object is the only one."""
        found: JsonValue = None
        with suppress(ValueError, RecursionError):  # in a history that a caller sends
            found = json.loads(self.function.arguments)
        return found if isinstance(found, dict) else {"arguments": self.function.arguments}


def _text_of(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


_ATTACHMENTS = attrgetter("attachments")
CUT = "[cut: "  # begins each note in a result or an argument whose text was left out
SHOWN_AGAIN = "[Pictures of your answer before this message. The user did not attach them.]"  # ends the user's own text
FOLDER = "application/vnd.dial.metadata+json"  # the type of a folder, `metadata/files/{bucket}/{path}/`
PICTURES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})  # no provider takes others, such as SVG


@dataclass(frozen=True, slots=True)
class Attachment:
    """A DIAL attachment: exactly one of `data` and `url`."""

    type: str | None = None
    title: str | None = None
    data: str | None = None
    url: str | None = None
    reference_url: str | None = None
    reference_type: str | None = None

    @property
    def quoted(self) -> str:
        """Text that models read in the message itself: from outside, not the user's words; empty for files."""
        is_text = re.match(r"text/|application/json\b", self.type or "text/markdown")
        return (self.data or "") if is_text else ""

    @property
    def is_picture(self) -> bool:
        """Whether models that see pictures take it."""
        return self.type in PICTURES

    @property
    def is_stored_picture(self) -> bool:
        """Whether it is such a picture and a file in DIAL."""
        return self.is_picture and (self.url or "").startswith("files/")

    @classmethod
    def of(cls, item: Any) -> Self:
        """One of the DIAL SDK."""
        return cls(item.type, item.title, item.data, item.url, item.reference_url, item.reference_type)

    def as_dict(self) -> dict[str, str]:
        return {name: value for name in self.__slots__ if (value := getattr(self, name)) is not None}


@dataclass(frozen=True, slots=True)
class CustomContent:
    """DIAL's additions to a message."""

    attachments: tuple[Attachment, ...]


@frozen_data
class Message:
    """One chat message. `content` is text, a list of OpenAI content parts, or None beside tool calls. `attachments` are
    the files beside it, of which models get those that they can use.

    `failed` marks a tool message that reports a failure, `unsourced` an assistant's message whose tool results are not
    in the conversation, or others' words in the result of a tool of our own; neither is ever sent. `scrub_pii`:
    personal data is removed from what the model reads, where its provider can do that. `memo` is what the tool of a
    tool message needs in its later calls: stored, never sent. `interim`: the tool message is not the call's result, but
    what its tool has done so far.
    `place` is the index of the request's message that it is, where a door needs to know.
    """

    role: Role
    content: str | list[dict[str, Any]] | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    name: str | None = None
    reasoning_content: str | None = None
    attachments: tuple[Attachment, ...] = ()
    failed: bool = False
    unsourced: bool = False
    scrub_pii: bool = False
    memo: str = ""
    interim: bool = False
    place: int = field(default=-1, compare=False)

    @property
    def custom_content(self) -> CustomContent | None:
        """The documented place of a tool's attachments."""
        return CustomContent(self.attachments) if self.attachments else None

    def text(self) -> str:
        """The message's text; the text parts joined if content is a list."""
        if isinstance(self.content, str):
            return self.content
        return "\n".join(str(part.get("text", "")) for part in self.content or () if part.get("type") == "text")

    def as_dict(self) -> dict[str, object]:
        """The message in OpenAI's format, without nulls and without DIAL's additions."""
        calls, content = self.tool_calls, self.content
        wire: dict[str, object] = {"role": str(self.role)}  # `.value` costs two calls per message and request
        if content is not None or not calls:
            wire["content"] = content if content is not None else ""
        if calls:
            wire["tool_calls"] = [call.as_dict() for call in calls]
        if self.tool_call_id is not None:
            wire["tool_call_id"] = self.tool_call_id
        if self.name is not None:
            wire["name"] = self.name
        return wire

    def as_stored(self) -> dict[str, object]:
        """The message in OpenAI's format with our own fields added; `message_from` reads it."""
        data = self.as_dict()
        if self.attachments:
            data["attachments"] = [attachment.as_dict() for attachment in self.attachments]
        for name in ("reasoning_content", "failed", "unsourced", "scrub_pii", "memo", "interim"):
            if value := getattr(self, name):
                data[name] = value
        return data


def attached(messages: Iterable[Message]) -> Iterator[Attachment]:
    """The files beside the messages, in their order."""
    return chain.from_iterable(map(_ATTACHMENTS, messages))


def system(text: str) -> Message:
    return Message(Role.SYSTEM, text)


def user(content: str | list[dict[str, Any]]) -> Message:
    return Message(Role.USER, content)


def assistant(text: str | None = None, calls: Sequence[ToolCall] = ()) -> Message:
    return Message(Role.ASSISTANT, text, tool_calls=tuple(calls))


def tool_message(call: ToolCall, text: str, *, failed: bool = False) -> Message:
    """The answer to `call`."""
    return Message(Role.TOOL, text, tool_call_id=call.id, name=call.function.name, failed=failed)


TOOL_RESULT = "tool_result"  # the framework's name for the role `tool`


def message_from(data: Mapping[str, Any]) -> Message:
    """The message from its `as_stored`, or from the framework's documented form.

    Raises:
        KeyError, TypeError, ValueError: it is neither.
    """
    role = Role.TOOL if data["role"] == TOOL_RESULT else Role(data["role"])
    content = data.get("content")
    if content is not None and type(content) not in (str, list):
        raise TypeError("the content of a message is text or a list of parts")
    if role is Role.TOOL and not (isinstance(data["tool_call_id"], str) and data["tool_call_id"]):
        raise TypeError("a tool's result names its call")
    calls = [(str(item["id"]), item["function"]) for item in data.get("tool_calls") or ()]
    return Message(
        role,
        content or None if calls else content,
        tool_calls=tuple(ToolCall(id, FunctionCall(str(made["name"]), str(made["arguments"]))) for id, made in calls),
        tool_call_id=data.get("tool_call_id"),
        name=data.get("tool_name") or data.get("name"),
        reasoning_content=data.get("reasoning_content"),
        attachments=tuple(Attachment(**item) for item in data.get("attachments", ())),
        failed=data.get("failed", False),
        unsourced=data.get("unsourced", False),
        scrub_pii=bool(data.get("scrub_pii")),
        memo=str(data.get("memo") or ""),
        interim=bool(data.get("interim")),
    )


INTERRUPTED = "Error: this call was interrupted and has no result. Call the tool again if its result is still needed."
NOT_APPROVED = (
    "Error: the user was asked whether this call may run and did not approve it, so it did not run. Their next message "
    "says what they want instead."
)
PERHAPS_RUN = (
    "Error: the user approved this call, but the answer was interrupted before its result was saved. It may have run: "
    "check whether it did before you call it again."
)

_ASSISTANT, _TOOL = Role.ASSISTANT, Role.TOOL  # enum members are slow to look up, and histories are long


def repaired(
    messages: Sequence[Message], pending: Collection[str] = (), missing: Mapping[str, str] | None = None
) -> list[Message]:
    """The messages with every tool call answered exactly once, directly after it and in call order.

    An unanswered call gets the result that `missing` has for its id, else "interrupted", unless its id is in `pending`:
    then its interim messages stay;
    a tool message without a call and an assistant message without text and calls are left out; ids that repeat within
    one message become unique.
    """
    result, answers = list[Message](), list[Message]()
    asking: Message | None = None  # the message whose calls the next results answer
    for message in messages:
        role = message.role
        if role is _TOOL:
            answers.append(message)
            continue
        if asking is not None:
            result += _paired(asking, answers, pending, missing or {})
            asking = None
        if answers:
            answers = []
        if role is not _ASSISTANT or (message.content and not message.tool_calls):
            result.append(message)
        elif message.tool_calls:
            asking = message
    return result if asking is None else result + _paired(asking, answers, pending, missing or {})


def _paired(
    message: Message, answers: Sequence[Message], pending: Collection[str], missing: Mapping[str, str]
) -> list[Message]:
    ids, results = [call.id for call in message.tool_calls], [answer for answer in answers if not answer.interim]
    if ids == [result.tool_call_id for result in results] and len(set(ids)) == len(ids):
        return [message, *results]
    waiting: defaultdict[str | None, deque[Message]] = defaultdict(deque)
    for result in results:
        waiting[result.tool_call_id].append(result)
    calls, results = dict[str, ToolCall](), list[Message]()
    for call in message.tool_calls:
        unique, number = call.id, 2
        while unique in calls:
            unique, number = f"{call.id}_{number}", number + 1
        calls[unique] = call if unique == call.id else replace(call, id=unique)
        if found := waiting[call.id]:
            results.append(replace(found.popleft(), tool_call_id=unique))
        elif unique in pending:
            results += [answer for answer in answers if answer.interim and answer.tool_call_id == unique]
        else:
            results.append(tool_message(calls[unique], missing.get(unique, INTERRUPTED), failed=True))
    return [replace(message, tool_calls=tuple(calls.values())), *results]


def interrupted(added: Sequence[Message], pending: Collection[str] = ()) -> tuple[Message, ...]:
    """What a turn that broke off has added, each of its calls answered; results in front answer earlier calls."""
    results = next((place for place, message in enumerate(added) if message.role is not _TOOL), len(added))
    return (*added[:results], *repaired(added[results:], pending))


def unanswered(messages: Sequence[Message]) -> tuple[ToolCall, ...]:
    """The calls at the end of the conversation that have no result yet, in call order."""
    place = len(messages) - 1
    while place >= 0 and messages[place].role is _TOOL:
        place -= 1
    calls = messages[place].tool_calls if place >= 0 else ()
    answered = {answer.tool_call_id for answer in messages[place + 1 :] if not answer.interim}
    return tuple(call for call in calls if call.id not in answered)


def with_turn(history: Sequence[Message], answer: str) -> list[Message]:
    """One past turn: its saved tool history, then the final answer.

    The chat keeps all text of a turn as one string; text that the saved history contains already is removed from its
    beginning, so that the model does not read it twice.
    """
    rest = answer
    for message in history:
        text = message.content if message.role is Role.ASSISTANT and isinstance(message.content, str) else ""
        if text and rest.startswith(text):
            rest = rest[len(text) :].lstrip("\n")
    final = [Message(Role.ASSISTANT, rest)] if rest or not history else []
    return [*history, *final]
