"""The processes of a benchmark: application and bare loop on one core, load and upstream on another."""

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import orjson
import psutil

from tests.support.ports import free_port
from tests.support.workers import worker_pids

ROOT = Path(__file__).parent.parent.parent
START_SECONDS = 60  # on a busy machine the start takes 20 times as long
CORES = sorted(os.sched_getaffinity(0)) if sys.platform == "linux" else []
SLOW_TOOLS = '''
import asyncio
from task.tools.declare import tool

@tool
async def noop(x: int) -> str:
    """Give the number back."""
    return str(x)

@tool
async def slow(x: int) -> str:
    """Give the number back after a tenth of a second."""
    await asyncio.sleep(0.1)
    return str(x)

@tool
async def wait(seconds: float) -> str:
    """Wait so many seconds."""
    await asyncio.sleep(seconds)
    return f"waited {seconds} s"
'''


def keep_to(core: int) -> None:
    """Pin this process to the first or the last of its cores, where the system can."""
    if CORES:
        os.sched_setaffinity(0, {CORES[core]})


@asynccontextmanager
async def process(
    *command: str, core: int | None, environment: Mapping[str, str] | None = None, log: Path | None = None
) -> AsyncGenerator[asyncio.subprocess.Process]:
    """`python COMMAND`, ended with the block; its standard input and, without `log`, its output are pipes.

    It is pinned to the core, if one is named.
    """
    with log.open("ab") if log else nullcontext(subprocess.PIPE) as output:
        child = await asyncio.create_subprocess_exec(
            sys.executable, *command, cwd=ROOT, env={**os.environ, **(environment or {})},
            stdin=subprocess.PIPE, stdout=output, stderr=output if log else None,
            preexec_fn=None if core is None else partial(keep_to, core),
        )  # fmt: skip
    try:
        yield child
    finally:
        child.terminate()
        await asyncio.wait_for(child.wait(), 15)


async def port_open(port: int) -> float:
    """The time at which the port accepts connections."""
    async with asyncio.timeout(START_SECONDS):
        while True:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    return perf_counter()
            await asyncio.sleep(0.002)


@dataclass(frozen=True, slots=True)
class Application:
    """The running agent from outside; `start_seconds` until its port was open."""

    port: int
    pid: int
    start_seconds: float

    def cpu(self) -> float:
        """CPU seconds so far, of all threads and workers."""
        if not CORES:
            times = [psutil.Process(pid).cpu_times() for pid in self._pids()]
            return sum(time.user + time.system for time in times)
        return self._scheduled(0)  # in nanoseconds; the usual CPU times have steps of 10 ms

    async def at_rest(self) -> None:
        """Wait until what it loads after its port is open is loaded."""
        async with asyncio.timeout(START_SECONDS):
            before = -1.0
            while self.cpu() - before > 0.01:
                before = self.cpu()
                await asyncio.sleep(0.3)

    def waited(self) -> float:
        """Seconds in which it had work but not its core; 0 where the system does not report them."""
        return self._scheduled(1) if CORES else 0.0

    def megabytes(self) -> float:
        return psutil.Process(self.pid).memory_info().rss / 2**20

    def _pids(self) -> list[int]:
        return [self.pid, *worker_pids(self.pid).values()]

    def _scheduled(self, column: int) -> float:
        threads = [thread for pid in self._pids() for thread in Path(f"/proc/{pid}/task").glob("*/schedstat")]
        return sum(int(thread.read_text().split()[column]) for thread in threads) / 1e9


@asynccontextmanager
async def application(
    upstream: int, folder: Path, *, core: int | None = 0, command: Sequence[str] = ("task", "serve"), **settings: str
) -> AsyncGenerator[Application]:
    """The whole agent as it is shipped, in front of that upstream; `settings` are further variables.

    `command` is the module that serves it, with its arguments.
    """
    tools, port = folder / "slow_tools.py", free_port()
    tools.write_text(SLOW_TOOLS, encoding="utf-8")
    environment = {
        "AGENT_DATA_DIR": str(folder), "AGENT_LIMITS__STEPS": "100", "AGENT_PORT": str(port),
        "AGENT_TOOL_PATHS": str(tools), "DIAL_ENDPOINT": f"http://127.0.0.1:{upstream}", **settings,
    }  # fmt: skip
    started = perf_counter()
    async with process("-m", *command, core=core, environment=environment, log=folder / "agent.log") as child:
        yield Application(port, child.pid, await port_open(port) - started)


@asynccontextmanager
async def upstream(*arguments: str, core: int | None = -1) -> AsyncGenerator[int]:
    port = free_port()
    async with process("-m", "tests.benchmarks.upstream", str(port), *arguments, core=core):
        await port_open(port)
        yield port


@dataclass(frozen=True, slots=True)
class BareLoop:
    """The bare loop's process."""

    child: asyncio.subprocess.Process

    async def run(
        self, script: str, history: Sequence[dict[str, Any]] = (), people: int = 1
    ) -> tuple[float, list[tuple[float, float]]]:
        """CPU seconds of all, and for each conversation the seconds to its end and to its first word."""
        assert self.child.stdin is not None
        assert self.child.stdout is not None
        self.child.stdin.write(orjson.dumps({"scripts": [script] * people, "history": history}) + b"\n")
        result = orjson.loads(await asyncio.wait_for(self.child.stdout.readline(), 60))
        return result["cpu"], [(end, first) for end, first in result["times"]]


@asynccontextmanager
async def bare_loop(upstream: int) -> AsyncGenerator[BareLoop]:
    async with process("-m", "tests.benchmarks.bare", str(upstream), core=0) as child:
        yield BareLoop(child)
