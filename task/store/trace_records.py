"""What a run did, as frozen data, and its documented shape."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from task.llm.base import Usage
from task.store.records import iso

CUT = 200  # characters of a result in the documented list of calls


@dataclass(frozen=True, slots=True)
class Turn:
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

    def as_dict(self) -> dict[str, Any]:
        told: dict[str, Any] = {"role": self.role, "content": self.content, "timestamp": iso(self.at)}
        if self.role == "assistant":
            told["tool_calls"] = [dict(call) for call in self.tool_calls] or None
        if self.tool_call_id is not None:
            told |= {"name": self.name, "tool_call_id": self.tool_call_id}
        if self.seconds is not None:
            told["duration_ms"] = _milliseconds(self.seconds)
        if self.usage is not None:
            told["usage"] = asdict(self.usage)
        return {**told, "size": self.size}


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

    `usage` is by model, those behind tools too; under "tools" stands what tools took without naming a model. `history`
    counts the messages before the run's own, `asked` the turns that the request brought; without `content` only names,
    sizes, times and tokens are kept. `warnings` say what of the request had no effect. `parent`, the caller's own
    trace, is for spans and is not stored.
    """

    trace_id: str
    owner: str
    door: str
    model: str
    status: str
    started_at: float
    completed_at: float | None = None
    turns: tuple[Turn, ...] = ()
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


def _milliseconds(seconds: float) -> float:
    return round(seconds * 1000, 3)
