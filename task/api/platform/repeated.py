"""Requests that a client sends again: the run that has taken them is told once more."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

from task.api.edge.identity import Who
from task.api.openai.incoming import Received
from task.api.platform.asks import Ask, Manner
from task.api.platform.owing import conversation_key, since_the_user
from task.conversation.history import unanswered
from task.conversation.messages import Message, Role
from task.store.records import Run, Session
from task.store.service import Store

ANSWERED = ("running", "finished", "limited", "suspended")  # runs that have, or will have, an answer to tell again


async def asked_before(store: Store, who: Who, received: Received, manner: Manner) -> Ask | None:
    """The run that has answered the same request with a question, while that is open: the client tries again.

    Results of a client's calls are given once; of other requests only their client can say that it tries again.
    """
    if not received.retried and received.messages[-1].role is not Role.TOOL:
        return None
    key = conversation_key(who.owner, manner.prompt, received.messages)
    for item in await store.approvals.list(who.owner):
        if item.conversation == key and item.run_id is not None:
            run = await store.runs.get(who.owner, item.run_id)
            return Ask(who, manner, (), again=run.run_id) if run.status in ANSWERED else None
    return None


async def given_before(
    store: Store, who: Who, session: Session, run_id: str, end: int | None, sent: Sequence[Message], manner: Manner
) -> Ask | None:
    """The run that went on from the place `end`, where that run ended, with these same results."""
    held = list(takewhile(lambda message: message.role is Role.TOOL, session.messages[end:] if end else ()))
    if not all(any(_same_result(one, other) for other in held) for one in sent):
        return None
    later = await later_runs(store, who, session, run_id)
    return Ask(who, manner, (), again=later[-1].run_id) if later and later[-1].status in ANSWERED else None


def taken(history: Sequence[Message], new: Sequence[Message]) -> bool:
    """Whether the session has all these results already: their client tries again."""
    known = {message.tool_call_id for message in since_the_user(history)} - {call.id for call in unanswered(history)}
    return all(message.role is Role.TOOL and message.tool_call_id in known for message in new)


async def later_runs(store: Store, who: Who, session: Session, run_id: str | None) -> list[Run] | None:
    """The runs of the session since that one, the newest first; None: that is too long ago."""
    runs = (await store.runs.list(who.owner, session.session_id)).items
    later = list(takewhile(lambda run: run.run_id != run_id, runs))
    return later if len(later) < len(runs) else None


def _same_result(one: Message, other: Message) -> bool:
    return (one.tool_call_id, one.text()) == (other.tool_call_id, other.text())
