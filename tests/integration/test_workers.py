"""Several workers behind one port: one dies and is replaced, all are drained together, and a request counts once."""

import asyncio
import os
import signal
import socket
from collections.abc import AsyncGenerator, Generator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
import pytest_asyncio

from task.llm.scripted import says
from tests.support.http_api import said
from tests.support.two_agents import TwoAgents, two_workers
from tests.support.up import dial_agent
from tests.support.upstream import Framing, framed, hanging
from tests.support.workers import ready_workers, worker_pids

pytestmark = pytest.mark.system
SLOWLY = framed(
    says(*(f"{number} " for number in range(20)), "the end"), Framing(bytes_per_write=200, seconds_per_write=0.1)
)
HALF = hanging(says("Half", " a sentence"), chunks=3)


@pytest_asyncio.fixture
async def agents(tmp_path: Path) -> AsyncGenerator[TwoAgents]:
    async with two_workers(tmp_path) as started:
        yield started


@contextmanager
def on_one_core() -> Generator[None]:
    """What is started in the block has one core."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@pytest.mark.fault("start: a worker that is killed within an answer")
async def test_a_worker_that_is_killed_is_replaced_while_the_other_finishes_its_answer(agents: TwoAgents) -> None:
    one, other = await agents.caller()
    agents.says(HALF, SLOWLY, says("Here I am."))
    run = (await one.post("/runs", {"messages": [said("Tell me.")]})).json
    await agents.upstream.received(1, within=30)
    answering = asyncio.create_task(other.complete("Count."))
    await agents.upstream.received(2, within=30)
    os.kill(worker_pids(agents.parent.pid)[1], signal.SIGKILL)
    answer = await asyncio.wait_for(answering, 30)
    assert answer.json["choices"][0]["message"]["content"].endswith("the end")
    events = await other.events(run["run_id"])
    assert events[-1]["status"] == "interrupted"
    await ready_workers(other.url, 2)
    assert (await one.complete("Are you there?")).json["choices"][0]["message"]["content"] == "Here I am."


async def test_all_workers_finish_their_answers_before_they_stop(agents: TwoAgents) -> None:
    one, other = await agents.caller()
    agents.says(SLOWLY, SLOWLY)
    workers = worker_pids(agents.parent.pid)
    answering = [asyncio.create_task(api.complete("Count.")) for api in (one, other)]
    await agents.upstream.received(2, within=30)
    agents.parent.terminate()
    for answer in await asyncio.wait_for(asyncio.gather(*answering), 30):
        assert answer.json["choices"][0]["message"]["content"].endswith("the end")
    assert await asyncio.wait_for(agents.parent.wait(), 40) == 0
    assert not any(psutil.pid_exists(pid) for pid in workers.values())


@pytest.mark.fault("start: a port that is taken, with several workers")
async def test_a_port_that_is_taken_stops_the_start_with_one_line(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ended = await dial_agent(tmp_path, "serve", AGENT_WORKERS="2", AGENT_PORT=str(port))
    [line] = ended.err.splitlines()
    assert (ended.code, line.startswith(f"Port {port} is in use by ")) == (2, True), ended.err


@pytest.mark.fault("start: more workers than cores")
@pytest.mark.fault("start: a setting that no worker can use")
async def test_a_setting_that_no_worker_can_use_ends_all_with_its_line(tmp_path: Path) -> None:
    wrong = {"AGENT_WORKERS": "2", "AGENT_PORT": "0", "AGENT_TOOL_PATHS": str(tmp_path / "nowhere.py")}
    with on_one_core():
        ended = await dial_agent(tmp_path, "serve", **wrong)
    assert ended.code == 2
    assert "AGENT_WORKERS: more than 1, one for each core, are of no use" in ended.err
    assert "nowhere.py" in ended.err
    assert "Traceback" not in ended.err
