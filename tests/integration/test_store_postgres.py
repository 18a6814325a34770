"""The store on a PostgreSQL server: shared by processes, unavailable, full, read-only, and behind TLS."""

import asyncio
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Generator
from contextlib import AsyncExitStack, aclosing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import asyncpg
import pytest
from sqlalchemy import Connection, make_url, text

from task.approvals.approvals import ApprovalRules, RunApprovals
from task.conversation.inputs import Answer
from task.conversation.messages import FunctionCall, ToolCall, assistant, user
from task.errors import Conflict, SettingsError, StoreUnavailable
from task.llm.scripted import says, wants
from task.permissions.gate import Grant
from task.permissions.icerc import ICERC
from task.runs.replay import divergence, replayed
from task.runs.traces import TraceRecorder, TraceStart
from task.shares import ON_BEHALF_OF
from task.store.access import StoreOptions
from task.store.database import CONNECTIONS, PostgresDatabase, open_database
from task.store.records import Approval, Prompt, SessionFilter
from task.store.store import Store, open_store
from task.tools.toolbox import Pending
from tests.support.certificates import Certificate, certificate
from tests.support.postgres_server import PostgresServer, postgres_server
from tests.support.stores import OWNER, opened, sqlite_url
from tests.support.traced import traced
from tests.support.waiting import until

pytestmark = pytest.mark.system
ROOT = Path(__file__).parents[2]
DYING = ROOT / "tests" / "support" / "dying_run.py"


@pytest.fixture
async def server() -> AsyncGenerator[PostgresServer]:
    async with postgres_server() as server:
        yield server


@pytest.fixture
async def pair(server: PostgresServer) -> AsyncGenerator[tuple[Store, Store]]:
    async with opened(server.url) as one, opened(server.url, patience=2) as other:
        yield one, other


@pytest.mark.fault("store: clocks of two agents that differ by a minute")
async def test_clocks_that_differ_by_a_minute_interrupt_no_run_and_move_no_limit(server: PostgresServer) -> None:
    behind, ahead = (partial(_skewed, seconds) for seconds in (-30, 30))
    async with opened(server.url, behind, chores=False) as one, opened(server.url, ahead, chores=False) as other:
        run, late = await one.runs.start(OWNER), await other.runs.start(OWNER)
        for store in (one, other):
            await store.processes.beat()
            assert await store.processes.interrupt_orphans() == 0
        assert [(await one.runs.get(OWNER, item.run_id)).status for item in (run, late)] == ["running"] * 2
        assert abs(late.started_at - run.started_at) < 20
        async with aclosing(one.runs.events_after(OWNER, late.run_id)) as events:
            other.runs.append_event(late.run_id, "text", text="a word")
            await anext(events)  # a listener at the process whose clock is behind
            await other.runs.poll_requests()
            assert other.runs.seconds_since_listener(late.run_id) < 20
        left = [await store.limits.take("ann", 4) for store in (one, other, one, other, one)]
        assert [seconds is None for seconds in left] == [True] * 4 + [False]
        for store, item in ((one, run), (other, late)):
            await store.runs.finish(item, "finished")


def _skewed(seconds: float) -> float:
    return time.time() + seconds


@pytest.mark.fault("store: kill -9 in the middle of a run")
async def test_a_process_killed_in_the_middle_leaves_an_interrupted_run(server: PostgresServer) -> None:
    child = await asyncio.create_subprocess_exec(
        sys.executable, str(DYING), server.url, cwd=ROOT, env={"PYTHONPATH": str(ROOT)}, stdout=asyncio.subprocess.PIPE
    )
    assert child.stdout is not None
    async with asyncio.timeout(60):
        run_id, trace_id, session_id = (await child.stdout.readline()).decode().split()
        child.kill()
        await child.wait()
    async with opened(server.url) as store:
        assert (await store.runs.get(OWNER, run_id)).status == "interrupted"
        assert (await store.traces.get(OWNER, trace_id)).status == "interrupted"
        [*_, last] = (await store.sessions.get(OWNER, session_id)).messages
        assert last == replace(assistant("I was about to"), unsourced=True)


