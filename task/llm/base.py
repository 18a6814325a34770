"""Chat models: a stream of deltas for messages and tool schemas, and its fold into one message."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import add, sub
from typing import Any, Protocol
from uuid import uuid4

import orjson

from task.conversation.messages import Attachment, FunctionCall, Message, Role, ToolCall, frozen_data
from task.errors import ProviderError

ToolSchema = Mapping[str, Any]  # {"type": "function", "function": {name, description, parameters}}


@frozen_data
class TextDelta:
    text: str


@frozen_data
class WeighedText(TextDelta):
    """One token, and the log probabilities of the likeliest tokens at its place."""

    likeliest: Mapping[str, float]

    def nearly(self, token: str, lead: float) -> bool:
        """Whether `token` would be here if its logit were larger by `lead`."""
        chosen = self.likeliest.get(self.text)
        return chosen is not None and self.likeliest.get(token, float("-inf")) + lead >= chosen


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    text: str


@frozen_data
class ToolCallDelta:
    """A fragment of a call as the provider sent it; `arguments` is text or a whole object."""

    index: int | None = None
    id: str | None = None
    name: str | None = None
    arguments: str | dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class FileDelta:
    """A file that the model (a DIAL deployment) attached to its answer."""

    attachment: Attachment


@frozen_data
class Usage:
    """Tokens of one model request.

    `cached_tokens` is the part of the prompt that the provider had cached, `reasoning_tokens` the part of the
    completion that was not shown.
    """

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0

    @property
    def counts(self) -> tuple[int, int, int, int]:
        return self.prompt_tokens, self.completion_tokens, self.cached_tokens, self.reasoning_tokens

    def __add__(self, other: Usage) -> Usage:
        return Usage(*map(add, self.counts, other.counts))

    def __sub__(self, other: Usage) -> Usage:
        return Usage(*map(sub, self.counts, other.counts))


@frozen_data
class Finish:
    """The provider's finish reason: stop, length, tool_calls, content_filter, or its own word."""

    reason: str


@dataclass(frozen=True, slots=True)
class Waiting:
    """What the answer waits for until the next delta, in words: the model is being loaded, others are served first."""

    text: str


@dataclass(frozen=True, slots=True)
class ModelWarning:
    """Something about the request or its answer that users should know and that does not stop it, for the trace."""

    text: str


@dataclass(frozen=True, slots=True)
class DialDelta:
    """DIAL's additions to a piece of an answer: its stages, state and annotations; not validated."""

    content: Mapping[str, Any]


Delta = TextDelta | ReasoningDelta | ToolCallDelta | FileDelta | Usage | Finish | ModelWarning | Waiting | DialDelta


DEMO_NAME = "scripted-demo"  # not a real model
_OF_THEIR_OWN = ("temperature", "top_p", "seed", "reasoning_effort")
_PASSED_ON = (
    *("response_format", "frequency_penalty", "presence_penalty", "parallel_tool_calls", "logit_bias", "user"),
    *("verbosity", "service_tier", "prompt_cache_key", "prompt_cache_options", "safety_identifier", "scrub_pii"),
)
REQUEST_FIELDS = frozenset({*_OF_THEIR_OWN, *_PASSED_ON, "stop", "max_tokens", "max_completion_tokens"})


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """A request's parameters in OpenAI's names; None is not sent, `extra` is sent unchanged."""

    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None
    stop: Sequence[str] | None = None
    seed: int | None = None
    tool_choice: str | Mapping[str, Any] | None = None
    reasoning_effort: str | None = None
    extra: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @classmethod
    def requested(cls, fields: Mapping[str, Any]) -> ModelOptions:
        """The options among the fields of a chat completion's request, the `REQUEST_FIELDS`, at any front door."""
        stop = fields.get("stop")
        return cls(
            **{name: fields.get(name) for name in _OF_THEIR_OWN},
            max_tokens=fields.get("max_completion_tokens") or fields.get("max_tokens"),
            stop=[stop] if isinstance(stop, str) else stop,
            extra={name: fields[name] for name in _PASSED_ON if fields.get(name) is not None},
        )


class ChatModel(Protocol):
    """A model behind some provider.

    Yields deltas as they arrive, in order; a complete stream contains exactly one `Finish`.

    Raises:
        ProviderError: the provider refused, failed, or the stream ended early, which includes without a finish reason.
    """

    @property
    def name(self) -> str: ...

    def stream(
        self, messages: Sequence[Message], tools: Sequence[ToolSchema], options: ModelOptions
    ) -> AsyncGenerator[Delta]: ...


MOST_CALLS, MOST_VALUES = 256, 10_000  # of one answer, and of one call's arguments: others would hold the event loop
_NOT_IN_A_NAME = re.compile(r"[^a-zA-Z0-9_-]")


def new_call_id() -> str:
    """An id for a call that came without one."""
    return f"call_{uuid4().hex[:24]}"


