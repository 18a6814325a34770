"""Real child processes: order, health, restarts, and that nothing survives."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest

from task.processes import Child, Program, ProgramFailed, Restarts, Supervisor, stop_signal
from tests.support.ports import free_port
from tests.support.waiting import until

SERVER = """
import http.server, sys
class Healthy(http.server.BaseHTTPRequestHandler):
    def do_GET(self): self.send_response(200); self.end_headers()
    def log_message(self, *_): pass
print('listening', flush=True)
http.server.HTTPServer(('127.0.0.1', int(sys.argv[1])), Healthy).serve_forever()
"""
QUICK = Restarts(first_seconds=0.02, attempts=3)


class Lines(list[tuple[str, str]]):
    """What the programs wrote; a test waits for a line instead of sleeping."""

    def __call__(self, name: str, line: str) -> None:
        self.append((name, line))

    async def having(self, words: str) -> str:
        await until(lambda: any(words in line for _, line in self))
        return next(line for _, line in self if words in line)


def server(name: str, port: int) -> Program:
    return Program(name, (sys.executable, "-c", SERVER, str(port)), {}, f"http://127.0.0.1:{port}/health", 10)


def script(name: str, code: str) -> Program:
    return Program(name, (sys.executable, "-c", code))


@asynccontextmanager
async def kept(supervisor: Supervisor) -> AsyncGenerator[asyncio.Task[None]]:
    async with supervisor:
        await supervisor.start()
        keeping = asyncio.create_task(supervisor.keep())
        try:
            yield keeping
        finally:
            keeping.cancel()
            await asyncio.wait({keeping}, timeout=5)


async def test_programs_start_in_order_each_when_the_one_before_is_healthy_and_end_with_their_supervisor() -> None:
    port, lines = free_port(), Lines()
    deaf = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(60)"
    )
    programs = [server("first", port), script("ignores the polite signal", deaf)]
    async with asyncio.timeout(20), Supervisor(programs, lines, grace=0.2) as supervisor:
        await supervisor.start()
        await lines.having("deaf")
        pids = supervisor.pids
    assert lines == [("first", "listening"), ("ignores the polite signal", "deaf")]
    assert [pid for pid in pids.values() if psutil.pid_exists(pid)] == []
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", port)


async def test_a_cancelled_wait_for_an_end_does_not_cancel_it_for_others() -> None:
    lines = Lines()
    child = await Child.start(script("sleeper", "print('up', flush=True); import time; time.sleep(60)"), lines)
    await lines.having("up")
    ending = asyncio.create_task(child.end(0))
    for _ in range(5):
        await asyncio.sleep(0)  # it has been killed, and the event loop is about to notice
    ending.cancel()
    async with asyncio.timeout(20):
        await asyncio.wait({ending})
        await child.end(0)
    assert not psutil.pid_exists(child.pid)


async def test_grandchildren_end_with_their_group() -> None:
    code = "import subprocess, sys, time; p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)']); "
    lines = Lines()
    async with Supervisor([script("parent", code + "print(p.pid, flush=True); time.sleep(60)")], lines) as supervisor:
        await supervisor.start()
        grandchild = int(await lines.having(""))
    await until(lambda: not psutil.pid_exists(grandchild) or psutil.Process(grandchild).status() == "zombie")


async def test_a_killed_program_is_started_again_and_reported() -> None:
    lines = Lines()
    supervisor = Supervisor([server("server", free_port())], lines, restarts=QUICK)
    async with kept(supervisor):
        first = supervisor.pids["server"]
        os.kill(first, signal.SIGKILL)
        assert "was ended by SIGKILL; restarting in 0.02 s" in await lines.having("SIGKILL")
        await lines.having("is running again")
        assert supervisor.pids["server"] != first


async def test_a_program_that_keeps_dying_is_given_up_with_a_sentence() -> None:
    lines = Lines()
    async with kept(Supervisor([script("crasher", "raise SystemExit(7)")], lines, restarts=QUICK)) as keeping:
        with pytest.raises(ProgramFailed, match=r"crasher ended with exit code 7 and is not restarted") as caught:
            await asyncio.wait_for(keeping, 20)
    assert caught.value.exit_code == 1
    assert [line.rpartition(" in ")[2] for _, line in lines if "restarting" in line] == ["0.02 s", "0.04 s", "0.08 s"]


async def test_a_program_that_stops_at_its_settings_or_never_gets_healthy_fails_the_start() -> None:
    lines, nowhere = Lines(), "http://127.0.0.1:9/health"
    wrong = "import sys; print('AGENT_PORT is wrong', file=sys.stderr); sys.exit(2)"
    async with Supervisor([Program("agent", (sys.executable, "-c", wrong), {}, nowhere, 10)], lines) as supervisor:
        with pytest.raises(ProgramFailed, match="agent ended with exit code 2 and did not start") as caught:
            await supervisor.start()
    assert caught.value.exit_code == 2
    assert ("agent", "AGENT_PORT is wrong") in lines
    silent = Program("silent", (sys.executable, "-c", "import time; time.sleep(60)"), {}, nowhere, 0.3)
    async with Supervisor([silent], Lines()) as supervisor:
        with pytest.raises(ProgramFailed, match=r"silent was not ready within 0\.3 s"):
            await supervisor.start()


@pytest.mark.fault("compose: a companion that never becomes healthy")
async def test_the_product_runs_without_a_companion_that_never_gets_healthy() -> None:
    waits = (sys.executable, "-c", "import time; time.sleep(60)")
    companion = Program("silent", waits, {}, "http://127.0.0.1:9/", 0.3, optional=True)
    async with kept(Supervisor([companion, server("agent", free_port())], lines := Lines())) as keeping:
        await lines.having("listening")
        assert not keeping.done()


async def test_a_line_without_an_end_and_foreign_bytes_pass_through() -> None:
    lines = Lines()
    code = "import sys; sys.stdout.buffer.write(b'x' * 100_000 + b'\\r\\n\\xff end')"
    async with kept(Supervisor([script("loud", code)], lines, restarts=QUICK)):
        await lines.having("\ufffd end")
    assert sum(line.count("x") for _, line in lines[:10]) >= 100_000


async def test_a_program_that_is_being_restarted_when_the_supervisor_ends_has_ended_too() -> None:
    def write(_: str, line: str) -> None:
        if "restarting" in line:
            loop.call_soon(loop.call_soon, ending.set)

    loop, ending, before = asyncio.get_running_loop(), asyncio.Event(), asyncio.all_tasks()
    async with kept(Supervisor([script("short", "pass")], write, restarts=Restarts(first_seconds=0))):
        await ending.wait()
    assert asyncio.all_tasks() == before
    assert psutil.Process().children() == []


async def test_children_die_with_a_supervisor_that_is_killed(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    child = f"import os, time; open({str(pid_file)!r}, 'w').write(str(os.getpid()) + '.'); time.sleep(60)"
    parent = (
        "import asyncio, sys\n"
        "from task.processes import Program, Supervisor\n"
        "async def main():\n"
        f"    program = Program('child', (sys.executable, '-c', {child!r}))\n"
        "    async with Supervisor([program], print) as supervisor:\n"
        "        await supervisor.start(); await supervisor.keep()\n"
        "asyncio.run(main())\n"
    )
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", parent)
    await until(lambda: pid_file.exists() and pid_file.read_text().endswith("."))
    orphan = int(pid_file.read_text()[:-1])
    process.kill()
    await asyncio.wait_for(process.wait(), 5)
    await until(lambda: not psutil.pid_exists(orphan) or psutil.Process(orphan).status() == "zombie")


async def test_a_hang_up_that_nohup_ignores_does_not_stop_the_product() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        async with Supervisor([], Lines()) as supervisor:
            stop = stop_signal(supervisor)
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.wait_for(stop, 25)
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().remove_signal_handler(number)
        signal.signal(signal.SIGHUP, before)