@pytest.mark.fault("store: several processes that start at once")
async def test_processes_that_start_at_once_make_one_schema(server: PostgresServer) -> None:
    stores = await asyncio.gather(*(open_store(StoreOptions(server.url)) for _ in range(5)))
    session = await stores[0].sessions.start(OWNER)
    for store in stores:
        assert await store.sessions.get(OWNER, session.session_id) == session
        await store.close()


@pytest.mark.fault("store: database gone and back")
async def test_an_unavailable_database_is_reported_and_queued_writes_are_made_once_it_is_back(
    server: PostgresServer,
) -> None:
    async with opened(server.url, patience=2) as store:
        session = await store.sessions.start(OWNER)
        run = await store.runs.start(OWNER, session=session, messages=[user("hi")])
        await server.stop()
        with pytest.raises(StoreUnavailable, match="does not answer"):
            await store.sessions.start(OWNER)
        with pytest.raises(StoreUnavailable, match="does not answer"):
            await store.runs.finish(run, "finished", added=[assistant("hello")])
        observer = TraceRecorder(store.traces, TraceStart(OWNER, "http", "m"))
        observer.end("finished")
        observer.record()
        await server.start()
        async with asyncio.timeout(30):
            while not (await store.traces.list(OWNER)).items:
                await asyncio.sleep(0.1)
        assert (await store.sessions.get(OWNER, session.session_id)).messages == (user("hi"), assistant("hello"))
        assert (await store.runs.get(OWNER, run.run_id)).status == "finished"


@pytest.mark.fault("store: a database that restarts under load")
async def test_an_answer_under_way_waits_for_a_database_that_restarts_and_asks_once(
    server: PostgresServer, caplog: pytest.LogCaptureFixture
) -> None:
    rules, call = ApprovalRules(), ToolCall("c", FunctionCall("send", "{}"))
    question, grant = Pending(call, ICERC("x", "send", "y"), "d"), Grant("tool", "send", OWNER, "", rules.clock() + 60)
    async with opened(server.url, patience=2, chores=False) as store:
        session_id = (await store.sessions.start(OWNER)).session_id
        run = await store.runs.start(OWNER)
        approvals = RunApprovals(store, rules, OWNER, session_id, run.run_id)
        for visit in (
            approvals.state,
            lambda: approvals.ask([question], session_id),
            lambda: approvals.save([grant]),
        ):
            caplog.clear()
            await server.stop()  # it cuts all connections
            visiting = asyncio.create_task(visit())
            await until(lambda: "the store cannot be used" in caplog.text)
            await server.start()
            await asyncio.wait_for(visiting, 30)
        [asked] = await store.approvals.list(OWNER, run_id=run.run_id)
        assert (asked.call_id, asked.digest, len(await store.grants.list(OWNER, session_id))) == ("c", "d", 1)
        await store.runs.finish(run, "finished")


async def test_a_server_that_is_frozen_is_named_in_time_and_used_again_afterwards(server: PostgresServer) -> None:
    database = PostgresDatabase(make_url(server.url), 5, longest=2)
    one = partial(Connection.scalar, statement=text("SELECT 1"))
    assert (await database.read(one), await database.write(one)) == (1, 1)
    with server.frozen():
        for visit in (database.read, database.write):
            async with asyncio.timeout(20):
                with pytest.raises(StoreUnavailable, match="does not answer"):
                    await visit(one)
    assert (await database.read(one), await database.write(one)) == (1, 1)
    await database.close()


@pytest.mark.fault("store: more visits at once than connections")
async def test_many_visits_at_once_take_turns_on_connections_that_stay_open(server: PostgresServer) -> None:
    def backend(connection: Connection) -> int:
        return connection.scalar(text("SELECT pg_backend_pid() FROM pg_sleep(0.01)")) or 0

    observer = await asyncpg.connect(server.url)
    async with opened(server.url, chores=False) as store:
        numbers = await asyncio.gather(*(store.database.read(backend) for _ in range(3 * CONNECTIONS)))
        assert len(set(numbers)) <= CONNECTIONS
        open_now = await observer.fetchval(
            "SELECT array_agg(pid) FROM pg_stat_activity WHERE backend_type LIKE 'client%'"
        )
        assert set(numbers) <= set(open_now)
    await observer.close()


