"""The row of `dial-agent doctor` about the store of sessions and traces."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from task.commands.checks import Check
from task.errors import SettingsError, StoreUnavailable
from task.settings import Settings

if TYPE_CHECKING:
    from task.store.survey import Survey

ROW = "store"
PATIENCE = 2.0  # seconds
MIB = 2**20
SQLITE = "sqlite:///"


async def store_check(settings: Settings) -> Check:
    """Which database it is, whether it answers, how far its tables are, and how much is in it."""
    from task.store.database import open_database
    from task.store.survey import surveyed

    url = str(settings.store_options["url"])
    if (new := _new_file(url)) is not None:  # to open it would make it
        return _without_file(new)
    try:
        database = open_database(url, PATIENCE)
    except SettingsError as error:
        return Check(ROW, "bad", str(error), "Correct AGENT_STORE__URL.")
    try:
        return _row(database.place, await surveyed(database))
    except StoreUnavailable as error:
        mend = "Look at it, or name another store with AGENT_STORE__URL."
        return Check(ROW, "bad", f"{database.place}: {error}", mend)
    finally:
        await database.close()


def _new_file(url: str) -> Path | None:
    file = Path(url.removeprefix(SQLITE))
    return file if url.startswith(SQLITE) and file.name and not file.exists() else None


def _without_file(file: Path) -> Check:
    """The row of a store that is still to be made: in the nearest folder that is there."""
    folder = next(parent for parent in file.absolute().parents if parent.exists())
    try:
        with tempfile.TemporaryFile(dir=folder):
            return Check(ROW, "ok", f"SQLite in {file}: made at the first start")
    except OSError as error:
        mend = "Name a folder you may write to with AGENT_STORE__URL."
        return Check(ROW, "bad", f"SQLite in {file}: it cannot be made: {error.strerror}", mend)


def _row(place: str, found: Survey) -> Check:
    if found.newer:
        told = f"{place}: written by a newer version ({found.version}) of this product"
        return Check(ROW, "bad", told, "Start that version, or name another store with AGENT_STORE__URL.")
    if found.older:
        told = f"{place}: answers; its tables are those of an older version ({found.version})"
        return Check(ROW, "note", told, "The next start brings them up to date; take a backup before.")
    if found.version is None:
        return Check(ROW, "ok", f"{place}: answers; empty, its tables are made at the first start")
    told = f"{found.sessions:,} sessions, {found.traces:,} traces, {found.size / MIB:,.1f} MiB"
    return Check(ROW, "ok", f"{place}: answers; {told}")
