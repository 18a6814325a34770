"""Sessions found by the words of their titles and messages, pinned, separated by origin, and deleted together."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from pathlib import Path

import pytest
from sqlalchemy import event

from task.conversation.messages import FunctionCall, Message, Role, ToolCall, assistant, tool_message, user
from task.errors import NotFound
from task.store.database import SqliteDatabase
from task.store.records import SessionFilter
from task.store.store import Store
from tests.support.stores import OWNER, StoreClock, opened, sqlite_url

CALL = ToolCall("call_1", FunctionCall("calculator", '{"expression": "25*47"}'))


@pytest.fixture
async def store(tmp_path: Path) -> AsyncGenerator[Store]:
    async with opened(sqlite_url(tmp_path), StoreClock()) as store:
        yield store


async def kept(store: Store, title: str, *messages: Message) -> str:
    session = await store.sessions.start(OWNER, title, "page")
    await store.sessions.append(OWNER, session.session_id, messages, session.version)
    return session.session_id


async def titles(store: Store, text: str = "", owner: str = OWNER, **which: object) -> list[str]:
    found = await store.sessions.list(owner, which=SessionFilter(text, **which))  # type: ignore[arg-type]
    return sorted(item.title for item in found.items)


@pytest.mark.fault("http api: a search of signs only, a word of 5,000 letters or half a character")
@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("straße", ["German"]),
        ("STRASSE berlin", ["German"]),
        ("cafe\u0301", ["German"]),
        ("数据库", ["Chinese"]),
        ("київ", ["Ukrainian"]),
        ("ukrain", ["Ukrainian"]),
        ("100%", ["German"]),
        ("data", []),
        ("straße 数据库", []),
        ("secret", []),
        ("", ["Chinese", "German", "Ukrainian"]),
        ("… !", ["Chinese", "German", "Ukrainian"]),
    ],
)
async def test_words_are_found_in_any_language_and_case(store: Store, text: str, found: Sequence[str]) -> None:
    await kept(store, "German", user("Wie heißt die Straße in Berlin? Café_100"), assistant(None, [CALL]),
               tool_message(CALL, "a secret result"), assistant("Nichts."))  # fmt: skip
    await kept(store, "Chinese", user("如何优化数据库的查询？"), assistant("加索引。"))
    await kept(store, "Ukrainian", user("Де Київ?"))
    await store.sessions.start("bob", "Straße 数据库 київ 100")
    assert await titles(store, text) == list(found)


async def test_a_hit_is_shown_where_it_stands(store: Store) -> None:
    long = "word " * 100
    await kept(store, "Title", user(f"{long}\n\nthe NEEDLE in it {long}"))
    (hit,) = (await store.sessions.list(OWNER, which=SessionFilter("needle"))).items
    assert "the NEEDLE in it" in hit.snippet
    assert hit.snippet[0] == hit.snippet[-1] == "…"
    assert len(hit.snippet) < 200
    (titled,) = (await store.sessions.list(OWNER, which=SessionFilter("title"))).items
    assert titled.snippet == ""


async def test_words_follow_every_change(store: Store) -> None:
    session_id = await kept(store, "old", user("one"))
    branch = await store.sessions.branch(OWNER, session_id, 1)
    await store.sessions.append(OWNER, branch.session_id, [user("two")], branch.version)
    await store.sessions.rename(OWNER, session_id, "new")
    assert await titles(store, "old") == []
    assert await titles(store, "new") == ["new", "new"]
    assert await titles(store, "one") == ["new", "new"]
    assert len(await titles(store, "two")) == 1
    run = await store.runs.start(OWNER, session=await store.sessions.get(OWNER, session_id), messages=[user("three")])
    await store.runs.finish(run, "finished", added=[assistant("four")])
    assert len(await titles(store, "three four")) == 1
    await store.sessions.remove_run(run, 1, 3)
    assert await titles(store, "three") == []


async def test_search_is_paged_like_the_list(store: Store) -> None:
    for number in range(7):
        await kept(store, f"{number}", user("needle"))
    await kept(store, "other", user("hay"))
    seen, cursor = list[str](), None
    for _ in range(4):
        page = await store.sessions.list(OWNER, 2, cursor, SessionFilter("needle"))
        seen += [item.title for item in page.items]
        cursor = page.cursor
    assert cursor is None
    assert sorted(seen) == [str(number) for number in range(7)]


@pytest.mark.parametrize("conversations", [2, 30])
async def test_a_search_asks_the_database_as_often_for_few_hits_as_for_many(store: Store, conversations: int) -> None:
    for number in range(conversations):
        await kept(store, f"{number}", user("needle"), assistant("found"))
    statements = list[str]()
    assert isinstance(store.database, SqliteDatabase)
    event.listen(store.database.reader, "before_cursor_execute", lambda *given: statements.append(given[2]))
    page = await store.sessions.list(OWNER, which=SessionFilter("needle", families=True))
    assert [item.snippet for item in page.items] == ["needle"] * conversations
    assert len(statements) == 2


async def test_a_generated_title_replaces_only_the_one_it_was_made_for(store: Store) -> None:
    session_id = await kept(store, "first words", user("first words"))
    await store.sessions.rename(OWNER, session_id, "generated", instead_of="first words")
    await store.sessions.rename(OWNER, session_id, "late", instead_of="first words")
    assert await titles(store) == ["generated"]


async def test_sessions_are_told_apart_by_origin_and_pin(store: Store) -> None:
    own = await kept(store, "own", user("a"))
    await store.sessions.start(OWNER, "program")
    await store.sessions.start(OWNER, "terminal", "console")
    await store.sessions.pin(OWNER, own, True)
    assert await titles(store, origins=("page", "console")) == ["own", "terminal"]
    assert await titles(store, origins=("api",)) == ["program"]
    assert await titles(store, pinned=True) == ["own"]
    branch = await store.sessions.branch(OWNER, own, 1)
    await store.sessions.pin(OWNER, branch.session_id, False)
    assert await titles(store, pinned=True) == []
    with pytest.raises(NotFound):
        await store.sessions.pin("bob", own, True)


async def test_of_a_family_the_last_used_is_listed_and_all_are_deleted(store: Store) -> None:
    own = await kept(store, "own", user("a"))
    branch = await store.sessions.branch(OWNER, own, 1)
    other = await kept(store, "other", user("b"))
    assert await titles(store, families=True) == ["other", "own"]
    assert len(await titles(store, "a", families=True)) == 2
    assert await store.sessions.delete_all("bob", [own, other], families=True) == 0
    assert await store.sessions.delete_all(OWNER, [branch.session_id, "sess_none"], families=True) == 2
    assert await titles(store) == ["other"]


@pytest.mark.fault("http api: a search of signs only, a word of 5,000 letters or half a character")
async def test_a_word_longer_than_any_and_a_text_of_half_a_pair_are_kept(store: Store) -> None:
    await kept(store, "odd", user("x" * 5000 + " half \ud800 pair"), Message(Role.ASSISTANT, None))
    assert await titles(store, "half pair") == ["odd"]
    assert await titles(store, "x" * 200) == ["odd"]
