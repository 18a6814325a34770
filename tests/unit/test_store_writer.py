"""The store's writer loses nothing, whatever waits to be written, and can be closed at any time."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from threading import Event

import pytest
from sqlalchemy import Connection

from task.conversation.messages import user
from task.errors import StoreUnavailable
from task.llm.base import ModelOptions
from task.loop import LoopObserver
from task.runs.traces import TraceRecorder, TraceStart, recorded
from task.store.access import StoreAccess, StoreOptions
from task.store.database import open_database
from task.store.store import open_store
from task.store.writer import MOST_QUEUED, Writer
from tests.support.stores import OWNER, sqlite_url


@asynccontextmanager
async def held_up(writer: Writer) -> AsyncGenerator[None]:
    """The writer cannot write inside the block."""
    starting, may_end = Event(), Event()

    def slow(_: Connection) -> None:
        starting.set()
        assert may_end.wait(20)

    writer.put(slow)
    assert await asyncio.to_thread(starting.wait, 10)
    try:
        yield
    finally:
        may_end.set()


@pytest.mark.fault("store: a database that hangs while more than 20,000 writes wait")
async def test_everything_queued_while_the_database_hangs_is_written_when_it_is_back(tmp_path: Path) -> None:
    database = open_database(f"sqlite:///{tmp_path}/store.db")
    writer, written = Writer(database), list[int]()
    many = MOST_QUEUED + 5
    async with held_up(writer):
        for number in range(many):
            writer.put(lambda _, number=number: written.append(number))
    closing = asyncio.create_task(writer.close())  # in the middle of a write
    await asyncio.sleep(0)
    async with asyncio.timeout(40):
        await closing
    await database.close()
    assert written == list(range(many))


@pytest.mark.fault("store: a database that hangs while more than 20,000 writes wait")
@pytest.mark.fault("store: a write after the store was closed")
async def test_while_too_much_waits_nothing_new_starts_and_what_goes_on_waits_and_loses_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    access = StoreAccess(StoreOptions(sqlite_url(tmp_path)))
    store = await access.get()
    run, start = await store.runs.start(OWNER), TraceStart(OWNER, "chat", "m", ModelOptions(), (user("hi"),))
    live = store.runs._live[run.run_id]
    async with held_up(store.writer):
        fill(store.writer)
        waiting, recorder = store.writer.waiting, TraceRecorder(store.traces, start)
        async with asyncio.timeout(20):
            with pytest.raises(StoreUnavailable, match="wait to be written"):
                await store.runs.start(OWNER)
            for number in range(3):
                store.runs.append_event(run.run_id, "text", text=f"{number} ")
                timer = live._timer
                while live._timer is timer:
                    await asyncio.sleep(0.01)
        recorder._checkpoint(store.traces)
        async with recorded(access, start) as observer:  # it can do without the store
            assert type(observer) is LoopObserver
        assert store.writer.waiting == waiting
        recorder.end("finished")
        trace = recorder.record()
    await store.runs.finish(run, "finished")
    events = [event.data["text"] async for event in store.runs.events_after(OWNER, run.run_id)]
    assert events == ["0 ", "1 ", "2 "]
    assert (await store.traces.get(OWNER, trace.trace_id)).status == "finished"
    run = await store.runs.start(OWNER)
    await store.runs.finish(run, "finished")
    await access.close()
    store.writer.put(lambda _: None)
    assert "is not recorded" in caplog.text
    assert "lost" in caplog.text


def fill(writer: Writer) -> None:
    while writer.has_room:
        writer.put(lambda _: None)


async def test_a_flush_fails_when_the_writer_ends_without_its_write(tmp_path: Path) -> None:
    database = open_database(f"sqlite:///{tmp_path}/store.db")
    writer = Writer(database)
    async with held_up(writer), asyncio.timeout(20):
        waiting = asyncio.create_task(writer.flush())
        await asyncio.sleep(0)
        for task in asyncio.all_tasks() - {waiting, asyncio.current_task()}:
            task.cancel()  # as the end of the event loop does
        for late in (waiting, writer.flush()):
            with pytest.raises(StoreUnavailable, match="closed"):
                await late
    await database.close()


async def test_a_late_request_or_a_cancelled_one_opens_no_store_that_nothing_would_close(tmp_path: Path) -> None:
    opening = asyncio.create_task(open_store(StoreOptions(f"sqlite:///{tmp_path}/store.db")))
    async with asyncio.timeout(20):
        while not (tmp_path / "store.db").exists():
            await asyncio.sleep(0)
    opening.cancel()
    await asyncio.wait({opening})
    assert (opening.cancelled(), writers()) == (True, [])
    access = StoreAccess(StoreOptions(f"sqlite:///{tmp_path}/store.db"))
    opening, closing = asyncio.create_task(access.get()), asyncio.create_task(access.close())
    await opening
    await closing
    with pytest.raises(StoreUnavailable, match="shutting down"):
        await access.get()
    assert await access.get_if_available() is None
    assert writers() == []


def writers() -> list[asyncio.Task[object]]:
    return [task for task in asyncio.all_tasks() if "Writer._run" in repr(task.get_coro())]


async def test_concurrent_callers_share_one_attempt_to_open_the_store() -> None:
    tried, all_wait = 0, asyncio.Event()

    async def refuse(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal tried
        tried += 1
        await all_wait.wait()
        writer.close()

    server = await asyncio.start_server(refuse, "127.0.0.1", 0)
    address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server, asyncio.timeout(20):
        access = StoreAccess(StoreOptions(f"postgresql://somebody@{address}/db?sslmode=disable"))
        first, *others = [asyncio.create_task(access.get()) for _ in range(5)]
        while not tried:
            await asyncio.sleep(0.01)
        first.cancel()
        all_wait.set()
        results = await asyncio.gather(first, *others, return_exceptions=True)
        await access.close()
    assert [type(result) for result in results] == [asyncio.CancelledError, *[StoreUnavailable] * 4]
    assert tried == 1
