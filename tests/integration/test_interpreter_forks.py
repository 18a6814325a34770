"""Kernels forked from a template: it may die, nobody shares its state, and nothing of a kernel outlives its server."""

import os
import socket
import subprocess
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import zmq.asyncio

from mcp_servers.python_interpreter.config import Config, Limits
from mcp_servers.python_interpreter.forks import PROGRAM
from mcp_servers.python_interpreter.kernels import Kernel
from mcp_servers.python_interpreter.launch import NICE, Launcher
from mcp_servers.python_interpreter.places import KernelFolders
from mcp_servers.python_interpreter.runtime import runtime_folder
from mcp_servers.python_interpreter.starting import Starter
from mcp_servers.sandbox.policy import TierName
from tests.support.confined_fork import forked
from tests.support.escapes.trial import verdicts
from tests.support.interpreter import KERNEL_PYTHON, ROOT, RunningInterpreter, Talk, running_interpreter
from tests.support.sandbox_tiers import FOUND, SAMPLED, WORKING
from tests.support.waiting import runs, until

PATIENCE = 40.0


@asynccontextmanager
async def talks(folder: Path, *options: str) -> AsyncGenerator[tuple[RunningInterpreter, Callable[[str], Talk]]]:
    with running_interpreter(folder, "--bare", "--spares", "0", *options) as server:
        async with server.client() as client:
            yield server, lambda name: Talk(client, name, name)


def template_of(server: RunningInterpreter) -> psutil.Process:
    children = psutil.Process(server.process.pid).children()
    return next(child for child in children if any("template.py" in word for word in child.cmdline()))


@pytest.mark.parametrize("tier", SAMPLED)
async def test_code_runs_below_the_priority_of_the_agent(tmp_path: Path, tier: str) -> None:
    async with talks(tmp_path, "--tier", tier) as (server, talk):
        assert (await talk("a").run("import os; os.getpriority(os.PRIO_PROCESS, 0)"))["result"] == str(NICE)
        below = [child for child in psutil.Process(server.process.pid).children(recursive=True) if child.nice() == NICE]
        sessions = [Path(f"/proc/{child.pid}/autogroup") for child in below]
        shares = [session.read_text(encoding="utf-8") for session in sessions if session.exists()]
        assert below
        assert all(share.endswith(f"nice {NICE}\n") for share in shares) or os.geteuid() != 0


@pytest.mark.fault("interpreter: a template of kernels that dies")
@pytest.mark.parametrize("tier", SAMPLED)
async def test_a_template_that_dies_takes_no_kernel_with_it_and_is_started_again(tmp_path: Path, tier: str) -> None:
    async with talks(tmp_path, "--tier", tier) as (server, talk):
        await talk("a").run("kept = 1")
        first = template_of(server)
        first.kill()
        assert (await talk("a").run("kept"))["result"] == "1"
        assert (await talk("b").run("1 + 1"))["result"] == "2"
        assert template_of(server) != first


@pytest.mark.fault("interpreter: a kernel whose server is killed")
@pytest.mark.system
@pytest.mark.parametrize("tier", WORKING)
async def test_kernels_end_with_a_server_that_is_killed(tmp_path: Path, tier: str) -> None:
    async with talks(tmp_path, "--tier", tier) as (server, talk):
        await talk("a").run("import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)")
        children = psutil.Process(server.process.pid).children(recursive=True)
        server.process.kill()
        await until(lambda: not any(map(runs, children)))


@pytest.mark.fault("interpreter: kernel after kernel")
@pytest.mark.system
async def test_many_kernels_leave_no_dead_process_and_no_open_file(tmp_path: Path) -> None:
    async with talks(tmp_path, "--tier", WORKING[0], "--sessions", "8") as (server, talk):
        await talk("0").run("1")
        process = psutil.Process(server.process.pid)
        children, files = len(process.children(recursive=True)), process.num_fds()
        for number in range(40):
            await talk(str(number % 4)).call("clear_session")
            await talk(str(number % 4)).run("1")
        for number in range(1, 4):
            await talk(str(number)).call("clear_session")
        await until(lambda: len(process.children(recursive=True)) <= children)
        await until(lambda: process.num_fds() <= files + 4)  # connections of the client


