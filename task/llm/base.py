"""The interface of chat models: a stream of deltas for messages and tool schemas."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import add, sub
from typing import Any, Protocol

from task.conversation.messages import Attachment, Message, frozen_data

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

    def by_model(self, asked: str) -> dict[str, Usage]:
        """The tokens by the model that used them, for a request to the model `asked`."""
        return {asked: self}


@frozen_data
class DelegatedUsage(Usage):
    """Tokens of a request to a deployment that reports the usage of the `models` it called."""

    models: tuple[tuple[str, Usage], ...] = ()

    def by_model(self, asked: str) -> dict[str, Usage]:
        reported: dict[str, Usage] = {}
        for model, usage in self.models:
            reported[model] = reported.get(model, Usage()) + usage
        unknown = self - sum(reported.values(), Usage())
        rest = Usage(*(max(count, 0) for count in unknown.counts))
        return {**reported, asked: reported.get(asked, Usage()) + rest} if rest != Usage() else reported


@dataclass(frozen=True, slots=True)
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


Delta = TextDelta | ReasoningDelta | ToolCallDelta | FileDelta | Usage | Finish | ModelWarning | Waiting


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
