"""What a chat model is: something that streams deltas for messages and tool schemas."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import add, sub
from typing import Any, Protocol

from task.conversation.messages import Attachment, Message

ToolSchema = Mapping[str, Any]  # {"type": "function", "function": {name, description, parameters}}


@dataclass(frozen=True, slots=True)
class TextDelta:
    text: str


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    text: str


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """A fragment of a call as the provider sent it; what is absent is None, `arguments` is text or a whole object."""

    index: int | None = None
    id: str | None = None
    name: str | None = None
    arguments: str | dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class AttachmentDelta:
    """A file that the model (a DIAL deployment) attached to its answer."""

    attachment: Attachment


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one model request; usages are added up over a run.

    `cached_tokens` are those of the prompt that the provider knew already, `reasoning_tokens` those of the completion
    that were not shown.
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
        """The tokens by the model that took them, when the model `asked` was asked."""
        return {asked: self}


@dataclass(frozen=True, slots=True)
class DelegatedUsage(Usage):
    """Tokens of a request to a deployment that tells which models it asked itself; `models` are theirs."""

    models: tuple[tuple[str, Usage], ...] = ()

    def by_model(self, asked: str) -> dict[str, Usage]:
        told: dict[str, Usage] = {}
        for model, usage in self.models:
            told[model] = told.get(model, Usage()) + usage
        unknown = self - sum(told.values(), Usage())
        rest = Usage(*(max(count, 0) for count in unknown.counts))
        return {**told, asked: told.get(asked, Usage()) + rest} if rest != Usage() else told


@dataclass(frozen=True, slots=True)
class Finish:
    """The provider's finish reason: stop, length, tool_calls, content_filter, or its own word."""

    reason: str


Delta = TextDelta | ReasoningDelta | ToolCallDelta | AttachmentDelta | Usage | Finish


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """A request's parameters in OpenAI's names; what is None is not sent. `extra` is sent as it is."""

    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None
    stop: Sequence[str] | None = None
    seed: int | None = None
    tool_choice: str | Mapping[str, Any] | None = None
    reasoning_effort: str | None = None
    extra: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def over(self, **given: Any) -> ModelOptions:
        """These options with those in their place that are given and not None."""
        return replace(self, **{name: value for name, value in given.items() if value is not None})


class ChatModel(Protocol):
    """A model behind some provider.

    Yields deltas as they arrive, in order. A stream that ended well has yielded exactly one Finish.

    Raises:
        ProviderError: the provider refused, failed, or the stream broke off (also without a finish reason).
    """

    @property
    def name(self) -> str: ...

    def stream(
        self, messages: Sequence[Message], tools: Sequence[ToolSchema], options: ModelOptions
    ) -> AsyncGenerator[Delta]: ...
