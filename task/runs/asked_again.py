"""Ask another model what the run of a trace was asked: the request of a new run, in a new session."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from task.conversation.messages import Message, Role
from task.errors import InvalidRequest, NotFound
from task.runs.deciding import files_of, options_of
from task.runs.replay import message_of
from task.runs.request import RunCaller, RunOptions, RunRequest, session_title
from task.store.trace_records import Trace

if TYPE_CHECKING:
    from task.store.store import Store

DOOR = "runs"


async def asked_again(store: Store, caller: RunCaller, trace_id: str, model: str) -> RunRequest:
    """The run that asks `model` the same, with the same options; its session is a branch where there was one.

    Raises:
        NotFound: the caller has no such trace.
        InvalidRequest: what was asked is not kept, or the run continues another one.
    """
    trace = await store.traces.get(caller.owner, trace_id)
    history, asked = await _asked(store, trace)
    options = RunOptions("", model)
    with suppress(NotFound):
        options = await options_of(store, caller.owner, trace.run_id or "")
    options = replace(options, door=DOOR, model=model, experiment=None, previous=None, metadata={})
    if trace.session_id is not None:
        session = await store.sessions.branch(caller.owner, trace.session_id, len(history))
    else:
        session = await store.sessions.start(caller.owner, session_title(asked))
    return RunRequest(caller, options, asked, history, session, files_of([*history, *asked]))


async def _asked(store: Store, trace: Trace) -> tuple[tuple[Message, ...], tuple[Message, ...]]:
    """The messages before the trace's run, and those that it was asked."""
    name, before, end = trace.trace_id, trace.history, trace.history + trace.asked
    if trace.session_id is not None:
        messages = (await store.sessions.get(trace.owner, trace.session_id)).messages
    elif before == 0 and trace.content:
        messages = tuple(map(message_of, trace.turns[:end]))
    else:
        raise InvalidRequest(f"the messages before {name} are not kept, so it cannot be asked again")
    if not any(message.role is Role.USER for message in messages[before:end]):
        raise InvalidRequest(f"{name} continues another run, or its messages are gone; replay the run that was asked")
    return messages[:before], messages[before:end]
