"""Agents of two versions on one store: one version apart they work together, two apart the later one is refused."""

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path

import asyncpg
import pytest

from task.errors import StoreVersionError
from task.llm.scripted import says
from task.product import opened as opened_product
from task.settings import Settings
from task.store.database import open_database
from task.store.tables import HEAD
from tests.support.http_api import Api
from tests.support.next_version import later_product, version_after
from tests.support.postgres_server import PostgresServer, postgres_server
from tests.support.stores import OWNER, opened, sqlite_url
from tests.support.two_agents import TwoAgents, agents_before_a_model
from tests.support.up import Finished, dial_agent
from tests.support.waiting import until

pytestmark = pytest.mark.system
FREE = {"AGENT_HTTP__REQUESTS_PER_MINUTE": "1000000"}


@pytest.fixture
async def server() -> AsyncGenerator[PostgresServer]:
    async with postgres_server() as server:
        yield server


@pytest.fixture(params=["sqlite", "postgresql"])
async def url(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncGenerator[str]:
    async with AsyncExitStack() as stack:
        on_server = request.param == "postgresql"
        yield (await stack.enter_async_context(postgres_server())).url if on_server else sqlite_url(tmp_path)


async def store(home: Path, *arguments: str, url: str, **environ: str) -> Finished:
    return await dial_agent(home, "store", *arguments, AGENT_STORE__URL=url, **environ)


@asynccontextmanager
async def talking(agents: TwoAgents, api: Api) -> AsyncGenerator[list[int]]:
    """A client that asks in one session after another without a pause; the statuses of its answers."""
    statuses = list[int]()

    async def talk() -> None:
        while True:
            session_id = (await api.post("/session/start", {"title": "traffic"})).json["session_id"]
            for _ in range(3):
                statuses.append((await api.complete("And now?", session_id=session_id)).status)

    talk_on = asyncio.create_task(talk())
    try:
        yield statuses
        before = len(statuses)
        await until(lambda: len(statuses) >= before + 6 or talk_on.done(), 60)
    finally:
        talk_on.cancel()
        await asyncio.wait({talk_on})
    assert talk_on.cancelled()


@pytest.mark.fault("store: replicas one version apart, while the tables are changed")
async def test_one_version_apart_both_serve_one_store_while_it_is_migrated(tmp_path: Path, url: str) -> None:
    later = later_product(tmp_path / "later")
    async with agents_before_a_model(tmp_path, url) as agents, agents.agent(**FREE) as (old, _):
        agents.urls += [old, old]
        api, _ = await agents.caller()
        agents.says(*[says("It goes on.")] * 10_000)
        async with talking(agents, api) as statuses:
            migrated = await store(tmp_path, "migrate", url=url, PYTHONPATH=later)
            assert migrated.code == 0, migrated.err
            assert f"from version {HEAD} to {version_after(1)}" in migrated.out
            async with agents.agent(PYTHONPATH=later, **FREE) as (new, _), agents.agent(**FREE) as (restarted, _):
                session_id = (await api.post("/session/start", {"title": "both"})).json["session_id"]
                for address in (old, new, restarted, old):
                    each = Api(address, api.upstream, api.session, api.headers)
                    assert (await each.complete("Next?", session_id=session_id)).status == 200
                assert len((await api.get(f"/session/{session_id}")).json["messages"]) == 8
        assert set(statuses) == {200}


@pytest.mark.fault("store: a store of a newer version")
@pytest.mark.fault("store: replicas two versions apart")
async def test_two_versions_apart_neither_changes_or_uses_the_store_of_the_other(tmp_path: Path, url: str) -> None:
    later = later_product(tmp_path / "later", 2)
    async with opened(url, chores=False):
        refused = await store(tmp_path, "migrate", url=url, PYTHONPATH=later)
        assert (refused.code, "in use by a process of an older version" in refused.err) == (2, True), refused.err
    migrated = await store(tmp_path, "migrate", url=url, PYTHONPATH=later)
    assert (migrated.code, version_after(2) in migrated.out) == (0, True), migrated.err
    reason = f"The store was written by a newer version ({version_after(2)}) of this product, more than one ahead"
    for command in (("serve",), ("store", "migrate")):
        refused = await dial_agent(tmp_path, *command, AGENT_STORE__URL=url, AGENT_PORT="0", AGENT_LOG_LEVEL="ERROR")
        lines = [line for line in refused.err.splitlines() if line.startswith("The store")]
        assert (refused.code, len(lines), lines[0].startswith(reason)) == (2, 1, True), refused.err


@pytest.mark.fault("store: a database that does not answer a migration")
@pytest.mark.fault("store: an older store that may not be migrated")
async def test_an_older_store_that_may_not_be_migrated_or_does_not_answer_is_named(tmp_path: Path) -> None:
    url = sqlite_url(tmp_path)
    refused = await dial_agent(tmp_path, "serve", AGENT_STORE__URL=url, AGENT_PORT="0", AGENT_STORE__MIGRATE="off")
    assert (refused.code, "run `dial-agent store migrate`" in refused.err) == (2, True), refused.err
    assert (await store(tmp_path, "migrate", url=url)).code == 0
    kept = await dial_agent(tmp_path, "keys", "list", AGENT_STORE__URL=url, AGENT_STORE__MIGRATE="off")
    assert kept.code == 0, kept.err
    ended = await store(tmp_path, "migrate", url="postgresql://ann:hush-hush@127.0.0.1:9/agents")
    line = "The store's database does not answer. Try again in a moment."
    assert (ended.code, ended.err.splitlines()[-1], ended.out) == (1, line, "")
    assert "hush-hush" not in ended.err


@pytest.mark.fault("store: several migrations at once")
@pytest.mark.fault("store: a table in use during a migration")
async def test_a_migration_waits_for_another_and_for_a_table_in_use_which_others_use_meanwhile(
    tmp_path: Path, server: PostgresServer
) -> None:
    finished = await asyncio.gather(*(store(tmp_path, "migrate", url=server.url) for _ in range(3)))
    assert [each.code for each in finished] == [0] * 3, [each.err for each in finished]
    assert sum("are created" in each.out for each in finished) == 1
    again = await store(tmp_path, "migrate", url=server.url)
    assert f"its tables are up to date, version {HEAD}" in again.out
    later = later_product(tmp_path / "later")
    async with opened(server.url) as used:
        backup = await asyncpg.connect(server.url)
        try:
            async with backup.transaction():
                await backup.execute("LOCK TABLE sessions IN ACCESS SHARE MODE")
                migrating = store(tmp_path, "migrate", "--seconds", "6", url=server.url, PYTHONPATH=later)
                waiting = asyncio.create_task(migrating)
                while not waiting.done():
                    async with asyncio.timeout(30):
                        await used.sessions.start(OWNER, "meanwhile")
                        await asyncio.sleep(0.1)
            refused = await waiting
            assert await backup.fetchval("SELECT version_num FROM alembic_version") == HEAD
        finally:
            await backup.close()
        assert (refused.code, "could not be changed within 6 s" in refused.err) == (1, True), refused.err
    migrated = await store(tmp_path, "migrate", url=server.url, PYTHONPATH=later)
    assert migrated.code == 0, migrated.err


@pytest.mark.fault("store: a clock five minutes away from the store's")
@pytest.mark.parametrize(("seconds", "direction"), [(-300, "behind"), (300, "ahead of")])
async def test_a_clock_five_minutes_off_is_named_and_approvals_end_by_the_stores_time(
    server: PostgresServer, seconds: float, direction: str
) -> None:
    def shifted() -> float:
        return time.time() + seconds

    async with opened(server.url, shifted, chores=False) as wrong, opened(server.url) as right:
        [sentence] = await wrong.processes.disagreements()
        assert f"this machine's clock is 300 s {direction} the store's" in sentence
        assert await right.processes.disagreements() == ()
    services, profile = opened_product(Settings.model_validate({"store": {"url": server.url}}), tools=())
    services.store.options = replace(services.store.options, clock=shifted)
    try:
        assert abs(profile.rules.clock() - time.time() - seconds) < 60
        await services.store.get()
        assert abs(profile.rules.clock() - time.time()) < 60
    finally:
        await services.close()


@pytest.mark.fault("store: replicas with different secrets")
async def test_replicas_with_different_secrets_say_so_until_one_has_left(
    tmp_path: Path, server: PostgresServer
) -> None:
    async with agents_before_a_model(tmp_path, server.url) as agents, agents.agent(AGENT_STATE_SECRET="a" * 32) as one:
        async with agents.agent(AGENT_STATE_SECRET="b" * 32) as other:
            for address, _ in (one, other):
                await until_degraded(agents, address, "another AGENT_STATE_SECRET")
            row = await dial_agent(
                tmp_path, "doctor", "--json", AGENT_STORE__URL=server.url, AGENT_STATE_SECRET="c" * 32
            )
            assert "Another agent of this store has another AGENT_STATE_SECRET" in row.out
        await until_degraded(agents, one[0], None)
        async with agents.agent(AGENT_STATE_SECRET="a" * 32) as (same, _):
            await until_degraded(agents, same, None)


async def until_degraded(agents: TwoAgents, address: str, words: str | None) -> None:
    """Return when `/ready` reports the disagreement with these words, or none."""
    async with asyncio.timeout(60):
        while True:
            async with agents.session.get(f"{address}/ready") as response:
                found = " ".join((await response.json())["degraded"])
            if response.status == 200 and (words in found if words else "SECRET" not in found):
                return
            await asyncio.sleep(0.2)


@pytest.mark.fault("store: a store of another product")
@pytest.mark.parametrize("version", ["f3a9", "0005a1c2"])
async def test_a_store_whose_version_is_no_number_is_of_another_product(tmp_path: Path, version: str) -> None:
    async with opened(sqlite_url(tmp_path)):
        pass
    database = open_database(sqlite_url(tmp_path))
    await database.write(lambda work: work.exec_driver_sql(f"UPDATE alembic_version SET version_num = '{version}'"))
    await database.close()
    with pytest.raises(StoreVersionError, match=f"newer version \\({version}\\)"):
        async with opened(sqlite_url(tmp_path)):
            pass