@pytest.mark.fault("store: an agent all of whose database connections are taken")
async def test_a_process_whose_connections_are_all_taken_keeps_its_lease_and_its_runs(server: PostgresServer) -> None:
    observer = await asyncpg.connect(server.url)
    await observer.execute("SELECT pg_advisory_lock(1)")
    async with opened(server.url, chores=False, patience=2) as store, opened(server.url, chores=False) as other:
        run = await store.runs.start(OWNER)
        queue = text("SELECT pg_advisory_lock_shared(1), pg_advisory_unlock_shared(1)")
        visit = partial(Connection.execute, statement=queue)

        async def request(caller: str) -> None:
            ON_BEHALF_OF.set(caller)
            await store.database.read(visit)

        requests = [asyncio.create_task(request(str(number))) for number in range(CONNECTIONS)]
        async with asyncio.timeout(30):
            while await observer.fetchval(WAITING) < CONNECTIONS - 1:
                await asyncio.sleep(0.05)
        before = await observer.fetchval(SEEN, store.processes.own_id)
        await store.runs.renew()
        assert await observer.fetchval(SEEN, store.processes.own_id) > before
        await other.runs.request_cancel(OWNER, run.run_id)
        await store.runs.poll_requests()
        await asyncio.wait_for(store.runs.cancel_requested(run.run_id), 10)
        await observer.execute("SELECT pg_advisory_unlock(1)")
        await asyncio.wait_for(asyncio.gather(*requests, return_exceptions=True), 30)
        await store.runs.finish(run, "cancelled")
    await observer.close()


WAITING = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
SEEN = "SELECT seen_at FROM processes WHERE id = $1"


async def test_a_search_finds_the_same_as_in_a_file(server: PostgresServer, tmp_path: Path) -> None:
    found = list[list[list[str]]]()
    for url in (server.url, sqlite_url(tmp_path)):
        async with opened(url) as store:
            for title in ("Straße in Київ", "数据库 100%", "Café_au_lait", "half \ud800 \0 pair"):
                session = await store.sessions.start(OWNER, title, "page")
                await store.sessions.append(OWNER, session.session_id, [user(f"About {title}")], session.version)
                await store.sessions.pin(OWNER, session.session_id, True)
            pages = [
                await store.sessions.list(OWNER, which=SessionFilter(words, pinned=True, families=True))
                for words in ("STRASSE київ", "数据", "100%", "é_a", "half pair", "about", "nothing")
            ]
            found.append([sorted(f"{item.title}: {item.snippet}" for item in page.items) for page in pages])
    assert found[0] == found[1]
    assert [len(titles) for titles in found[0]] == [1, 1, 1, 1, 1, 4, 0]


@pytest.mark.fault("store: a database server that is read-only")
async def test_a_database_that_is_read_only_is_named_read_and_written_again_afterwards(server: PostgresServer) -> None:
    async def written() -> bool:
        try:
            await store.sessions.start(OWNER)
        except StoreUnavailable:
            return False
        return True

    async def refused() -> bool:
        return not await written()

    async with opened(server.url) as store:
        assert await written()
        operator = await asyncpg.connect(server.url)
        await operator.execute("ALTER SYSTEM SET default_transaction_read_only = on")
        await operator.execute("SELECT pg_reload_conf()")
        await until(refused)
        with pytest.raises(StoreUnavailable, match="An operator has to let AGENT_STORE__URL lead to"):
            await store.sessions.start(OWNER)
        assert len((await store.sessions.list(OWNER)).items) >= 1
        with pytest.raises(StoreUnavailable, match="read-only"):
            async with opened(server.url):  # an agent that starts meanwhile
                pass
        await operator.execute("SET default_transaction_read_only = off")
        await operator.execute("ALTER SYSTEM RESET default_transaction_read_only")
        await operator.execute("SELECT pg_reload_conf()")
        await operator.close()
        await until(written)