@pytest.mark.fault("interpreter: kernels with the same random numbers")
@pytest.mark.system
async def test_kernels_have_random_numbers_and_variables_of_their_own(tmp_path: Path) -> None:
    code = "import random, uuid, sys; import numpy; print(random.random(), uuid.uuid4(), numpy.random.random())"
    with running_interpreter(tmp_path, "--spares", "0", "--tier", WORKING[0]) as server:
        async with server.client() as client:
            answers = [(await Talk(client, name, name).run(code))["stdout"].split() for name in "ab"]
    assert len({*answers[0], *answers[1]}) == 6


@pytest.mark.fault("interpreter: code that changes the program that runs it")
@pytest.mark.system
async def test_code_cannot_reach_the_file_of_the_program_that_runs_it(tmp_path: Path) -> None:
    code = "import os\nos.chmod('/proc/self/exe', 0o500)\nopen('/proc/self/exe', 'r+b')"
    before = KERNEL_PYTHON.stat().st_mode
    async with talks(tmp_path) as (_, talk):
        result = await talk("a").run(code)
    assert result["error"]["ename"] in ("PermissionError", "OSError")
    assert KERNEL_PYTHON.stat().st_mode == before


NO_MORE_PROCESSES = """
import os, resource
from mcp_servers.sandbox import server
resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
if os.geteuid() == 0:
    os.setresuid(61_455, 61_455, 61_455)  # root's processes are not counted
raise SystemExit(server.serve(lambda *_: 0))
"""


@pytest.mark.fault("interpreter: a fork for which there is no memory or no process left")
def test_a_fork_that_fails_is_an_error_of_that_request_alone(tmp_path: Path) -> None:
    requests, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with requests, subprocess.Popen([sys.executable, "-c", NO_MORE_PROCESSES], cwd=ROOT, stdin=its.fileno()) as starter:
        its.close()
        for number in range(2):
            control, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            control.settimeout(PATIENCE)
            with control, other, (tmp_path / "log").open("wb") as log:
                socket.send_fds(requests, [b"{}\0"], [log.fileno(), log.fileno(), other.fileno()])
                other.close()
                assert control.recv(100) == b"", f"request {number}"
            assert "no process can be started" in (tmp_path / "log").read_text()
        requests.close()
        assert starter.wait(PATIENCE) == 0


@pytest.mark.fault("interpreter: a template that cannot start")
@pytest.mark.system
async def test_where_no_template_runs_kernels_are_started_from_their_program(tmp_path: Path) -> None:
    async with one_kernel(tmp_path, program=Path("/nothing.py")) as kernel:
        assert (await kernel.execute("1 + 1", lambda message: None)).status == "ok"


@pytest.mark.fault("interpreter: variables of an idle kernel that cannot be saved")
@pytest.mark.system
async def test_an_idle_kernel_returns_memory_and_keeps_what_no_file_could_hold(tmp_path: Path) -> None:
    shown: list[object] = []
    async with one_kernel(tmp_path, Limits(rest_seconds=0.2)) as kernel:
        await kernel.execute(IN_A_CIRCLE, shown.append)
        await until((kernel.place.work / "collected").exists)
        reply = await kernel.execute("assert next(numbers) == 1 and lock.locked() and file.read() == 'b'", shown.append)
    assert (reply.status, reply.evalue) == ("ok", "")


IN_A_CIRCLE = """
import threading, weakref
class Node: pass
node = Node(); node.itself = node
weakref.finalize(node, lambda: open("collected", "w").close())
numbers = (number for number in range(5)); next(numbers)
lock = threading.Lock(); lock.acquire()
open("text", "w").write("ab"); file = open("text"); file.read(1)
del node
"""


@asynccontextmanager
async def one_kernel(tmp_path: Path, limits: Limits | None = None, program: Path = PROGRAM) -> AsyncGenerator[Kernel]:
    config = Config("0123456789abcdef", tmp_path, KERNEL_PYTHON, preload=False, tier=WORKING[0])
    config = replace(config, limits=limits or config.limits)
    with runtime_folder(None) as folder:
        starter = Starter(config, Launcher.find(config, FOUND), folder / "template", program)
        context = zmq.asyncio.Context()
        kernel = await Kernel.start(KernelFolders(folder / "k", None), starter, config, context)
        try:
            yield kernel
        finally:
            await kernel.kill()
            await starter.close()
            context.destroy(linger=0)


@pytest.mark.system
@pytest.mark.parametrize("tier", WORKING)
def test_nothing_gets_out_of_a_sandbox_that_a_fork_has_entered(tier: TierName) -> None:
    found = list(verdicts(tier, None, quick=True, start=forked))
    assert len(found) > 160
    assert [verdict for verdict in found if verdict.state != "held"] == []
