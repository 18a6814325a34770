"""The store's writer ends when it is told to, whatever it is doing."""

from __future__ import annotations

import asyncio
from pathlib import Path
from threading import Event

from sqlalchemy import Connection

from task.sessions.store import open_database
from task.sessions.writer import Writer


async def test_closing_in_the_middle_of_a_write_ends_after_what_was_put_meanwhile(tmp_path: Path) -> None:
    database = open_database(f"sqlite:///{tmp_path}/store.db")
    begun, may_end, written = Event(), Event(), list[str]()

    def slow(_: Connection) -> None:
        begun.set()
        assert may_end.wait(10)
        written.append("slow")

    writer = Writer(database)
    writer.put(slow)
    assert await asyncio.to_thread(begun.wait, 10)
    writer.put(lambda _: written.append("meanwhile"))
    closing = asyncio.create_task(writer.close())
    await asyncio.sleep(0)  # it asks for all that was put
    may_end.set()
    async with asyncio.timeout(5):
        await closing
    await database.close()
    assert written == ["slow", "meanwhile"]