@contextmanager
def small_disk(mebibytes: int) -> Generator[Path]:
    """A file system of this size for the user postgres; the test is skipped where none can be mounted."""
    folder = Path(tempfile.mkdtemp(prefix="disk"))
    try:
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={mebibytes}m", "none", str(folder)], check=False)
        if mounted.returncode:
            pytest.skip("no file system can be mounted here")
        try:
            shutil.chown(folder, "postgres", "postgres")
            yield folder
        finally:
            subprocess.run(["umount", "--lazy", str(folder)], check=True)
    finally:
        folder.rmdir()


@pytest.mark.fault("store: a database server that is full")
async def test_a_database_without_room_is_named_and_written_again_once_there_is_some() -> None:
    with small_disk(40) as disk:
        async with postgres_server() as server:
            operator = await asyncpg.connect(server.url)
            await operator.execute(f"CREATE TABLESPACE small LOCATION '{disk}'")
            await operator.execute("CREATE DATABASE small TABLESPACE small")
            await operator.close()
            server.database = "small"
            async with opened(server.url) as store:
                session = await store.sessions.start(OWNER)
                long = random.Random(1).randbytes(1_000_000).hex()  # does not compress
                filling = await asyncpg.connect(server.url)
                await filling.execute("CREATE TABLE filler (text text)")
                rows = "INSERT INTO filler SELECT repeat('x', 1000) FROM generate_series(1, 100)"
                with pytest.raises(asyncpg.PostgresError):
                    await filling.execute(f"DO $$ BEGIN FOR i IN 1..1000 LOOP {rows}; COMMIT; END LOOP; END $$")
                with pytest.raises(StoreUnavailable, match="The store is full"):
                    await store.sessions.append(OWNER, session.session_id, [user(long)], session.version)
                assert (await store.sessions.get(OWNER, session.session_id)).length == 0
                await filling.execute("DROP TABLE filler")
                await filling.close()
                await store.sessions.append(OWNER, session.session_id, [user(long)], session.version)
                assert (await store.sessions.get(OWNER, session.session_id)).length == 1


@pytest.mark.fault("store: a database server without TLS, or whose certificate is not trusted or another host's")
async def test_a_certificate_of_the_server_is_verified_and_its_authority_can_be_named() -> None:
    with certificates("localhost") as made:
        tls = [f"ssl_cert_file={made.certificate}", f"ssl_key_file={made.key}", "ssl=on"]
        async with postgres_server(*(item for option in tls for item in ("-c", option))) as server:
            by_name = server.url.replace("127.0.0.1", "localhost")
            root = f"&sslrootcert={made.authority}"
            for url in (f"{by_name}?sslmode=require", f"{by_name}?sslmode=verify-full{root}",
                        f"{server.url}?sslmode=verify-ca{root}"):  # fmt: skip
                async with opened(url) as store:
                    assert await store.keys.list() == ()
            for url in (f"{by_name}?sslmode=verify-full", f"{server.url}?sslmode=verify-full{root}"):
                with pytest.raises(StoreUnavailable, match="certificate of the store's server is not trusted"):
                    async with opened(url, patience=2):
                        pass


@contextmanager
def certificates(name: str) -> Generator[Certificate]:
    """Files that the user postgres may read."""
    with tempfile.TemporaryDirectory(prefix="tls") as folder:
        made = certificate(Path(folder), name)
        if os.geteuid() == 0:
            for file in (Path(folder), made.certificate, made.key):
                shutil.chown(file, "postgres", "postgres")
        yield made


@pytest.mark.fault("store: an address of a database server with a wrong scheme, option, mode or file")
@pytest.mark.parametrize(
    ("url", "named"),
    [
        ("mysql://me:SECRET@host/name", "it must be sqlite:///"),
        ("postgresql://me:SECRET@host/name?sslmode=always", "there is no sslmode 'always'"),
        ("postgresql://me:SECRET@host/name?sslmode=verify-full&sslrootcert=/nowhere/ca.crt", "/nowhere/ca.crt"),
        ("postgresql://me:SECRET@host/name?sslcert=x", "option 'sslcert' is not known"),
    ],
)
def test_an_address_of_a_server_that_cannot_be_meant_is_refused(url: str, named: str) -> None:
    with pytest.raises(SettingsError, match=named) as refused:
        open_database(url)
    assert "SECRET" not in str(refused.value)


