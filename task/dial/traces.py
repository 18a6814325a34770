"""What the trace of a DIAL request begins with."""

from __future__ import annotations

from aidial_sdk.chat_completion import Request

from task.conversation.messages import user
from task.dial.request import AgentConfiguration, incoming_of
from task.llm.base import ModelOptions
from task.runs.traces import TraceStart, trace_context

DOOR = "dial"
OWNER = ""  # no key has it: traces of DIAL requests are an operator's to read


def trace_start(request: Request, configuration: AgentConfiguration, model: str, *, content: bool) -> TraceStart:
    """The start of the trace; without `content` it keeps no text of the conversation."""
    chosen = configuration.temperature
    options = ModelOptions(
        temperature=chosen if chosen is not None else request.temperature,
        top_p=request.top_p,
        max_tokens=request.max_completion_tokens or request.max_tokens,
    )
    [last] = incoming_of(request.messages[-1:])
    history = len(request.messages) - 1
    asked, parent = (user(last.text()),), trace_context(request.headers)
    return TraceStart(OWNER, DOOR, model, options, asked, history=history, content=content, parent=parent)
