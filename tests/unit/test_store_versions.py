"""The versions of a conversation's messages, found in its branches."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from itertools import count
from pathlib import Path

import pytest

from task.conversation.messages import assistant, user
from task.errors import NotFound
from task.store.store import Store
from tests.support.stores import OWNER, opened, sqlite_url


@pytest.fixture
async def store(tmp_path: Path) -> AsyncGenerator[Store]:
    seconds = count(1_800_000_000.0)
    async with opened(sqlite_url(tmp_path), lambda: next(seconds)) as store:
        yield store


async def conversation(store: Store, *texts: str) -> str:
    session = await store.sessions.start(OWNER, "Sums")
    return await continued(store, session.session_id, *texts)


async def continued(store: Store, session_id: str, *texts: str) -> str:
    """The session, with questions and answers in turn."""
    session = await store.sessions.get(OWNER, session_id)
    said = [(assistant if (session.length + place) % 2 else user)(text) for place, text in enumerate(texts)]
    await store.sessions.append(OWNER, session_id, said, session.version)
    return session_id


async def branched(store: Store, session_id: str, keep: int, *texts: str) -> str:
    branch = await store.sessions.branch(OWNER, session_id, keep)
    return await continued(store, branch.session_id, *texts)


async def versions(store: Store, session_id: str) -> list[tuple[int, tuple[str, ...], int]]:
    _, found = await store.sessions.versions(OWNER, session_id)
    return [(each.position, each.sessions, each.shown) for each in found]


async def test_versions_of_questions_and_answers_nest(store: Store) -> None:
    first = await conversation(store, "1+1?", "2", "2+2?", "4")
    again = await branched(store, first, 2, "2+2?", "four")
    edited = await branched(store, again, 2, "3+3?", "6")
    other = await branched(store, edited, 0, "Hello", "Hi.")
    assert await versions(store, first) == [(0, (edited, other), 0), (2, (again, edited), 0), (3, (first, again), 0)]
    assert await versions(store, edited) == [(0, (edited, other), 0), (2, (again, edited), 1)]
    assert await versions(store, other) == [(0, (edited, other), 1)]


async def test_equal_answers_are_versions_too_and_lead_to_where_the_conversation_went_on(store: Store) -> None:
    first = await conversation(store, "1+1?", "2")
    again = await branched(store, first, 0, "1+1?", "2")
    deeper = await branched(store, again, 2, "And 2+2?", "4")
    assert await versions(store, first) == [(1, (first, deeper), 0)]
    assert await versions(store, deeper) == [(1, (first, deeper), 1)]


async def test_a_branch_without_a_message_of_its_own_is_no_version(store: Store) -> None:
    first = await conversation(store, "1+1?", "2")
    branch = await branched(store, first, 2)
    assert await versions(store, first) == await versions(store, branch) == []


@pytest.mark.fault("web page: versions of a conversation of which a part, or a session of another owner, is missing")
async def test_versions_outlive_a_session_between_them_and_belong_to_their_owner(store: Store) -> None:
    first = await conversation(store, "1+1?", "2")
    again = await branched(store, first, 0, "1+1?", "two")
    third = await branched(store, first, 0, "1+1?", "II")
    await store.sessions.delete(OWNER, first)
    assert await versions(store, again) == [(1, (again, third), 0)]
    with pytest.raises(NotFound):
        await store.sessions.versions("somebody else", again)