@pytest.mark.fault("store: more requests of one key than allowed, spread over two processes")
@pytest.mark.fault("store: two writers on one session")
async def test_what_one_process_stores_is_the_others_too(pair: tuple[Store, Store]) -> None:
    one, other = pair
    session = await one.sessions.start(OWNER, "nul \0 title")
    run = await one.runs.start(OWNER, session=session, messages=[user("nul \0 and ü\ud800")])
    with pytest.raises(Conflict, match="being answered already"):
        await other.runs.start(OWNER, session=await other.sessions.get(OWNER, session.session_id))

    async def texts() -> list[str]:
        return [event.data["text"] async for event in other.runs.events_after(OWNER, run.run_id)]

    listening = asyncio.create_task(texts())
    for word in ("one ", "two ", "three"):
        one.runs.append_event(run.run_id, "text", text=word)
    async with asyncio.timeout(20):
        stopped = asyncio.create_task(one.runs.cancel_requested(run.run_id))
        await other.runs.request_cancel(OWNER, run.run_id)
        await stopped
        await one.runs.finish(run, "cancelled", added=[assistant("one two three")])
        assert await listening == ["one ", "two ", "three"]
    now = await other.sessions.get(OWNER, session.session_id)
    assert now.messages == (user("nul \0 and ü?"), assistant("one two three"))
    writing = [
        store.sessions.append(OWNER, session.session_id, [user(str(n))], now.version)
        for n, store in enumerate(pair * 10)
    ]
    results = await asyncio.gather(*writing, return_exceptions=True)
    assert [result for result in results if not isinstance(result, Conflict)] == [now.version + 1]

    trace = await traced(one, wants("calculator", expression="25*47"), says("1175"))
    assert await other.traces.get(OWNER, trace.trace_id) == trace
    assert divergence(trace, await replayed(trace)) is None
    await asyncio.gather(*(each.prompts.save(OWNER, Prompt("a", "x")) for each in pair * 4))
    assert await other.prompts.list(OWNER) == (Prompt("a", "x"),)
    now = one.approvals.clock()
    asked = await one.approvals.ask(Approval("appr_1", OWNER, "c", "t", {"x": "\0"}, "d", now, now + 60))
    await other.approvals.answer(OWNER, asked.approval_id, Answer(False, "no"))
    assert (await one.approvals.get(OWNER, asked.approval_id)).answer == Answer(False, "no")
    taken = await asyncio.gather(*(store.limits.take("key_1", 6) for store in pair * 6))
    assert taken.count(None) == 6
    assert all(0 < wait < 11 for wait in taken if wait is not None)  # 10 s, each from when it came itself
    assert await one.limits.take("key_2", 6) is None


@pytest.mark.fault("store: a database server that refuses, or takes no more connections")
@pytest.mark.fault("store: no database at the start")
@pytest.mark.fault("store: a database server without TLS, or whose certificate is not trusted or another host's")
async def test_a_server_that_refuses_or_is_not_there_is_named(server: PostgresServer) -> None:
    host = f"127.0.0.1:{server.port}"
    for wrong, named in (
        (f"postgresql://nobody:SECRET@{host}/postgres", "refuses this agent"),
        (f"postgresql://tester:SECRET@{host}/nowhere", "refuses this agent"),
        ("postgresql://tester:SECRET@127.0.0.1:9/postgres", "does not answer"),
        (f"{server.url}?sslmode=require", "does not offer TLS"),
    ):
        with pytest.raises(StoreUnavailable, match=named) as caught:
            await open_store(StoreOptions(wrong, patience=2))
        assert "SECRET" not in str(caught.value)
    async with opened(f"{server.url}?sslmode=prefer", sessions=1, traces=1) as store:
        for _ in range(3):
            await store.sessions.start(OWNER)
            await traced(store, says("hi"))
        assert await store.forget() == 4
        assert len((await store.sessions.list(OWNER)).items) == 1
    async with AsyncExitStack() as stack:
        for _ in range(60):  # all that it allows
            connection = await asyncpg.connect(server.url)
            stack.push_async_callback(connection.close)
        with pytest.raises(StoreUnavailable, match="does not answer"):
            await open_store(StoreOptions(server.url, patience=2))
