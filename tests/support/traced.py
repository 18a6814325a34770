"""Runs of the real loop with a scripted model, traced into a store."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from task.conversation.messages import Message, user
from task.llm.scripted import Reply, ScriptedModel
from task.loop import Limits, ToolLoop
from task.permissions.decisions import Gate, OpenGate
from task.runs.traces import TraceRecorder, TraceStart
from task.store.records import new_id
from task.store.store import Store
from task.store.trace_records import Trace
from task.tools.base import BaseTool
from task.tools.calculator.calculator_tool import CalculatorTool
from task.tools.toolbox import Toolbox
from tests.support.choices import CALLER, RecordingChoice
from tests.support.stores import OWNER

QUESTION = user("What is 25*47?")


async def traced(
    store: Store,
    *replies: Reply,
    tools: Sequence[BaseTool] = (),
    gate: Gate | None = None,
    limits: Limits | None = None,
    asked: Sequence[Message] = (QUESTION,),
    **start: Any,
) -> Trace:
    """The trace of one run, as it is read from the store."""
    model = ScriptedModel(*replies, name="gpt-4o")
    trace_start = replace(TraceStart(OWNER, "http", model.name, asked=tuple(asked)), **start)
    observer = TraceRecorder(store.traces, trace_start, new_id("trace", 12))
    toolbox = Toolbox(tools or [CalculatorTool()], gate or OpenGate())
    async with asyncio.timeout(20):
        await ToolLoop(model, toolbox, limits or Limits(), observer).run(list(asked), RecordingChoice(), CALLER)
        saved = observer.record()
        await store.writer.flush()
        return await store.traces.get(trace_start.owner, saved.trace_id)
