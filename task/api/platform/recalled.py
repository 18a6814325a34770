"""A run of before as its client was told of it, for a client that asks the same once more."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from task.api.answering import Result
from task.api.edge.failures import Refused
from task.api.platform.asks import Ask
from task.api.platform.runner import ActiveRun
from task.conversation.messages import FunctionCall, ToolCall
from task.errors import NotFound
from task.llm.base import Usage
from task.store.records import FINISHED, Event, Run
from task.store.service import Store
from task.store.trace_records import Trace


async def recalled(store: Store, ask: Ask, run_id: str) -> ActiveRun:
    """The run, when it is over: it may be going on in another process."""
    owner = ask.who.owner
    events = [event async for event in store.runs.events_after(owner, run_id)]
    run = await store.runs.get(owner, run_id)
    ended = asyncio.get_running_loop().create_future()
    ended.set_result(None)
    active = ActiveRun(run, ask.manner.model, ask, store, ended, _result(run, events), await _trace(store, run))
    active.session_id = run.session_id
    active.attachments = [item["attachment"] for item in _all(events, "attachment") if item["stage"] is None]
    return active


def _result(run: Run, events: Sequence[Event]) -> Result:
    calls = [call for item in _all(events, "tool_calls") for call in item["tool_calls"]]
    result = Result(
        run.status,
        usage=_usage(_last(events, "usage")),
        text="".join(item["text"] for item in _all(events, "text")),
        calls=tuple(ToolCall(call["id"], FunctionCall(**call["function"])) for call in calls),
        question="\n\n".join(item["text"] for item in _all(events, "approval")),
        limit=_last(events, FINISHED).get("limit"),
        cut=_last(events, FINISHED).get("finish_reason") == "length",
    )
    failure = _last(events, "error")
    if not failure and run.status != "interrupted":
        return result
    told = failure.get("error", {"message": "The answer was broken off."})
    return result.with_error(Refused(failure.get("status", 500), told["message"], code=told.get("code")))


def _usage(counted: Mapping[str, Any]) -> Usage:
    if not counted:
        return Usage()
    cached, reasoning = counted["prompt_tokens_details"], counted["completion_tokens_details"]
    return Usage(
        counted["prompt_tokens"], counted["completion_tokens"],
        cached["cached_tokens"], reasoning["reasoning_tokens"],
    )  # fmt: skip


async def _trace(store: Store, run: Run) -> Trace | None:
    with suppress(NotFound):  # it may have been deleted
        return await store.traces.get(run.owner, run.trace_id or "")
    return None


def _all(events: Sequence[Event], kind: str) -> list[Mapping[str, Any]]:
    return [event.data for event in events if event.type == kind]


def _last(events: Sequence[Event], kind: str) -> Mapping[str, Any]:
    return next(iter(reversed(_all(events, kind))), {})
