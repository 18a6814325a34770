"""The row of `dial-agent doctor` about the store: its place, its content and a fix; never its password."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from task.commands.checks import Check, store_check
from task.llm.scripted import says
from task.settings import load_settings
from task.store.schema import HEAD
from tests.support.postgres_server import postgres_server
from tests.support.stores import OWNER, opened, sqlite_url
from tests.support.traced import traced
from tests.support.up import dial_agent

AWAY = "postgresql://ann:hush-hush@127.0.0.1:9/agents?sslmode=disable"


async def row(home: Path, url: str = "") -> Check:
    environ: Mapping[str, str] = {"HOME": str(home), **({"AGENT_STORE__URL": url} if url else {})}
    return await store_check(load_settings(environ=environ, directory=home))


async def filled(url: str) -> None:
    """A store with two sessions and one trace."""
    async with opened(url) as store:
        await store.sessions.start(OWNER)
        await store.sessions.start(OWNER)
        await traced(store, says("hi"))


async def set_version(url: str, version: str) -> None:
    async with opened(url) as store:
        await store.database.write(
            lambda connection: connection.exec_driver_sql(f"UPDATE alembic_version SET version_num = '{version}'")
        )


async def test_before_the_first_start_there_is_no_store_and_none_is_created(tmp_path: Path) -> None:
    found = await row(tmp_path)
    assert (found.state, "made at the first start" in found.found) == ("ok", True)
    assert str(tmp_path) in found.found
    assert not list(tmp_path.rglob("store.db*"))


async def test_a_folder_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    found = await row(tmp_path, "sqlite:////proc/nowhere/store.db")
    assert (found.state, "cannot be made" in found.found, "AGENT_STORE__URL" in found.fix) == ("bad", True, True)


async def test_the_contents_of_a_store_are_counted(tmp_path: Path) -> None:
    await filled(sqlite_url(tmp_path))
    found = await row(tmp_path, sqlite_url(tmp_path))
    assert (found.state, found.fix) == ("ok", "")
    assert f"SQLite in {tmp_path / 'store.db'}: answers; 2 sessions, 1 traces, 0." in found.found


@pytest.mark.parametrize(
    ("version", "state", "text"),
    [("0001", "note", "older version (0001)"), (HEAD, "ok", "0 sessions"), ("9999", "bad", "newer version (9999)")],
)
async def test_the_version_of_its_tables_is_reported(tmp_path: Path, version: str, state: str, text: str) -> None:
    await set_version(sqlite_url(tmp_path), version)
    found = await row(tmp_path, sqlite_url(tmp_path))
    assert (found.state, bool(found.fix)) == (state, state != "ok")
    assert text in found.found


async def test_a_file_that_is_not_a_database_is_reported(tmp_path: Path) -> None:
    (tmp_path / "store.db").write_bytes(b"no database at all " * 100)
    found = await row(tmp_path, sqlite_url(tmp_path))
    assert found.state == "bad"
    assert "not a database, or it is damaged" in found.found
    assert "AGENT_STORE__URL" in found.fix


@pytest.mark.parametrize(
    "url", [AWAY, "postgresql://ann:hush-hush@h/d?x=hush-hush", "postgresql://ann:hush-hush@h:hush-hush/d"]
)
async def test_an_unreachable_store_is_reported_without_its_password(tmp_path: Path, url: str) -> None:
    found = await row(tmp_path, url)
    assert (found.state, "AGENT_STORE__URL" in found.fix) == ("bad", True)
    assert "hush-hush" not in f"{found.found} {found.fix}"


async def test_the_command_prints_the_row_and_no_password(tmp_path: Path) -> None:
    shown = await dial_agent(tmp_path, "doctor", "--json", AGENT_STORE__URL=AWAY)
    rows: list[dict[str, Any]] = json.loads(shown.out)
    [found] = [item["found"] for item in rows if item["name"] == "store"]
    assert found.startswith("PostgreSQL at 127.0.0.1:9/agents: The store's database does not answer.")
    assert shown.code == 1
    assert "hush-hush" not in shown.out + shown.err


@pytest.mark.system
async def test_a_server_is_reported_by_its_address_and_contents(tmp_path: Path) -> None:
    async with postgres_server() as server:
        url = server.url.replace("tester@", "tester:hush-hush@")
        empty = await row(tmp_path, url)
        await filled(url)
        found = await row(tmp_path, url)
    place = f"PostgreSQL at 127.0.0.1:{server.port}/postgres"
    assert (empty.state, empty.found) == ("ok", f"{place}: answers; empty, its tables are made at the first start")
    assert found.state == "ok"
    assert found.found.startswith(f"{place}: answers; 2 sessions, 1 traces, ")
