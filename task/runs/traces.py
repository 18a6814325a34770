"""Build a run's trace from what its loop reports, without delaying the answer."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import field, replace
from functools import partial
from typing import TYPE_CHECKING

import orjson

from task.conversation.inner import INNER
from task.conversation.messages import Message, Role, ToolCall, frozen_data
from task.errors import ProviderError, reference_of, with_reference
from task.llm.base import ModelOptions, Usage
from task.loop import LoopObserver, RunOutcome
from task.permissions.decisions import Allowed, Decision, Deferred, Denied
from task.store.access import StoreAccess
from task.store.records import new_id
from task.store.trace_records import Trace, TracedCall, TracedDecision, TracedTurn, config_of, cost_of, usage_by_model
from task.telemetry.operations import CORE_TRACES

if TYPE_CHECKING:
    from task.store.traces import Traces

logger = logging.getLogger(__name__)

CHECKPOINT_SECONDS = 1.0
QUESTION_CHARS = 2000


@frozen_data
class TraceStart:
    """What is known when a run starts. `asked` are the request's own messages, `history` counts those before them.

    Without `content` the trace keeps names, sizes, times and tokens only. `question` is the user's last message where
    `asked` has none; `response_id` is the answer's id in DIAL.
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
    warnings: tuple[str, ...] = ()
    question: str = ""
    response_id: str | None = None


_SHARED = ("owner", "door", "model", "session_id", "run_id", "experiment", "history", "content", "response_id")