@dataclass(slots=True, eq=False)
class _Call:
    index: int | None
    id: str | None = None
    name: str | None = None
    pieces: list[str] = field(default_factory=list[str])
    last: str = ""  # the last character that is not white space: it spares complete() most attempts to parse

    def complete(self) -> bool:
        """Whether the arguments are complete JSON."""
        if self.last not in ("}", "]", '"'):
            return False
        try:
            orjson.loads("".join(self.pieces))
        except orjson.JSONDecodeError:
            return False
        return True

    def ended_by(self, fragment: ToolCallDelta) -> bool:
        """Whether a fragment starts another call: one without an id, or with this call's, which some servers reuse."""
        if not fragment.name or self.name is None:
            return False
        elsewhere = fragment.index is not None and self.index is not None and fragment.index != self.index
        more = isinstance(fragment.arguments, dict) or bool((fragment.arguments or "").strip())
        says_more = elsewhere or more or not fragment.id
        return fragment.name != self.name or (says_more and self.complete())

    def add(self, fragment: ToolCallDelta) -> None:
        if self.name is None and fragment.name:
            self.name = fragment.name
        if fragment.arguments is None:
            return
        piece = fragment.arguments
        piece = piece if isinstance(piece, str) else json.dumps(piece, ensure_ascii=False)
        self.pieces.append(piece)
        self.last = piece.rstrip()[-1:] or self.last


class Accumulator:
    """One answer of a model, built delta by delta.

    A fragment of a tool call belongs to the call with its id; without an id to the newest call at its index; without
    either to the newest call. It starts a new call if that call is complete or has another name.
    """

    def __init__(self, new_id: Callable[[], str] = new_call_id) -> None:
        self.usage: Usage | None = None
        self.finish_reason: str | None = None
        self.warnings: list[str] = []
        self._new_id = new_id
        self._texts: list[str] = []
        self._reasoning: list[str] = []
        self._attachments: list[Attachment] = []
        self._calls: list[_Call] = []
        self._by_id: dict[str, _Call] = {}
        self._by_index: dict[int, _Call] = {}
        self._current: _Call | None = None

    @property
    def text(self) -> str:
        return "".join(self._texts)

    @property
    def empty(self) -> bool:
        """Whether there is no text, reasoning, call or attachment yet."""
        return not (self._texts or self._reasoning or self._calls or self._attachments)

    def add(self, delta: Delta) -> None:
        if isinstance(delta, TextDelta):  # most of an answer, and a match is slow
            self._texts.append(delta.text)
            return
        match delta:
            case ToolCallDelta():
                self._add_fragment(delta)
            case ReasoningDelta(text):
                self._reasoning.append(text)
            case Usage():
                self.usage = delta
            case Finish(reason):
                self.finish_reason = reason
            case FileDelta(attachment):
                self._attachments.append(attachment)
            case ModelWarning(text):
                self.warnings.append(text)
            case Waiting() | DialDelta():
                pass

    def message(self) -> Message:
        """The answer so far; every call has a unique id and valid JSON arguments, `problem` says what was invalid."""
        finished: dict[str, ToolCall] = {}
        for call in self._calls:
            call.id = call.id or self._new_id()  # kept, so that the message stays the same
            arguments, problem = _parsed("".join(call.pieces), cut_off=self.finish_reason == "length")
            # A name that breaks the pattern would make every later request of the conversation invalid.
            name = _NOT_IN_A_NAME.sub("_", call.name or "unnamed")[:64]
            done = ToolCall(call.id, FunctionCall(name, arguments), problem=problem)
            if finished.get(done.id) == done:
                continue  # the same call sent twice
            if done.id in finished:
                call.id = self._new_id()
                done = replace(done, id=call.id)
            finished[done.id] = done
        return Message(
            Role.ASSISTANT,
            self.text or (None if finished else ""),
            tool_calls=tuple(finished.values()),
            reasoning_content="".join(self._reasoning) or None,
            attachments=tuple(self._attachments),
        )

    def _add_fragment(self, fragment: ToolCallDelta) -> None:
        call = self._by_index.get(fragment.index) if fragment.index is not None else self._current
        if not fragment.id:
            if call is None or call.ended_by(fragment):
                call = self._open(fragment)
        else:
            known = self._by_id.get(fragment.id)
            if known is not None and not known.ended_by(fragment):
                call = known
            elif known is not None or call is None or call.id or call.complete() or call.ended_by(fragment):
                call = self._open(fragment)
            call.id = fragment.id
            self._by_id[fragment.id] = call
        call.add(fragment)
        self._current = call
        if fragment.index is not None:
            self._by_index[fragment.index] = call

    def _open(self, fragment: ToolCallDelta) -> _Call:
        if len(self._calls) == MOST_CALLS:
            raise ProviderError(f"The model asked for more than {MOST_CALLS} calls at once.")
        call = _Call(fragment.index)
        self._calls.append(call)
        return call


def _parsed(raw: str, *, cut_off: bool) -> tuple[str, str | None]:
    text = raw.strip()
    if text in ("", "null"):
        return "{}", None
    outside = "".join(text.replace("\\\\", "").replace('\\"', "").split('"')[::2])  # of strings
    if outside.count(",") + outside.count("{") > MOST_VALUES:
        return "{}", f"The arguments have more than {MOST_VALUES:,} values; ask for less at once."
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        if cut_off:
            size = f"after {len(text)} characters"
            return "{}", f"The arguments were cut off by the length limit {size}; ask for less at once."
        place = f"line {error.lineno} column {error.colno} (character {error.pos} of {len(text)})"
        return "{}", f"The arguments are not valid JSON: {error.msg.split(':')[0]} at {place}."
    if not isinstance(value, dict):
        kinds: dict[type, str] = {list: "an array", str: "a string", bool: "a boolean"}
        return "{}", f"The arguments must be a JSON object, not {kinds.get(type(value), 'a number')}."
    return text, None
