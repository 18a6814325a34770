"""Requests that a client sends again: find the run that has taken them, and give its answer again."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import takewhile
from typing import Any

from task.api.edge.failures import Refused
from task.api.edge.identity import ApiCaller
from task.api.openai.incoming import IncomingMessages
from task.api.platform.answering import Result
from task.api.platform.kept_turns import conversation_key, since_the_user
from task.api.platform.run_request import RunOptions, RunRequest
from task.api.platform.runner import ActiveRun
from task.conversation.history import unanswered
from task.conversation.messages import FunctionCall, Message, Role, ToolCall
from task.errors import NotFound
from task.llm.base import Usage
from task.store.records import FINISHED, Event, Run, Session
from task.store.store import Store
from task.store.trace_records import Trace

ANSWERED = ("running", "finished", "limited", "suspended")  # runs that have, or will have, an answer to give again


async def asked_before(
    store: Store, caller: ApiCaller, received: IncomingMessages, options: RunOptions
) -> RunRequest | None:
    """The run that has answered the same request with a question, while that is open: the client tries again.

    Results of a client's calls are sent once; of other requests only their client can know that it tries again.
    """
    if not received.retried and received.messages[-1].role is not Role.TOOL:
        return None
    key = conversation_key(caller.owner, options.prompt, received.messages)
    for item in await store.approvals.list(caller.owner):
        if item.conversation == key and item.run_id is not None:
            run = await store.runs.get(caller.owner, item.run_id)
            return RunRequest(caller, options, (), again=run.run_id) if run.status in ANSWERED else None
    return None


async def given_before(
    store: Store,
    caller: ApiCaller,
    session: Session,
    run_id: str,
    end: int | None,
    sent: Sequence[Message],
    options: RunOptions,
) -> RunRequest | None:
    """The run that continued from the place `end`, where that run ended, with these same results."""
    held = list(takewhile(lambda message: message.role is Role.TOOL, session.messages[end:] if end else ()))
    if not all(any(_same_result(one, other) for other in held) for one in sent):
        return None
    later = await later_runs(store, caller, session, run_id)
    return RunRequest(caller, options, (), again=later[-1].run_id) if later and later[-1].status in ANSWERED else None


def taken(history: Sequence[Message], new: Sequence[Message]) -> bool:
    """Whether the session has all these results already: their client tries again."""
    known = {message.tool_call_id for message in since_the_user(history)} - {call.id for call in unanswered(history)}
    return all(message.role is Role.TOOL and message.tool_call_id in known for message in new)


async def later_runs(store: Store, caller: ApiCaller, session: Session, run_id: str | None) -> list[Run] | None:
    """The runs of the session since that one, the newest first; None: that is too long ago."""
    runs = (await store.runs.list(caller.owner, session.session_id)).items
    later = list(takewhile(lambda run: run.run_id != run_id, runs))
    return later if len(later) < len(runs) else None


def _same_result(one: Message, other: Message) -> bool:
    return (one.tool_call_id, one.text()) == (other.tool_call_id, other.text())


async def recalled(store: Store, request: RunRequest, run_id: str) -> ActiveRun:
    """The run with its answer, once it is over: it may still run in another process."""
    owner = request.caller.owner
    events = [event async for event in store.runs.events_after(owner, run_id)]
    run = await store.runs.get(owner, run_id)
    ended = asyncio.get_running_loop().create_future()
    ended.set_result(None)
    active = ActiveRun(
        run, request.options.model, request, store, ended, _result(run, events), await _trace(store, run)
    )
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
    error = failure.get("error", {"message": "The answer was broken off."})
    return result.with_error(Refused(failure.get("status", 500), error["message"], code=error.get("code")))


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
