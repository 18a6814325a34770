"""Interpreter servers behind one address: who goes, who stays, and what a conversation is told about it."""

import asyncio
import signal
from pathlib import Path

import pytest

from tests.support.interpreter_fleet import Conversation, Fleet, interpreter_fleet

pytestmark = pytest.mark.system

BARE = ("--spares", "0", "--bare")
LOST = "All variables, imports and functions of this conversation are lost, because"
HASTE = {"proxy_read_timeout 30s": "proxy_read_timeout 8s"}


async def spread(fleet: Fleet) -> dict[str, list[Conversation]]:
    """Conversations with a variable `x`, at least two on each server, by the names of the servers."""
    found: dict[str, list[Conversation]] = {}
    while len(found) < len(fleet.servers) or min(map(len, found.values())) < 2:
        talk = fleet.talk()
        await talk.output("x = 42; open('made.txt', 'w').write('still here')")
        found.setdefault(talk.server, []).append(talk)
        assert sum(map(len, found.values())) < 40, "the header does not spread conversations"
    return found


async def number_of(fleet: Fleet, talk: Conversation) -> int:
    """Which server has the conversation."""
    import httpx

    async with httpx.AsyncClient(trust_env=False) as http:
        names = [(await http.get(f"{server.origin}/ready")).json()["server"] for server in fleet.servers]
    return names.index(talk.server)


@pytest.mark.fault("interpreter: one of several interpreter servers that is killed and comes back")
async def test_a_server_that_is_killed_loses_its_own_conversations_only_and_their_files_are_put_back(
    tmp_path: Path,
) -> None:
    async with interpreter_fleet(tmp_path, 3, *BARE) as fleet:
        by_server = await spread(fleet)
        name, (first, second, *_) = next(iter(by_server.items()))
        number = await number_of(fleet, first)
        fleet.signal(number, signal.SIGKILL)
        for other in (talks[0] for server, talks in by_server.items() if server != name):
            text = await other.output("print(x)")
            assert "42" in text
            assert LOST not in text
        moved = await first.output("print(open('made.txt').read(), 'x' in dir())")
        assert f"{LOST} the interpreter server that kept them has stopped or could not be reached." in moved
        assert "were put back; others are gone." in moved
        assert "still here False" in moved
        assert LOST not in await first.output("x = 7")
        await fleet.start(number)
        text = await first.output("print(x)")  # it goes on where it went
        assert LOST not in text
        assert "\n7\n" in text
        assert LOST in await second.output("print('x' in dir())")


@pytest.mark.fault("interpreter: an interpreter server that freezes, idle or while code runs")
async def test_a_frozen_server_is_left_and_what_it_still_has_is_never_used_again(tmp_path: Path) -> None:
    async with interpreter_fleet(tmp_path, 2, *BARE, changes=HASTE) as fleet:
        by_server = await spread(fleet)
        _, (running, idle, *_) = next(iter(by_server.items()))
        number = await number_of(fleet, idle)
        before = idle.branch()
        call = running.begin("import time; time.sleep(20)")
        await asyncio.wait_for(running.started(call), 20)
        fleet.signal(number, signal.SIGSTOP)
        try:
            async with asyncio.timeout(80):
                assert LOST in await idle.output("x = 1")
                broken = await call
        finally:
            fleet.signal(number, signal.SIGCONT)
        assert broken.failed
        assert "the code may or may not have run" in broken.text()
        assert "\n1\n" in await idle.output("print(x)")
        # A state from before: nobody continues the session that was left.
        fresh = await before.output("print('x' in dir())")
        assert "\n42\n" not in fresh


@pytest.mark.fault("interpreter: an address behind which no interpreter server answers")
async def test_while_no_server_answers_nothing_is_sent_and_the_first_one_that_does_is_used(tmp_path: Path) -> None:
    async with interpreter_fleet(tmp_path, 1, *BARE, changes={"fail_timeout=10s": "fail_timeout=1s"}) as fleet:
        talk = fleet.talk()
        await talk.output("1")
        fleet.signal(0, signal.SIGKILL)
        await fleet.ended(0)
        failed = await talk.run("2")
        assert failed.failed
        assert "No Python interpreter answers at the moment. Nothing was run. Try again in a minute" in failed.text()
        waiting = asyncio.create_task(talk.run("open('kept.txt', 'w').write('3')"))
        await fleet.start(0)
        result = await asyncio.wait_for(waiting, 40)
        if result.failed:  # the machine was too busy to start it in that time
            assert "Nothing was run." in result.text()
            result = await talk.run("open('kept.txt', 'w').write('3')")
        assert LOST in result.text()
        assert "[kept.txt](" in result.text()


