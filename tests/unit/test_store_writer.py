"""The store and its writer can be closed at any time."""

from __future__ import annotations

import asyncio
from pathlib import Path
from threading import Event

import pytest
from sqlalchemy import Connection

from task.errors import StoreUnavailable
from task.store.access import StoreAccess
from task.store.database import open_database
from task.store.store import open_store
from task.store.writer import Writer


async def test_closing_in_the_middle_of_a_write_finishes_what_was_queued_since(tmp_path: Path) -> None:
    database = open_database(f"sqlite:///{tmp_path}/store.db")
    starting, may_end, written = Event(), Event(), list[str]()

    def slow(_: Connection) -> None:
        starting.set()
        assert may_end.wait(10)
        written.append("slow")

    writer = Writer(database)
    writer.put(slow)
    assert await asyncio.to_thread(starting.wait, 10)
    writer.put(lambda _: written.append("meanwhile"))
    closing = asyncio.create_task(writer.close())
    await asyncio.sleep(0)  # it asks for all that was put
    may_end.set()
    async with asyncio.timeout(5):
        await closing
    await database.close()
    assert written == ["slow", "meanwhile"]


async def test_a_flush_fails_when_the_writer_ends_without_its_write(tmp_path: Path) -> None:
    database = open_database(f"sqlite:///{tmp_path}/store.db")
    starting, may_end = Event(), Event()

    def slow(_: Connection) -> None:
        starting.set()
        assert may_end.wait(10)

    writer = Writer(database)
    writer.put(slow)
    waiting = asyncio.create_task(writer.flush())
    assert await asyncio.to_thread(starting.wait, 10)
    for task in asyncio.all_tasks() - {waiting, asyncio.current_task()}:
        task.cancel()  # as the end of the event loop does
    async with asyncio.timeout(10):
        for late in (waiting, writer.flush()):
            with pytest.raises(StoreUnavailable, match="closed"):
                await late
    may_end.set()
    await database.close()


async def test_a_cancelled_opening_of_a_store_leaves_no_writer(tmp_path: Path) -> None:
    opening = asyncio.create_task(open_store(f"sqlite:///{tmp_path}/store.db"))
    async with asyncio.timeout(10):
        while not (tmp_path / "store.db").exists():
            await asyncio.sleep(0)
    opening.cancel()
    await asyncio.wait({opening})
    assert opening.cancelled()
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
        access = StoreAccess(f"postgresql://somebody@{address}/db?sslmode=disable")
        first, *others = [asyncio.create_task(access.get()) for _ in range(5)]
        while not tried:
            await asyncio.sleep(0.01)
        first.cancel()
        all_wait.set()
        results = await asyncio.gather(first, *others, return_exceptions=True)
        await access.close()
    assert [type(result) for result in results] == [asyncio.CancelledError, *[StoreUnavailable] * 4]
    assert tried == 1


async def test_a_late_request_does_not_open_a_store_that_was_closed(tmp_path: Path) -> None:
    access = StoreAccess(f"sqlite:///{tmp_path}/store.db")
    opening, closing = asyncio.create_task(access.get()), asyncio.create_task(access.close())
    await opening
    await closing
    with pytest.raises(StoreUnavailable, match="ending"):
        await access.get()
    assert await access.get_if_available() is None
    assert writers() == []
