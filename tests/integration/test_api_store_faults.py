"""What callers of the HTTP door see when its database is locked, full or away, or its process is killed."""

import asyncio
import resource
import signal
import sqlite3
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, closing
from pathlib import Path

import pytest
from aiohttp import ClientError, ClientSession, ClientTimeout

from task.api.identity import LOCAL_OWNER
from task.llm.scripted import says
from tests.support.agent import agent_process
from tests.support.http_api import MODEL, NOWHERE, Api, http_api, said
from tests.support.ports import free_port
from tests.support.postgres_server import postgres_server
from tests.support.replies import Reply
from tests.support.stores import opened
from tests.support.upstream import Upstream, dripping, hanging, never_answering, openai_upstream
from tests.support.waiting import until


def asked_to_retry(reply: Reply) -> bool:
    return reply.status == 503 and reply.error["code"] == "store_unavailable" and bool(reply.headers["Retry-After"])


@asynccontextmanager
async def own_process(home: Path, upstream: Upstream) -> AsyncGenerator[tuple[Api, asyncio.subprocess.Process]]:
    """`dial-agent serve` with its data in a folder that outlives it."""
    port, variables = free_port(), {
        "AGENT_BACKEND": "openai", "OPENAI_BASE_URL": upstream.url, "OPENAI_API_KEY": "sk-test",
        "DEPLOYMENT_NAME": MODEL, "DIAL_ENDPOINT": NOWHERE, "AGENT_DATA_DIR": str(home.parent / "data"),
    }  # fmt: skip
    async with (
        agent_process(home, port, variables) as process,
        ClientSession(timeout=ClientTimeout(30)) as session,
    ):
        yield Api(f"http://127.0.0.1:{port}", upstream, session), process


@pytest.mark.fault("http api: database locked while it serves")
async def test_while_the_database_is_locked_sessions_can_be_read_and_nothing_is_started(tmp_path: Path) -> None:
    async with http_api(then=says("Hello."), tmp_path=tmp_path) as api:
        before = (await api.post("/chat", {"messages": [said("Hi")]})).json
        with closing(sqlite3.connect(tmp_path / "agent" / "store.db", isolation_level=None)) as holder:
            holder.execute("BEGIN IMMEDIATE")
            refused = await api.post("/chat", {"messages": [said("And?")], "session_id": before["session_id"]})
            read = await api.get(f"/session/{before['session_id']}")
            holder.execute("ROLLBACK")
        again = await api.post("/chat", {"messages": [said("And?")], "session_id": before["session_id"]})
        messages = (await api.get(f"/session/{before['session_id']}")).json["messages"]
    assert asked_to_retry(refused)
    assert "busy" in refused.error["message"]
    assert (read.status, again.status) == (200, 200)
    assert [message["content"] for message in messages] == ["Hi", "Hello.", "And?", "Hello."]


@pytest.mark.fault("http api: database gone and back while it serves")
@pytest.mark.fault("store: a database that goes away while events are streamed")
@pytest.mark.system
async def test_while_the_database_is_away_events_end_early_and_requests_are_a_503_until_it_is_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        postgres_server() as server,
        http_api(then=says("Hello."), tmp_path=tmp_path, store={"url": server.url}) as api,
        opened(server.url, chores=False) as other,
    ):
        before = (await api.post("/chat", {"messages": [said("Hi")]})).json
        run = await other.runs.start(LOCAL_OWNER)
        async with asyncio.timeout(60), api.session.get(f"{api.url}/runs/{run.run_id}/events") as response:
            await server.stop()
            rest = await response.read()
        gone = [await api.get("/sessions"), await api.post("/chat", {"messages": [said("And?")]})]
        await server.start()

        async def back() -> bool:
            return (await api.get("/sessions")).status == 200

        await until(back)
        other.runs.append_event(run.run_id, "text", text="a word")
        await other.runs.finish(run, "finished")
        again = await api.events(run.run_id)
        later = await api.post("/chat", {"messages": [said("And?")], "session_id": before["session_id"]})
    assert all(map(asked_to_retry, gone))
    assert (later.status, later.json["session_id"]) == (200, before["session_id"])
    assert (response.status, b"data:" in rest) == (200, False)
    assert [event["type"] for event in again] == ["text"]
    assert "failed unexpectedly" not in caplog.text


