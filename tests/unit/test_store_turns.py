"""Turns of conversations that callers keep: found by their owner, replaced, and removed like all else."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from task.conversation.messages import Attachment, CustomContent, Message, Role, assistant, user
from task.store.store import DAY, Retention, Store
from task.store.turns import StoredTurn
from tests.support.stores import OWNER, StoreClock, opened, sqlite_url

FILE = CustomContent((Attachment("text/csv", "a.csv", url="files/b/a.csv"),))
TURN = StoredTurn(
    3, (assistant("Done."), Message(Role.TOOL, "2", tool_call_id="call_0", failed=True, custom_content=FILE))
)


@pytest.fixture
def clock() -> StoreClock:
    return StoreClock()


@pytest.fixture
async def store(tmp_path: Path, clock: StoreClock) -> AsyncGenerator[Store]:
    async with opened(sqlite_url(tmp_path), clock, retention=Retention(days=30, traces=2)) as store:
        yield store


async def kept(store: Store, *keys: str, session_id: str | None = None) -> None:
    for key in keys:
        store.turns.keep(OWNER, key, TURN, session_id)
    await store.flush()


async def test_a_turn_is_given_back_as_it_was_to_its_owner_only(store: Store) -> None:
    await kept(store, "a")
    assert await store.turns.find(OWNER, ["a", "b"]) == {"a": TURN}
    assert await store.turns.find("bob", ["a"]) == {}


async def test_the_last_turn_with_a_key_counts(store: Store) -> None:
    await kept(store, "a")
    other = StoredTurn(0, (user("again"),))
    store.turns.keep(OWNER, "a", other)
    await store.flush()
    assert await store.turns.find(OWNER, ["a"]) == {"a": other}


async def test_turns_are_removed_when_they_are_old_or_too_many(store: Store, clock: StoreClock) -> None:
    await kept(store, "old")
    clock.now += 31 * DAY
    for key in "abc":
        clock.now += 1
        await kept(store, key)
    await store.forget()
    assert set(await store.turns.find(OWNER, ["old", *"abc"])) == {"b", "c"}


async def test_a_session_that_is_removed_takes_its_turns_along(store: Store) -> None:
    session = await store.sessions.start(OWNER)
    await kept(store, "a", session_id=session.session_id)
    await kept(store, "b")
    await store.sessions.delete(OWNER, session.session_id)
    assert set(await store.turns.find(OWNER, ["a", "b"])) == {"b"}
