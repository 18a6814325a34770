"""Two agents on one PostgreSQL, and two workers on one SQLite file, are one agent to every client of either."""

import asyncio
import json
import re
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager
from time import monotonic
from typing import Any

import pytest
import pytest_asyncio
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine

from task.llm.scripted import says, wants
from tests.support.api_client import coded
from tests.support.http_api import Api, said
from tests.support.two_agents import PER_MINUTE, TwoAgents, two_agents, two_agents_on_redis, two_workers
from tests.support.upstream import hanging
from tests.support.waiting import until

pytestmark = [pytest.mark.system, pytest.mark.asyncio(loop_scope="module")]
HALF = hanging(says("Half", " a sentence"), chunks=3)
FINISHED = re.compile(r'dial_agent_runs_total{.*outcome="finished"')
BOTH = pytest.mark.parametrize("agents", [two_agents, two_workers], indirect=True)
ALL = pytest.mark.parametrize("agents", [two_agents, two_workers, two_agents_on_redis], indirect=True)
WORKERS = pytest.mark.parametrize("agents", [two_workers], indirect=True)


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=[two_agents])
async def agents(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> AsyncGenerator[TwoAgents]:
    async with request.param(tmp_path_factory.mktemp("agents")) as started:
        yield started


async def live(api: Api, run_id: str, after: int = 0) -> AsyncGenerator[dict[str, Any]]:
    """The run's events as they come."""
    headers = {**api.headers, "Last-Event-ID": str(after)}
    async with api.session.get(f"{api.url}/runs/{run_id}/events", headers=headers) as response:
        async for line in response.content:
            if line.startswith(b"data: "):
                yield json.loads(line[6:])


async def events_until(api: Api, run_id: str, kind: str, after: int = 0) -> list[dict[str, Any]]:
    """The run's events to the first of this kind; then the listener leaves."""
    found: list[dict[str, Any]] = []
    async with asyncio.timeout(30), aclosing(live(api, run_id, after)) as events:
        async for event in events:
            found.append(event)
            if event["type"] == kind:
                return found
    raise AssertionError(f"the stream ended without {kind!r}: {found}")


async def asked(api: Api, count: int = 1) -> list[dict[str, Any]]:
    """The questions of a new run that wants to write."""
    run = (await api.post("/runs", {"messages": [said("note it")]})).json
    assert (await events_until(api, run["run_id"], "finished"))[-1]["status"] == "suspended"
    approvals = (await api.get(f"/approvals?run_id={run['run_id']}")).json["approvals"]
    assert len(approvals) == count
    return approvals


@BOTH
async def test_a_run_is_followed_live_in_the_other_and_stopped_there(agents: TwoAgents) -> None:
    one, other = await agents.caller()
    agents.says(HALF)
    gone = agents.upstream.disconnects
    run = (await one.post("/runs", {"messages": [said("?")]})).json
    before = await events_until(other, run["run_id"], "text")
    following = asyncio.create_task(events_until(other, run["run_id"], "finished", after=before[-1]["id"]))
    stopped = await other.post(f"/runs/{run['run_id']}/cancel")
    rest = await following
    await agents.upstream.disconnected(gone + 1)
    numbers = [event["id"] for event in (*before, *rest)]
    assert stopped.status == 200
    assert numbers == list(range(1, len(numbers) + 1))
    assert rest[-1]["status"] == "cancelled"
    messages = (await other.get(f"/session/{run['session_id']}")).json["messages"]
    assert messages[-1]["content"].startswith("Half")


@pytest.mark.fault("store: more requests of one key than allowed, spread over two processes")
@ALL
async def test_a_keys_requests_count_in_both(agents: TwoAgents) -> None:
    one, other = await agents.caller()
    began = monotonic()
    replies = await asyncio.gather(*(api.get("/sessions") for api in (one, other) * PER_MINUTE))
    refilled = monotonic() - began + 1
    statuses = [reply.status for reply in replies]
    assert set(statuses) == {200, 429}
    assert PER_MINUTE <= statuses.count(200) <= PER_MINUTE + refilled
    assert all(int(reply.headers["Retry-After"]) >= 1 for reply in replies if reply.status == 429)


@pytest.mark.fault("store: two answers to one question at once, in two processes")
@BOTH
async def test_the_same_answer_in_both_at_once_is_answered_alike_and_the_call_runs_once(agents: TwoAgents) -> None:
    one, other = await agents.caller()
    agents.says(wants("write_note", text="milk"), says("Noted."))
    [approval] = await asked(one)
    path = f"/approvals/{approval['approval_id']}"
    replies = await asyncio.gather(*(api.post(path, {"decision": "approve"}) for api in (one, other)))
    assert [reply.status for reply in replies] == [200, 200], [reply.text for reply in replies]
    resumed = next(reply.json["resumed"] for reply in replies if reply.json["resumed"])
    for api in (one, other):
        assert (await events_until(api, resumed["run_id"], "finished"))[-1]["status"] == "finished"
    runs = (await other.get(f"/runs?session_id={approval['session_id']}")).json["runs"]
    assert [run["status"] for run in runs] == ["finished", "suspended"]
    assert agents.notes().count("milk") == 1


@asynccontextmanager
async def traces_held(agents: TwoAgents) -> AsyncGenerator[None]:
    """Nobody can write a trace, and so end a run, inside the block."""
    engine = create_async_engine(agents.store_url.replace("postgresql:", "postgresql+asyncpg:"))
    try:
        async with engine.begin() as connection:
            await connection.execute(text("LOCK TABLE traces IN EXCLUSIVE MODE"))
            yield
    finally:
        await engine.dispose()


@pytest.mark.fault("store: an answer before its run is stored")
async def test_an_answer_that_comes_before_the_run_is_stored_continues_it(agents: TwoAgents) -> None:
    one, other = await agents.caller()
    agents.says(wants("write_note", text="rice"), says("Noted."))
    async with traces_held(agents):
        run = (await one.post("/runs", {"messages": [said("note it")]})).json
        path = f"/approvals?run_id={run['run_id']}&waiting="

        async def is_asked() -> bool:
            return bool((await other.get(f"{path}true")).json["count"])

        async def is_answered() -> bool:
            return not (await one.get(f"{path}true")).json["count"]

        await until(is_asked)
        [approval] = (await other.get(f"{path}true")).json["approvals"]
        answering = asyncio.create_task(other.post(f"/approvals/{approval['approval_id']}", {"decision": "approve"}))
        await until(is_answered)
        assert (await one.get(f"/runs/{run['run_id']}")).json["status"] == "running"
    resumed = (await asyncio.wait_for(answering, 20)).json["resumed"]
    assert resumed is not None
    assert (await events_until(one, resumed["run_id"], "finished"))[-1]["status"] == "finished"
    assert agents.notes().count("rice") == 1


@pytest.mark.fault("http api: a restart, or another agent, between the steps of a client without a session")
async def test_a_client_without_a_session_approves_at_the_other_by_the_code(agents: TwoAgents) -> None:
    one, other = await agents.caller()
    agents.says(wants("write_note", text="flour"), says("Noted."))
    question = (await one.complete("note it")).json["choices"][0]["message"]
    history = [said("note it"), question, said(coded("approve", question["content"]))]
    replies = [await api.post("/v1/chat/completions", {"messages": history}) for api in (other, one)]
    assert [reply.json["choices"][0]["message"]["content"] for reply in replies] == ["Noted.", "Noted."]
    sent = agents.upstream.requests[-1].messages
    assert [item["content"] for item in sent if item["role"] == "tool"] == ["noted: flour"]
    assert agents.notes().count("flour") == 1


@BOTH
async def test_a_request_with_a_key_starts_one_run_whichever_gets_it(agents: TwoAgents) -> None:
    one, other = await agents.caller()
    agents.says(HALF)
    body, key = {"messages": [said("note it")]}, {"Idempotency-Key": "the-same"}
    first, again = await asyncio.gather(*(api.post("/runs", body, headers=key) for api in (one, other)))
    assert (first.status, again.status, first.json["run_id"]) == (202, 202, again.json["run_id"])
    assert len((await one.get("/runs")).json["runs"]) == 1


@WORKERS
async def test_each_worker_answers_with_the_figures_of_all(agents: TwoAgents) -> None:
    one, other = await agents.caller()

    async def finished() -> float:
        lines = (await other.get("/metrics")).text.splitlines()
        return sum(float(line.split()[-1]) for line in lines if FINISHED.match(line))

    async def counted() -> bool:
        return await finished() >= before + 3

    before = await finished()
    for _ in range(3):
        agents.says(says("Yes."))
        assert (await one.complete("?")).status == 200
    await until(counted)