@pytest.mark.fault("http api: kill -9 in the middle of a run, and a restart")
@pytest.mark.fault("store: a request repeated after its agent died without a word")
@pytest.mark.system
async def test_a_killed_agent_that_is_started_again_has_the_conversation_and_continues(tmp_path: Path) -> None:
    async def keyed(api: Api, stream: bool) -> Reply:
        body = {"messages": [said("Tell me.")], "stream": stream}
        return await api.post("/v1/chat/completions", body, headers={"Idempotency-Key": f"a key {stream}"})

    async def saved() -> bool:
        return "Half" in stored(tmp_path, "events") and "Tell me." in stored(tmp_path, "traces")

    silent = never_answering()
    script = (hanging(says("Half", " a sentence"), chunks=3), silent, silent, says("Here I am."))
    async with openai_upstream(*script) as upstream:
        async with own_process(tmp_path / "first", upstream) as (api, agent):
            run = (await api.post("/runs", {"messages": [said("Tell me.")]})).json
            await until(saved)
            lost = [asyncio.create_task(keyed(api, stream)) for stream in (True, False)]
            await upstream.received(3)
            agent.send_signal(signal.SIGKILL)
            await asyncio.wait_for(agent.wait(), 10)
            await asyncio.wait(lost, timeout=30)
            assert all(isinstance(one.exception(), ClientError) for one in lost)
        async with own_process(tmp_path / "second", upstream) as (api, _):

            async def marked() -> bool:
                return (await api.get(f"/runs/{run['run_id']}")).json["status"] == "interrupted"

            again = [await keyed(api, stream) for stream in (True, False)]
            await until(marked)
            events = await api.events(run["run_id"])
            trace = (await api.get(f"/traces/{run['trace_id']}")).json
            answer = (await api.complete("Go on.", session_id=run["session_id"])).json
            session = (await api.get(f"/session/{run['session_id']}")).json["messages"]
    refusals = [(one.status, one.error["code"], one.error["message"]) for one in again]
    assert refusals == [(503, "interrupted", "The answer was interrupted.")] * 2
    assert (events[-1]["type"], events[-1]["status"]) == ("finished", "interrupted")
    assert (trace["status"], trace["turns"][0]["content"]) == ("interrupted", "Tell me.")
    assert answer["choices"][0]["message"]["content"] == "Here I am."
    assert [message["content"][:4] for message in session] == ["Tell", "Half", "Go o", "Here"]


def stored(tmp_path: Path, table: str) -> str:
    with closing(sqlite3.connect(f"file:{tmp_path / 'data' / 'store.db'}?mode=ro", uri=True)) as reader:
        return str(reader.execute(f"SELECT data FROM {table}").fetchall())


@pytest.mark.fault("http api: disk full while it serves")
@pytest.mark.system
async def test_on_a_full_disk_nothing_starts_and_an_answer_is_kept_once_there_is_room(tmp_path: Path) -> None:
    slow = dripping(says(*("word " for _ in range(3))), seconds=0.0005)
    async with (
        openai_upstream(slow, slow, says("Hello.")) as upstream,
        own_process(tmp_path / "home", upstream) as (api, agent),
    ):
        session_id = (await api.post("/session/start")).json["session_id"]
        whole = resource.prlimit(agent.pid, resource.RLIMIT_FSIZE)
        chat = {"messages": [said("?")], "session_id": session_id, "stream": True}
        async with (
            api.session.post(f"{api.url}/v1/chat/completions", json=chat) as one,
            api.session.post(f"{api.url}/v1/responses", json={"input": "?", "stream": True}) as other,
        ):
            for response in (one, other):
                await response.content.readline()
            [run] = (await api.get(f"/runs?session_id={session_id}")).json["runs"]
            events = await api.session.get(f"{api.url}/runs/{run['run_id']}/events")
            resource.prlimit(agent.pid, resource.RLIMIT_FSIZE, (0, whole[1]))
            ends = [(await response.text())[-2000:] for response in (one, other)]
            followed = await events.text()
        refused = await api.post("/chat", {"messages": [said("And?")]})
        read = await api.get(f"/session/{session_id}")
        resource.prlimit(agent.pid, resource.RLIMIT_FSIZE, whole)

        async def kept() -> bool:
            return len((await api.get(f"/session/{session_id}")).json["messages"]) == 2

        await until(kept)
        again = await api.events(run["run_id"])
        later = await api.post("/chat", {"messages": [said("And?")], "session_id": session_id})
    assert asked_to_retry(refused)
    assert "full" in refused.error["message"]
    assert (read.status, later.status, later.json["response"]) == (200, 200, "Hello.")
    assert ["store is full" in end for end in ends] == [True, True]
    assert '"error"' in ends[0]
    assert "response.failed" in ends[1]
    assert '"text"' in followed
    assert '"finished"' not in followed  # nothing is promised before it is on disk
    assert again[-1]["status"] == "finished"
