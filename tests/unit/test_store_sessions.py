"""Sessions: their messages, owners, branches, versions and simultaneous writers; searched, pinned, deleted together."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from itertools import count
from pathlib import Path

import pytest
from sqlalchemy import event

from task.api.sessions import SessionBody
from task.conversation.messages import (
    Attachment,
    FunctionCall,
    Message,
    Role,
    ToolCall,
    assistant,
    tool_message,
    user,
)
from task.errors import Conflict, InvalidRequest, NotFound
from task.store.database import SqliteDatabase
from task.store.records import SessionFilter
from task.store.store import Store
from tests.support.stores import OWNER, StoreClock, opened, sqlite_url

CALL = ToolCall("call_1", FunctionCall("calculator", '{"expression": "25*47"}'))


@pytest.fixture
async def store(tmp_path: Path) -> AsyncGenerator[Store]:
    async with opened(sqlite_url(tmp_path), StoreClock()) as store:
        yield store


@pytest.mark.fault("store: zero bytes and broken characters in messages")
async def test_messages_come_back_with_all_they_hold(store: Store) -> None:
    session = await store.sessions.start(OWNER)
    picture = Attachment(type="image/png", title="chart", url="files/b/chart.png")
    messages = [
        user([{"type": "text", "text": "look"}, {"type": "image_url", "image_url": {"url": "data:image/png,AA"}}]),
        Message(Role.ASSISTANT, None, (CALL,), reasoning_content="I should count."),
        Message(Role.TOOL, "nul \0, half \ud800", tool_call_id="call_1", name="calculator", attachments=(picture,)),
        assistant("schön ✓"),
    ]  # fmt: skip
    await store.sessions.append(OWNER, session.session_id, messages, session.version)
    kept = (await store.sessions.get(OWNER, session.session_id)).messages
    assert kept[:2] == tuple(messages[:2])
    assert kept[2].attachments == (picture,)
    assert kept[2].content == "nul \0, half ?"
    assert kept[3] == messages[3]


@pytest.mark.fault("store: two writers on one session")
async def test_of_two_simultaneous_writers_one_is_refused_with_advice(store: Store) -> None:
    session = await store.sessions.start(OWNER)

    async def write(text: str) -> int:
        return await store.sessions.append(OWNER, session.session_id, [user(text)], session.version)

    results = await asyncio.gather(*(write(str(n)) for n in range(20)), return_exceptions=True)
    refused = [result for result in results if isinstance(result, Conflict)]
    assert [result for result in results if isinstance(result, int)] == [1]
    assert len(refused) == 19
    assert "changed by another request" in str(refused[0])
    assert len((await store.sessions.get(OWNER, session.session_id)).messages) == 1


@pytest.mark.fault("store: an unknown session, or another owner's")
async def test_another_owners_session_is_not_there(store: Store) -> None:
    session = (await store.sessions.start(OWNER)).session_id
    sessions = store.sessions
    for work in (
        sessions.get("bob", session),
        sessions.end("bob", session),
        sessions.rename("bob", session, "mine"),
        sessions.delete("bob", session),
        sessions.branch("bob", session, 0),
        sessions.append("bob", session, [user("hi")], 0),
        store.runs.start("bob", session=await sessions.get(OWNER, session)),
    ):
        with pytest.raises(NotFound, match=f"there is no session '{session}'"):
            await work
    assert (await sessions.list("bob")).items == ()


async def test_a_deleted_session_leaves_nothing(store: Store) -> None:
    session = await store.sessions.start(OWNER)
    run = await store.runs.start(OWNER, session=session, messages=[user("hi")])
    await store.runs.finish(run, "finished", added=[assistant("hello")])
    await store.grants.add(OWNER, {"scope": "tool"}, session_id=session.session_id)
    await store.sessions.delete(OWNER, session.session_id)
    with pytest.raises(NotFound):
        await store.runs.get(OWNER, run.run_id)
    assert await store.grants.list(OWNER) == ()


@pytest.mark.fault("store: a history that differs from the stored one")
async def test_a_diverging_history_makes_a_branch_and_is_found_again(store: Store) -> None:
    session = await store.sessions.start(OWNER, "Sums")
    stored = [user("1+1?"), assistant("2"), user("2+2?"), assistant("4")]
    await store.sessions.append(OWNER, session.session_id, stored, session.version)
    edited = [*stored[:2], user("3+3?")]

    grown = await store.sessions.get(OWNER, session.session_id)
    branch, new = await store.sessions.resume(grown, edited)
    assert new == (user("3+3?"),)
    assert branch.messages == tuple(stored[:2])
    assert (branch.parent, branch.title) == (session.session_id, "Sums")
    assert await store.sessions.get(OWNER, session.session_id) == grown

    await store.sessions.append(OWNER, branch.session_id, [user("3+3?"), assistant("6")], branch.version)
    again, new = await store.sessions.resume(grown, [*edited, assistant("6"), user("and 4+4?")])
    assert again.session_id == branch.session_id
    assert new == (user("and 4+4?"),)


@pytest.mark.fault("store: a malformed cursor or limit")
@pytest.mark.parametrize(("limit", "cursor"), [(0, None), (1001, None), (5, "x"), (5, "é"), (5, "bm8=")])
async def test_an_impossible_page_is_refused(store: Store, limit: int, cursor: str | None) -> None:
    with pytest.raises(InvalidRequest):
        await store.sessions.list(OWNER, limit=limit, cursor=cursor)


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


@pytest.fixture
async def ticking(tmp_path: Path) -> AsyncGenerator[Store]:
    seconds = count(1_800_000_000.0)
    async with opened(sqlite_url(tmp_path), lambda: next(seconds)) as ticking:
        yield ticking


async def conversation(ticking: Store, *texts: str) -> str:
    return await branched(ticking, (await ticking.sessions.start(OWNER, "Sums")).session_id, None, *texts)


async def branched(ticking: Store, session_id: str, keep: int | None, *texts: str) -> str:
    """A branch that keeps so many messages, or the session itself, with further questions and answers in turn."""
    sessions = ticking.sessions
    session = await (sessions.get(OWNER, session_id) if keep is None else sessions.branch(OWNER, session_id, keep))
    said = [(assistant if (session.length + place) % 2 else user)(text) for place, text in enumerate(texts)]
    await sessions.append(OWNER, session.session_id, said, session.version)
    return session.session_id


async def versions(ticking: Store, session_id: str) -> list[tuple[int, tuple[str, ...], int]]:
    _, found = await ticking.sessions.versions(OWNER, session_id)
    return [(each.position, each.sessions, each.shown) for each in found]


async def test_versions_of_questions_and_answers_nest(ticking: Store) -> None:
    first = await conversation(ticking, "1+1?", "2", "2+2?", "4")
    again = await branched(ticking, first, 2, "2+2?", "four")
    edited = await branched(ticking, again, 2, "3+3?", "6")
    other = await branched(ticking, edited, 0, "Hello", "Hi.")
    assert await versions(ticking, first) == [(0, (edited, other), 0), (2, (again, edited), 0), (3, (first, again), 0)]
    assert await versions(ticking, edited) == [(0, (edited, other), 0), (2, (again, edited), 1)]
    assert await versions(ticking, other) == [(0, (edited, other), 1)]


async def test_equal_answers_are_versions_too_and_lead_to_where_the_conversation_went_on(ticking: Store) -> None:
    first = await conversation(ticking, "1+1?", "2")
    without_own_message = await branched(ticking, first, 2)
    assert await versions(ticking, first) == await versions(ticking, without_own_message) == []
    again = await branched(ticking, first, 0, "1+1?", "2")
    deeper = await branched(ticking, again, 2, "And 2+2?", "4")
    assert await versions(ticking, first) == [(1, (without_own_message, deeper), 0)]
    assert await versions(ticking, deeper) == [(1, (without_own_message, deeper), 1)]


@pytest.mark.fault("web page: versions of a conversation of which a part, or a session of another owner, is missing")
async def test_versions_outlive_a_session_between_them_and_belong_to_their_owner(ticking: Store) -> None:
    first = await conversation(ticking, "1+1?", "2")
    again = await branched(ticking, first, 0, "1+1?", "two")
    third = await branched(ticking, first, 0, "1+1?", "II")
    await ticking.sessions.delete(OWNER, first)
    assert await versions(ticking, again) == [(1, (again, third), 0)]
    with pytest.raises(NotFound):
        await ticking.sessions.versions("somebody else", again)


async def test_a_session_has_the_documented_shape_and_takes_no_more_once_it_has_ended(store: Store) -> None:
    started = await store.sessions.start(OWNER)
    messages = [user("25*47?"), assistant(None, [CALL]), tool_message(CALL, "1175"), assistant("1175")]
    await store.sessions.append(OWNER, started.session_id, messages, started.version)
    ended = await store.sessions.end(OWNER, started.session_id)
    assert await store.sessions.end(OWNER, started.session_id) == ended
    with pytest.raises(Conflict, match="has ended; start a new one"):
        await store.sessions.append(OWNER, started.session_id, [user("more")], ended.version)
    assert SessionBody.model_validate(ended, from_attributes=True).model_dump() == {
        "session_id": started.session_id,
        "started_at": "2027-01-15T08:00:00.000+00:00",
        "ended_at": "2027-01-15T08:00:00.000+00:00",
        "status": "completed",
        "messages": [{"role": "user", "content": "25*47?"}, {"role": "assistant", "content": "1175"}],
        "traces": [],
        "title": "",
        "parent": None,
    }
    assert started.session_id.removeprefix("sess_").isalnum()
    assert len(started.session_id) == len("sess_1a2b3c4d")


@pytest.mark.parametrize("words", ["", "needle"])
async def test_sessions_and_hits_are_listed_page_by_page_the_last_used_first(tmp_path: Path, words: str) -> None:
    clock = StoreClock()
    async with opened(sqlite_url(tmp_path), clock) as store:
        made: list[str] = []
        for number in range(7):
            clock.now += number % 2  # some at the same moment
            made.append(await kept(store, f"{number}", user("a needle")))
        page = await store.sessions.list(OWNER, 3, None, SessionFilter(words))
        seen = [session.session_id for session in page.items]
        while page.cursor is not None:
            page = await store.sessions.list(OWNER, 3, page.cursor, SessionFilter(words))
            seen += [session.session_id for session in page.items]
        assert sorted(seen) == sorted(made)
        assert len({session.updated_at for session in page.items}) == 1
        assert seen[0] in made[-2:]


@pytest.mark.fault("http api: a search of signs only, a word of 5,000 letters or half a character")
async def test_a_hit_is_shown_where_it_stands_however_odd_the_text(store: Store) -> None:
    long = "word " * 100
    await kept(store, "Title", user(f"{long}\n\nthe NEEDLE in it {long}"))
    (hit,) = (await store.sessions.list(OWNER, which=SessionFilter("needle"))).items
    assert "the NEEDLE in it" in hit.snippet
    assert hit.snippet[0] == hit.snippet[-1] == "…"
    assert len(hit.snippet) < 200
    (titled,) = (await store.sessions.list(OWNER, which=SessionFilter("title"))).items
    assert titled.snippet == ""
    await kept(store, "odd", user("x" * 5000 + " half \ud800 pair"), Message(Role.ASSISTANT, None))
    assert await titles(store, "half pair") == await titles(store, "x" * 200) == ["odd"]


async def test_a_title_is_one_short_line_and_a_generated_one_replaces_only_the_one_it_was_made_for(
    store: Store,
) -> None:
    session_id = await kept(store, " a\nb\0 " + "c" * 500, user("first words"))
    [title] = await titles(store)
    assert (title[:7], len(title)) == ("a b ccc", 200)
    await store.sessions.rename(OWNER, session_id, "generated", instead_of=title)
    await store.sessions.rename(OWNER, session_id, "late", instead_of=title)
    assert await titles(store) == ["generated"]


async def test_sessions_are_told_apart_by_origin_pin_and_family(store: Store) -> None:
    own = await kept(store, "own", user("a"))
    await store.sessions.start(OWNER, "program")
    other = (await store.sessions.start(OWNER, "terminal", "console")).session_id
    await store.sessions.pin(OWNER, own, True)
    assert await titles(store, origins=("page", "console")) == ["own", "terminal"]
    assert await titles(store, origins=("api",)) == ["program"]
    assert await titles(store, pinned=True) == ["own"]
    branch = await store.sessions.branch(OWNER, own, 1)
    await store.sessions.pin(OWNER, branch.session_id, False)
    assert await titles(store, pinned=True) == []
    with pytest.raises(NotFound):
        await store.sessions.pin("bob", own, True)
    assert await titles(store, families=True) == ["own", "program", "terminal"]
    assert await titles(store, "own", families=True) == ["own", "own"]
    assert await store.sessions.delete_all("bob", [own, other], families=True) == 0
    assert await store.sessions.delete_all(OWNER, [branch.session_id, "sess_none"], families=True) == 2
    assert await titles(store) == ["program", "terminal"]
