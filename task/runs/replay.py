"""Run a trace again, offline: the recorded model and the recorded tools, in the real loop."""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from task.conversation.messages import FunctionCall, Message, Role, ToolCall
from task.errors import InvalidRequest, ProviderError
from task.llm.base import TextDelta, ToolCallDelta
from task.llm.scripted import Reply, ScriptedModel
from task.loop import Limits, ToolLoop
from task.permissions.decisions import Allowed, CallRequest, Decision, Deferred, Denied
from task.permissions.icerc import ICERC
from task.runs.traces import TraceObserver, TraceStart
from task.store.trace_records import Trace, TracedDecision, TracedTurn
from task.tools.base import BaseTool
from task.tools.models import Caller, ToolCallParams
from task.tools.toolbox import Toolbox

SECONDS = 60.0
ENDLESS = 100_000


async def replayed(trace: Trace) -> Trace:
    """What the loop makes of the same answers of the model, decisions of the gate and results of the tools.

    Raises:
        InvalidRequest: the trace holds no texts, or its run did not come to an end by itself.
    """
    if not trace.content:
        raise InvalidRequest(f"{trace.trace_id} was kept without texts and cannot be replayed; see TRACE_CONTENT")
    if trace.status in ("running", "cancelled", "interrupted"):
        raise InvalidRequest(f"{trace.trace_id} is {trace.status}: where it was broken off cannot be replayed")
    asked = [_message(turn) for turn in trace.turns[: trace.asked]]
    observer = TraceObserver(trace.trace_id, TraceStart(trace.owner, trace.door, trace.model, asked=tuple(asked)))
    model = ScriptedModel(*_replies(trace), name=trace.model, keep_requests=False)
    toolbox = Toolbox(_tools(trace), _RecordedGate(trace.decisions))
    loop = ToolLoop(model, toolbox, Limits(steps=_steps(trace)), observer)
    async with asyncio.timeout(SECONDS):
        await loop.run(asked, _Nowhere(), Caller("", _nobody))
    return observer.trace()


async def _nobody() -> str:
    return ""


def _message(turn: TracedTurn) -> Message:
    calls = tuple(ToolCall(call["id"], FunctionCall(call["name"], call["arguments"])) for call in turn.tool_calls)
    return Message(Role(turn.role), turn.content, calls, turn.tool_call_id, turn.name)


def _replies(trace: Trace) -> list[Reply]:
    """What the model said: an answer without usage was broken off, or never came."""
    answers = [turn for turn in trace.turns[trace.asked :] if turn.role == "assistant"]
    replies = [Reply((*_said(t.content), *_called(t.tool_calls), t.usage)) for t in answers if t.usage is not None]
    broken = next((turn for turn in answers if turn.usage is None), None)
    if trace.status == "failed":
        text = broken.content if broken is not None else None
        replies.append(Reply((*_said(text), ProviderError(trace.error or "the model failed"))))
    return replies


def _said(text: Any) -> tuple[TextDelta, ...]:
    return (TextDelta(text),) if isinstance(text, str) and text else ()


def _called(calls: Sequence[Any]) -> list[ToolCallDelta]:
    return [ToolCallDelta(place, call["id"], call["name"], call["arguments"]) for place, call in enumerate(calls)]


def _steps(trace: Trace) -> int:
    """The steps after which the run stopped, whichever limit it was that stopped it."""
    if trace.status != "limited":
        return ENDLESS
    made = {call.call_id for call in trace.tool_calls}  # the last answer may call in vain
    answers = (turn for turn in trace.turns[trace.asked :] if turn.role == "assistant")
    return sum(any(call["id"] in made for call in turn.tool_calls) for turn in answers)


def _tools(trace: Trace) -> list[BaseTool]:
    results: defaultdict[str, deque[Message]] = defaultdict(deque)
    for call in trace.tool_calls:
        message = Message(Role.TOOL, call.result, tool_call_id=call.call_id, name=call.name, failed=call.failed)
        results[call.call_id].append(message)
    names = {call["name"] for turn in trace.turns for call in turn.tool_calls}
    return [_RecordedTool(name, results) for name in sorted(names)]


@dataclass(eq=False)
class _RecordedTool(BaseTool):
    recorded: str
    results: dict[str, deque[Message]]

    @property
    def name(self) -> str:
        return self.recorded

    @property
    def description(self) -> str:
        return "Answers as it was recorded."

    @property
    def parameters(self) -> dict[str, Any]:
        return {"type": "object"}

    @property
    def offloads(self) -> bool:
        return False

    async def _execute(self, tool_call_params: ToolCallParams) -> Message:
        return self.results[tool_call_params.tool_call.id].popleft()


class _RecordedGate:
    def __init__(self, decisions: Sequence[TracedDecision]) -> None:
        self._decisions = {decision.call_id: decision for decision in decisions}

    async def decide(self, request: CallRequest) -> Decision:
        told = self._decisions.get(request.call.id)
        if told is None or told.verdict == "allowed":
            return Allowed(told.by if told else "")
        if told.verdict == "denied":
            return Denied(told.reason)
        card = ICERC.from_dict(told.card) if told.card is not None else ICERC("", "", "")
        return Deferred(card, "", told.reason)


class _Nowhere:
    """A choice and its stages that keep nothing."""

    def append_content(self, content: str) -> None: ...
    def append_reasoning_content(self, content: str) -> None: ...
    def append_name(self, name: str) -> None: ...
    def add_attachment(self, **_: str | None) -> None: ...
    def set_state(self, state: dict[str, Any]) -> None: ...
    def open(self) -> None: ...
    def close(self, status: Any = None) -> None: ...

    def create_stage(self, name: str | None = None) -> _Nowhere:
        return self
