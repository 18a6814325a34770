"""The launcher that stays ready: runs of one process beside each other, and none that outlives it."""

import asyncio
import fcntl
import os
import signal
import struct
import sys
import termios
from pathlib import Path
from time import monotonic

import pytest

from task.tools.workspace.commands import Commands, PyRunResult, ShellResult, run_python
from task.tools.workspace.launcher import _LAUNCHER_PROCESS, Sandbox, launched
from task.tools.workspace.root import Workspace
from tests.support.sandbox_tiers import SAMPLED, WORKING

PATIENCE = 60.0
TIER = WORKING[0]
ROOT = Path(__file__).parents[2]
STARTER = """
import asyncio, sys
from pathlib import Path
from task.tools.workspace.launcher import Sandbox
from task.tools.workspace.root import Workspace
from task.tools.workspace.commands import Commands
async def main():
    commands = Commands(Workspace(Path(sys.argv[1])), gated=True, sandbox=Sandbox(sys.argv[2]))
    await commands.run("(setsid flock held sh -c 'echo > started; sleep 300' > /dev/null 2>&1 &); sleep 300")
asyncio.run(main())
"""

# Prints every descriptor that is open beside the three of every program.
LOOKING = """
import os
for number in range(3, 300):
    try: os.fstat(number)
    except OSError: pass
    else: print(number)
"""


def is_free(path: Path) -> bool:
    with path.open() as held:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


async def test_runs_beside_each_other_keep_their_outputs_and_codes(tmp_path: Path) -> None:
    with Workspace(tmp_path) as workspace:
        async with Commands(workspace, gated=True, sandbox=Sandbox(TIER)) as commands:
            lines = [f"echo out-{number}; echo error-{number} >&2; exit {number}" for number in range(8)]
            results = await asyncio.gather(*map(commands.run, lines))
    expected = [ShellResult(n == 0, f"out-{n}\n", f"error-{n}\n", n) for n in range(8)]
    assert results == expected


@pytest.mark.fault(
    "workspace: the product or the launcher killed while a command runs, and a run that nobody waits for"
)
@pytest.mark.parametrize("tier", SAMPLED)
async def test_runs_end_with_the_product_even_if_it_is_killed(tmp_path: Path, tier: str) -> None:
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", STARTER, str(tmp_path), tier, cwd=ROOT)
    until = monotonic() + PATIENCE
    while not (tmp_path / "started").exists():
        assert monotonic() < until
        await asyncio.sleep(0.02)
    process.kill()
    await process.wait()
    while not is_free(tmp_path / "held"):
        assert monotonic() < until
        await asyncio.sleep(0.02)


@pytest.mark.fault(
    "workspace: the product or the launcher killed while a command runs, and a run that nobody waits for"
)
async def test_after_the_end_of_a_runs_launcher_the_run_is_over_and_the_next_one_starts(tmp_path: Path) -> None:
    with Workspace(tmp_path) as workspace:
        async with Commands(workspace, gated=True, sandbox=Sandbox("none", "tried"), unsafe=True) as commands:
            # Without a sandbox a command can end its launcher, and the process that starts all of them.
            assert (await commands.run("kill -9 $PPID; sleep 300")).code == 125
            starter = "$(awk '/^PPid/ {print $2}' /proc/$PPID/status)"
            assert (await commands.run(f"kill -9 {starter}; sleep 300")).code == 128 + signal.SIGTERM
            assert await commands.run("echo again") == ShellResult(True, "again\n", "", 0)


async def test_a_run_whose_starter_ends_before_it_begins_is_started_by_the_next_one(tmp_path: Path) -> None:
    with Workspace(tmp_path) as workspace:
        async with Commands(workspace, gated=True, sandbox=Sandbox(TIER)) as commands:
            await commands.run("true")
            starter, requests = _LAUNCHER_PROCESS._process, _LAUNCHER_PROCESS._requests
            assert starter is not None and requests is not None  # noqa: PT018
            starter.send_signal(signal.SIGSTOP)
            await asyncio.to_thread(os.waitpid, starter.pid, os.WUNTRACED)
            running = asyncio.ensure_future(commands.run("echo begun"))
            until = monotonic() + PATIENCE
            while not struct.unpack("i", fcntl.ioctl(requests, termios.TIOCOUTQ, bytes(4)))[0]:
                assert monotonic() < until
                await asyncio.sleep(0.02)
            starter.kill()
            assert await running == ShellResult(True, "begun\n", "", 0)


@pytest.mark.fault("workspace: a command with a NUL or half a character")
@pytest.mark.parametrize("cmd", ["ls\0-a", "ls \ud800"])
async def test_a_command_that_no_program_can_get_is_refused(tmp_path: Path, cmd: str) -> None:
    with Workspace(tmp_path) as workspace:
        async with Commands(workspace, gated=True, sandbox=Sandbox(TIER)) as commands:
            done = await commands.run(cmd)
    assert done.code == 126
    assert done.stderr.startswith("a command has no")


@pytest.mark.fault("workspace: a command line that is too long for a program")
async def test_a_request_that_is_too_long_or_no_policy_is_refused() -> None:
    assert (await launched({"workdir": "/"}, ["echo", "x" * 300_000], PATIENCE, 1000)).code == 126
    refused = await launched({"workdir": "/", "run_memory": 1}, ["true"], PATIENCE, 1000)
    assert refused.code == 125
    assert refused.stderr.startswith("sandbox: policy: unknown name 'run_memory'")


async def test_no_descriptor_of_the_launcher_reaches_a_program(tmp_path: Path) -> None:
    with Workspace(tmp_path) as workspace:
        async with Commands(workspace, sandbox=Sandbox(TIER)) as commands:
            assert await run_python(commands, "snippet", LOOKING) == PyRunResult(True, "", "", 0)


@pytest.mark.fault(
    "workspace: the product or the launcher killed while a command runs, and a run that nobody waits for"
)
async def test_a_run_that_nobody_waits_for_is_ended(tmp_path: Path) -> None:
    with Workspace(tmp_path) as workspace:
        async with Commands(workspace, gated=True, sandbox=Sandbox(TIER)) as commands:
            await commands.run("true")
            for delay in (0, 0, 0.001, 0.002, 0.005, 0.01, 0.02):  # at every point of the start
                running = asyncio.ensure_future(commands.run("flock held sleep 300"))
                await asyncio.sleep(delay)
                running.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await running
                until = monotonic() + PATIENCE
                while (tmp_path / "held").exists() and not is_free(tmp_path / "held"):
                    assert monotonic() < until
                    await asyncio.sleep(0.02)


async def test_many_runs_leave_no_descriptor_open() -> None:
    policy = {"workdir": "/", "tier": TIER, "limits": {"run_memory": 2**30}}
    assert await launched(policy, ["true"], PATIENCE, 1000) == ShellResult(True, "", "", 0)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        await launched(policy, ["true"], PATIENCE, 1000)
    await asyncio.sleep(0)
    assert len(os.listdir("/proc/self/fd")) <= before
