"""What a run did and what it cost, as frozen data and in the documented shape."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from task.conversation.messages import Message, Role
from task.llm.base import ModelOptions, Usage
from task.store.records import iso

CUT = 200  # characters of a result in the documented list of calls
PRICED_TOKENS = 1_000_000


@dataclass(frozen=True, slots=True)
class TracedTurn:
    """A message of the run. `size` counts its characters; `content` and `arguments` are None where they are not kept.

    `tool_calls` are flat: `{id, name, arguments}`, the arguments as JSON text. `seconds` is what the model or the tool
    took, before `at`; `usage` the tokens of the request that gave an assistant's turn.
    """

    role: str
    content: Any
    at: float
    size: int = 0
    tool_calls: tuple[Mapping[str, Any], ...] = ()
    tool_call_id: str | None = None
    name: str | None = None
    seconds: float | None = None
    usage: Usage | None = None

    @classmethod
    def of(
        cls, message: Message, at: float, seconds: float | None = None, usage: Usage | None = None, *, content: bool
    ) -> TracedTurn:
        """The turn of a message, without its texts unless `content`."""
        calls = tuple(
            {"id": call.id, "name": call.name, "arguments": call.function.arguments if content else None}
            for call in message.tool_calls
        )
        result = message.role is Role.TOOL
        return cls(
            message.role.value, message.content if content else None, at, len(message.text()), calls,
            message.tool_call_id if result else None, message.name if result else None, seconds, usage,
        )  # fmt: skip

    def as_dict(self) -> dict[str, Any]:
        shape: dict[str, Any] = {"role": self.role, "content": self.content, "timestamp": iso(self.at)}
        if self.role == "assistant":
            shape["tool_calls"] = [dict(call) for call in self.tool_calls] or None
        if self.tool_call_id is not None:
            shape |= {"name": self.name, "tool_call_id": self.tool_call_id}
        if self.seconds is not None:
            shape["duration_ms"] = _milliseconds(self.seconds)
        if self.usage is not None:
            shape["usage"] = asdict(self.usage)
        return {**shape, "size": self.size}


@dataclass(frozen=True, slots=True)
class TracedCall:
    """A tool call; `result` is whole where the trace was read on its own, and cut in listings."""

    call_id: str
    name: str
    arguments: Mapping[str, Any]
    result: str
    result_length: int
    at: float
    seconds: float
    failed: bool = False

    def as_dict(self, trace_id: str, position: int) -> dict[str, Any]:
        cut = self.result if len(self.result) <= CUT else f"{self.result[:CUT]}..."
        return {
            "id": self.call_id,
            "name": self.name,
            "arguments": dict(self.arguments),
            "result": cut,
            "full_result_length": self.result_length,
            "full_result": f"/traces/{trace_id}/calls/{position}",
            "duration_ms": _milliseconds(self.seconds),
            "timestamp": iso(self.at),
            "failed": self.failed,
        }


@dataclass(frozen=True, slots=True)
class TracedDecision:
    """What the gate decided about a call: allowed, denied or deferred.

    `by` names the rule or the grant, `card` is what a person was shown.
    """

    call_id: str
    tool: str
    verdict: str
    at: float
    reason: str = ""
    by: str = ""
    card: Mapping[str, Any] | None = None

    def as_dict(self) -> dict[str, Any]:
        return {
            "call_id": self.call_id,
            "tool": self.tool,
            "verdict": self.verdict,
            "reason": self.reason,
            "by": self.by,
            "card": dict(self.card) if self.card is not None else None,
            "timestamp": iso(self.at),
        }


@dataclass(frozen=True, slots=True)
class Trace:
    """What one run did. Times are seconds since 1970; `cost` is None where no price is known.

    `usage` is by model, including models behind tools; "tools" sums what tools used without naming a model. `history`
    counts the messages before the run's own, `asked` the turns that came with the request; without `content` only
    names, sizes, times and tokens are kept. `warnings` list what in the request had no effect. `parent`, the caller's
    own trace, is for spans and is not stored.
    """

    trace_id: str
    owner: str
    door: str
    model: str
    status: str
    started_at: float
    completed_at: float | None = None
    turns: tuple[TracedTurn, ...] = ()
    tool_calls: tuple[TracedCall, ...] = ()
    config: Mapping[str, Any] = field(default_factory=dict[str, Any])
    usage: Mapping[str, Usage] = field(default_factory=dict[str, Usage])
    cost: float | None = None
    limits: tuple[str, ...] = ()
    decisions: tuple[TracedDecision, ...] = ()
    error: str | None = None
    session_id: str | None = None
    run_id: str | None = None
    experiment: str | None = None
    history: int = 0
    content: bool = True
    asked: int = 0
    parent: Mapping[str, str] = field(default_factory=dict[str, str], compare=False)
    warnings: tuple[str, ...] = ()

    @property
    def total_tokens(self) -> int:
        return sum(usage.prompt_tokens + usage.completion_tokens for usage in self.usage.values())

    def as_dict(self) -> dict[str, Any]:
        """The documented shape, and what we add to it."""
        return {
            **self.as_row(),
            "turns": [turn.as_dict() for turn in self.turns],
            "tool_calls": [call.as_dict(self.trace_id, number) for number, call in enumerate(self.tool_calls)],
            "config": {"model": self.model, **self.config},
            "usage": {model: asdict(usage) for model, usage in self.usage.items()},
            "limits": list(self.limits),
            "warnings": list(self.warnings),
            "decisions": [decision.as_dict() for decision in self.decisions],
            "history": self.history,
            "asked": self.asked,
            "content": self.content,
        }

    def as_row(self) -> dict[str, Any]:
        """The trace in a short listing."""
        seconds = None if self.completed_at is None else self.completed_at - self.started_at
        return {
            "trace_id": self.trace_id,
            "started_at": iso(self.started_at),
            "completed_at": iso(self.completed_at) if self.completed_at is not None else None,
            "duration_ms": _milliseconds(seconds) if seconds is not None else None,
            "status": self.status,
            "model": self.model,
            "door": self.door,
            "session_id": self.session_id,
            "run_id": self.run_id,
            "experiment": self.experiment,
            "total_tokens": self.total_tokens,
            "cost": self.cost,
            "error": self.error,
        }


@dataclass(frozen=True, slots=True)
class Price:
    """What a million tokens cost, of the prompt and of the answer, in one currency."""

    prompt: float
    completion: float

    def of(self, usage: Usage) -> float:
        return (usage.prompt_tokens * self.prompt + usage.completion_tokens * self.completion) / PRICED_TOKENS


def cost_of(model: str, usage: Mapping[str, Usage], prices: Mapping[str, Price]) -> float | None:
    """The cost of one run's tokens by model; None when the run's own `model` has no price.

    Tokens of a model behind a tool cost what that model costs, or what the run's model costs where no price is known.
    """
    own = prices.get(model)
    if own is None:
        return None
    return round(sum(prices.get(name, own).of(used) for name, used in usage.items()), 9)


def config_of(options: ModelOptions) -> dict[str, Any]:
    """The options of a run as its trace shows them: the documented ones always, others where they are set."""
    config = asdict(options)
    extra = config.pop("extra")
    documented = {name: config.pop(name) for name in ("temperature", "top_p", "max_tokens")}
    return {**documented, **{name: value for name, value in config.items() if value is not None}, **extra}


def _milliseconds(seconds: float) -> float:
    return round(seconds * 1000, 3)
