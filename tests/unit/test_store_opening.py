"""A new store that several processes open at the same moment."""

from __future__ import annotations

import asyncio
from pathlib import Path

from sqlalchemy import Connection

from task.store.database import open_database

PROCESSES = 6


async def test_a_new_file_that_several_open_at_once_is_busy_for_none_of_them(tmp_path: Path) -> None:
    for number in range(40):
        url = f"sqlite:///{tmp_path / str(number)}.db"
        databases = [open_database(url, patience=30) for _ in range(PROCESSES)]
        modes = await asyncio.gather(*(database.write(_mode) for database in databases))
        assert modes == ["wal"] * PROCESSES
        await asyncio.gather(*(database.close() for database in databases))


def _mode(connection: Connection) -> str:
    return str(connection.exec_driver_sql("PRAGMA journal_mode").scalar())