class TraceRecorder(LoopObserver):
    """Collects what a run does, and saves its trace every second, so that the trace outlives the process.

    Without `traces` it only collects. `trace` can be called at any time.
    """

    def __init__(self, traces: Traces | None, start: TraceStart, trace_id: str | None = None) -> None:
        self.trace_id = trace_id or new_id("trace", 12)
        self._traces, self._start, self._stored = traces, start, False
        self._clock = traces.clock if traces is not None else time.time
        self._turn = partial(TracedTurn.of, content=start.content)
        self._started_at = self._clock()
        self._turns = [self._turn(message, self._started_at) for message in start.asked]
        self._calls: list[TracedCall] = []
        self._decisions: list[TracedDecision] = []
        self._limits: list[str] = []
        self._warnings = dict.fromkeys(start.warnings)  # each once, in their order
        self._facts = tuple[str, ...]()
        self._usage = Usage()
        self._usage_of_tools: Mapping[str, Usage] = {}
        self._core_traces = dict[str, None]()
        CORE_TRACES.set(self._core_traces)
        self._last_answer = ""
        self._end: tuple[float, str, str | None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._changed()  # a first answer may take long, and the process may die before it

    def model_answered(self, message: Message, usage: Usage, seconds: float) -> None:
        self._usage += usage
        self._last_answer = message.text()
        self._turns.append(self._turn(message, self._clock(), seconds, usage))
        self._changed()

    def call_ended(self, call: ToolCall, message: Message, seconds: float) -> None:
        if message.interim:
            return
        now, text, kept = self._clock(), message.text(), self._start.content
        try:
            arguments: Mapping[str, object] = orjson.loads(call.function.arguments) if kept else {}
        except orjson.JSONDecodeError:
            arguments = {"raw": call.function.arguments}
        shown = (call.id, call.name, arguments, text if kept else "")
        self._calls.append(TracedCall(*shown, len(text), now - seconds, seconds, message.failed))
        if INNER not in call.id:  # what a sub-agent called is no turn of the run
            self._turns.append(self._turn(message, now, seconds))
        self._changed()

    def decided(self, call: ToolCall, decision: Decision) -> None:
        reason, by, card, kept = "", "", None, self._start.content
        match decision:
            case Allowed(by, card):
                verdict = "allowed"
            case Denied(reason):
                verdict = "denied"
            case Deferred(card, _, reason):
                verdict = "deferred"
        shown = card.as_dict() if card is not None and kept else None
        traced = TracedDecision(call.id, call.name, verdict, self._clock(), reason if kept else "", by, shown)
        self._decisions.append(traced)

    def warned(self, text: str) -> None:
        self._warnings[text] = None

    def limit_hit(self, limit: str) -> None:
        self._limits.append(limit)

    def run_ended(self, outcome: RunOutcome) -> None:
        self._usage = outcome.usage - sum(outcome.tool_usage.values(), Usage())
        answer = outcome.answer
        if answer.content and answer.text() != self._last_answer:  # cut off, or written by the loop itself
            self._turns.append(self._turn(answer, self._clock()))
        limit = f"stopped at {outcome.limit}" if outcome.limit is not None else None
        self.end(outcome.status, outcome.error or limit, outcome.tool_usage)

    def in_session(self, session_id: str) -> None:
        """The run was given a session."""
        self._start = replace(self._start, session_id=session_id)

    def recalled(self, facts: Sequence[str]) -> None:
        self._facts = tuple(facts)

    def end(
        self, status: str, error: BaseException | str | None = None, tools: Mapping[str, Usage] | None = None
    ) -> None:
        """End the trace, unless it has ended; `tools` is what tools have used, by model."""
        if self._end is not None:
            return
        self._usage_of_tools = tools or {}
        text = str(error) if error is not None else None
        if isinstance(error, BaseException):
            if not self._start.content:  # a provider's text may quote the request
                text = type(error).__name__
                if isinstance(error, ProviderError):
                    text = f"the model failed (status {error.status_code}, code {error.code})"
            text = with_reference(text or "", reference_of(error))
        self._end = (self._clock(), status, text)

    def trace(self) -> Trace:
        """The trace as it is now."""
        start, (at, status, error) = self._start, self._end or (None, "running", None)
        usage = usage_by_model(start.model, self._usage, self._usage_of_tools)
        question = ""
        if start.content:
            texts = (message.text() for message in reversed(start.asked) if message.role is Role.USER)
            question = next(filter(None, texts), start.question)
        return Trace(
            self.trace_id,
            status=status,
            started_at=self._started_at,
            completed_at=at,
            turns=_in_call_order(self._turns),
            tool_calls=tuple(self._calls),
            config=config_of(start.options, content=start.content),
            usage=usage,
            cost=cost_of(start.model, usage, self._traces.prices if self._traces is not None else {}),
            limits=tuple(self._limits),
            decisions=tuple(self._decisions),
            error=error,
            asked=len(start.asked),
            warnings=tuple(self._warnings),
            facts=self._facts,
            question=question[:QUESTION_CHARS] or None,
            core_traces=tuple(self._core_traces),
            **{name: getattr(start, name) for name in _SHARED},
        )

    def record(self) -> Trace:
        """The run's trace, queued for the store; `Writer.flush` or `Runs.finish` waits until it is on disk."""
        if self._timer is not None:
            self._timer.cancel()
        trace = self.trace()
        if self._traces is not None:
            self._traces.put(trace, stored=self._stored)
        return trace

    def _changed(self) -> None:
        if self._traces is not None and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(CHECKPOINT_SECONDS, self._checkpoint, self._traces)

    def _checkpoint(self, traces: Traces) -> None:
        self._timer = None
        if not traces.writer.has_room:
            self._changed()  # a later state replaces this one
            return
        traces.put(self.trace(), stored=self._stored)
        self._stored = True


@asynccontextmanager
async def recorded(access: StoreAccess, start: TraceStart) -> AsyncGenerator[LoopObserver]:
    """An observer for one run of a front door that can do without the store.

    The trace is written soon after the block is left; the block neither waits for it nor fails with the database.
    """
    store = await access.get_if_available()
    if store is not None and not store.writer.has_room:
        logger.error("a request of the door %s is not recorded: too much waits to be written", start.door)
        store = None
    if store is None:
        yield LoopObserver()
        return
    recorder = TraceRecorder(store.traces, start)
    try:
        yield recorder
    except asyncio.CancelledError:
        recorder.end("cancelled")
        raise
    except Exception as error:
        recorder.end("failed", error)
        raise
    finally:
        recorder.end("finished")  # unless it has ended otherwise
        recorder.record()


def _in_call_order(turns: Sequence[TracedTurn]) -> tuple[TracedTurn, ...]:
    # The loop reports the results of a step as they arrive; a trace lists them in the order of its calls.
    step, places, keys = 0, dict[str | None, int](), list[tuple[int, int]]()
    for number, turn in enumerate(turns):
        if turn.role != "tool":
            step, places = number, {call["id"]: place for place, call in enumerate(turn.tool_calls, 1)}
        keys.append((step, places.get(turn.tool_call_id, 0)))
    return tuple(turns[number] for number in sorted(range(len(turns)), key=keys.__getitem__))