@pytest.mark.fault("interpreter: an interpreter server that is replaced under load")
@pytest.mark.timeout(300)
async def test_servers_that_are_replaced_one_by_one_end_what_runs_and_no_call_fails(tmp_path: Path) -> None:
    async with interpreter_fleet(tmp_path, 2, *BARE, "--drain-seconds", "30") as fleet:
        by_server = await spread(fleet)
        talks = [talk for found in by_server.values() for talk in found]
        running = talks[0]
        number = await number_of(fleet, running)
        await running.output("import time, os")
        long = running.begin("x += 1; time.sleep(5); open('end.txt', 'w').write('done'); print(x)")
        stop, told = asyncio.Event(), dict[str, int]()

        async def load(talk: Conversation) -> None:
            while not stop.is_set():
                text = await talk.output("print('x' in dir()); x = 1")
                told[talk.name] = told.get(talk.name, 0) + (LOST in text)

        async with asyncio.timeout(200), asyncio.TaskGroup() as group:
            for talk in talks[1:]:
                group.create_task(load(talk))
            await asyncio.wait_for(running.started(long), 20)
            fleet.signal(number, signal.SIGTERM)
            text = (await long).text()
            assert LOST not in text
            assert "\n43\n" in text
            assert "[end.txt](" in text
            await fleet.ended(number)
            await fleet.start(number)
            fleet.signal(1 - number, signal.SIGTERM)
            await fleet.ended(1 - number)
            stop.set()
        assert set(told.values()) <= {0, 1, 2}
        text = await running.output("print(open('end.txt').read())")
        assert LOST in text
        assert "\ndone\n" in text


@pytest.mark.fault("interpreter: one person whose calls would take the places of all interpreter servers")
async def test_one_persons_share_holds_over_all_servers_and_everybody_is_shown_a_place(tmp_path: Path) -> None:
    async with interpreter_fleet(tmp_path, 2, *BARE, "--running", "2", "--seconds", "100") as fleet:
        by_server = await spread(fleet)
        talks = [talk for found in by_server.values() for talk in found[:2]]
        others = [await placed_like(fleet, found[0], "another") for found in by_server.values()]
        code = "import os, time\nwhile not os.path.exists('go'): time.sleep(0.02)"
        calls = [talk.begin(code) for talk in talks]
        async with asyncio.timeout(100):
            while sum("waiting for a kernel: place 1 of 1" in talk.stage.content for talk in talks) < 2:
                await asyncio.sleep(0.05)
            for other in others:
                assert "\n2\n" in await other.output("print(1 + 1)")
            assert not any(call.done() for call in calls)
            for talk in talks:
                await talk.place("go")
            assert not any(message.failed for message in await asyncio.gather(*calls))


@pytest.mark.fault("interpreter: a draining interpreter server that its balancer leaves at once")
async def test_where_a_draining_server_is_left_at_once_the_files_of_its_last_calls_still_come(tmp_path: Path) -> None:
    location = "location ~ ^/(ready|health)$ {\n"
    left = {location: f"{location}      proxy_next_upstream error timeout http_503;\n"}
    async with interpreter_fleet(tmp_path, 2, *BARE, "--drain-seconds", "60", changes=left) as fleet:
        by_server = await spread(fleet)
        _, (running, other, *_) = next(iter(by_server.items()))
        number = await number_of(fleet, running)
        code = "import os, time\nwhile not os.path.exists('go'): time.sleep(0.02)\nopen('end.txt', 'w').write('done')"
        call = running.begin(code)
        async with asyncio.timeout(100):
            await running.started(call)
            fleet.signal(number, signal.SIGTERM)
            while LOST not in await other.output("1"):
                pass
            await running.place("go", fleet.servers[number].origin)  # through the balancer it would come elsewhere
            assert "[end.txt](" in (await call).text()
        assert "done" in await running.output("print(open('end.txt').read())")


async def placed_like(fleet: Fleet, talk: Conversation, person: str) -> Conversation:
    """A conversation of that person on the same server."""
    for _ in range(40):
        found = fleet.talk(person)
        await found.output("1")
        if found.server == talk.server:
            return found
    raise AssertionError("the header does not spread conversations")
