"""Build a run's trace from what the loop tells; nothing here is waited for while an answer is made."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import orjson

from task.conversation.messages import Message, Role, ToolCall
from task.errors import ProviderError
from task.llm.base import ModelOptions, Usage
from task.loop import RunOutcome
from task.permissions.decisions import Allowed, Decision, Deferred, Denied
from task.permissions.icerc import ICERC
from task.store.prices import Price, cost_of
from task.store.trace_records import Trace, TracedCall, TracedDecision, Turn


@dataclass(frozen=True, slots=True)
class TraceStart:
    """What is known when a run begins. `asked` are the request's own messages, `history` counts those before them.

    Without `content` the trace keeps names, sizes, times and tokens only. `parent` is the caller's own trace, as
    `trace_context` gives it.
    """

    owner: str
    door: str
    model: str
    options: ModelOptions = field(default_factory=ModelOptions)
    asked: tuple[Message, ...] = ()
    history: int = 0
    session_id: str | None = None
    run_id: str | None = None
    experiment: str | None = None
    content: bool = True
    parent: Mapping[str, str] = field(default_factory=dict[str, str])
    warnings: tuple[str, ...] = ()


def trace_context(headers: Mapping[str, str]) -> dict[str, str]:
    """The headers that say which trace a request is part of. Source: W3C Trace Context."""
    told = {name.lower(): value for name, value in headers.items()}
    return {name: told[name] for name in ("traceparent", "tracestate") if name in told}


class TraceObserver:
    """Hears a run, and has its trace at any time. `heard` is called at everything that is worth keeping."""

    def __init__(
        self,
        trace_id: str,
        start: TraceStart,
        *,
        prices: Mapping[str, Price] | None = None,
        clock: Callable[[], float] = time.time,
        heard: Callable[[], None] = lambda: None,
    ) -> None:
        self.trace_id = trace_id
        self._start, self._prices, self._clock, self._heard = start, prices or {}, clock, heard
        self._began = clock()
        self._turns = [self._turn(message, self._began) for message in start.asked]
        self._calls: list[TracedCall] = []
        self._decisions: list[TracedDecision] = []
        self._limits: list[str] = []
        self._usage = Usage()
        self._behind: Mapping[str, Usage] = {}
        self._said = ""
        self._end: tuple[float, str, str | None] | None = None

    def model_answered(self, message: Message, usage: Usage, seconds: float) -> None:
        self._usage += usage
        self._said = message.text()
        self._turns.append(self._turn(message, self._clock(), seconds, usage))
        self._heard()

    def call_ended(self, call: ToolCall, message: Message, seconds: float) -> None:
        now, text, kept = self._clock(), message.text(), self._start.content
        arguments = _arguments(call) if kept else {}
        traced = TracedCall(
            call.id, call.name, arguments, text if kept else "", len(text), now - seconds, seconds, message.failed
        )
        self._calls.append(traced)
        self._turns.append(self._turn(message, now, seconds))
        self._heard()

    def decided(self, call: ToolCall, decision: Decision) -> None:
        verdict, reason, by, card = _told(decision)
        kept = self._start.content
        self._decisions.append(
            TracedDecision(
                call.id, call.name, verdict, self._clock(), reason if kept else "", by,
                card.as_dict() if card is not None and kept else None,
            )
        )  # fmt: skip

    def limit_hit(self, limit: str) -> None:
        self._limits.append(limit)

    def run_ended(self, outcome: RunOutcome) -> None:
        self._behind = outcome.behind
        self._usage = outcome.usage - sum(outcome.behind.values(), Usage())
        if outcome.answer.content and outcome.answer.text() != self._said:  # broken off, or said by the loop itself
            self._turns.append(self._turn(outcome.answer, self._clock()))
        limit = f"stopped at {outcome.limit}" if outcome.limit is not None else None
        self.end(outcome.status, outcome.error or limit)

    def in_session(self, session_id: str) -> None:
        """The run was given a session."""
        self._start = replace(self._start, session_id=session_id)

    def end(self, status: str, error: BaseException | str | None = None) -> None:
        """End the trace, unless it has ended."""
        if self._end is None:
            self._end = (self._clock(), status, self._error(error))

    def trace(self) -> Trace:
        """The trace as it is now."""
        start, (at, status, error) = self._start, self._end or (None, "running", None)
        usage = _by_model(start.model, self._usage, self._behind)
        cost = cost_of(start.model, usage, self._prices)
        return Trace(
            self.trace_id, start.owner, start.door, start.model, status, self._began, at,
            tuple(_in_call_order(self._turns)),
            tuple(self._calls), _config(start.options), usage, cost, tuple(self._limits),
            tuple(self._decisions), error, start.session_id, start.run_id, start.experiment, start.history,
            start.content, len(start.asked), start.parent, start.warnings,
        )  # fmt: skip

    def _turn(self, message: Message, at: float, seconds: float | None = None, usage: Usage | None = None) -> Turn:
        kept = self._start.content
        calls = tuple(
            {"id": call.id, "name": call.name, "arguments": call.function.arguments if kept else None}
            for call in message.tool_calls
        )
        answering = message.role is Role.TOOL
        return Turn(
            message.role.value,
            message.content if kept else None,
            at,
            len(message.text()),
            calls,
            message.tool_call_id if answering else None,
            message.name if answering else None,
            seconds,
            usage,
        )

    def _error(self, error: BaseException | str | None) -> str | None:
        if error is None or isinstance(error, str) or self._start.content:
            return str(error) if error is not None else None
        if isinstance(error, ProviderError):  # its words may hold what was asked
            return f"the model failed (status {error.status_code}, code {error.code})"
        return type(error).__name__


def _in_call_order(turns: Sequence[Turn]) -> list[Turn]:
    """The turns with results in the order of their calls: the loop tells them as they come."""
    ordered: list[Turn] = []
    places: dict[str | None, int] = {}
    results: list[Turn] = []
    for turn in turns:
        if turn.role == "tool":
            results.append(turn)
            continue
        ordered += sorted(results, key=lambda result: places.get(result.tool_call_id, 0))
        results = []
        places = {call["id"]: place for place, call in enumerate(turn.tool_calls)}
        ordered.append(turn)
    return ordered + sorted(results, key=lambda result: places.get(result.tool_call_id, 0))


def _told(decision: Decision) -> tuple[str, str, str, ICERC | None]:
    match decision:
        case Allowed(by, card):
            return "allowed", "", by, card
        case Denied(reason):
            return "denied", reason, "", None
        case Deferred(card, _, reason):
            return "deferred", reason, "", card


def _by_model(model: str, own: Usage, behind: Mapping[str, Usage]) -> dict[str, Usage]:
    return {model: own, **behind} | ({model: own + behind[model]} if model in behind else {})


def _arguments(call: ToolCall) -> dict[str, Any]:
    try:
        return orjson.loads(call.function.arguments)
    except orjson.JSONDecodeError:
        return {"raw": call.function.arguments}


def _config(options: ModelOptions) -> dict[str, Any]:
    told = asdict(options)
    extra = told.pop("extra")
    documented = {name: told.pop(name) for name in ("temperature", "top_p", "max_tokens")}
    return {**documented, **{name: value for name, value in told.items() if value is not None}, **extra}
