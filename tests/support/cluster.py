"""Agents as replicas on one PostgreSQL and one Redis behind one HAProxy, and what may happen to each of them."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from glob import glob
from pathlib import Path

import aiohttp

from task.store.access import StoreOptions
from task.store.store import open_store
from tests.support.balancer import balancer
from tests.support.ports import free_port
from tests.support.postgres_server import PostgresServer, postgres_server
from tests.support.redis_server import RedisServer, redis_server
from tests.support.stalling_proxy import StallingProxy, stalling_proxy
from tests.support.up import environment

CONNECTIONS = 150  # each agent takes up to 30
READY_SECONDS, STOP_SECONDS = 300, 120  # on a busy machine; in a minute and half of one elsewhere
FAKETIME = "/usr/lib/*/faketime/libfaketime.so.1"
NOTES = '''\
"""A tool that writes and needs approval, and one that the policy lets run."""

import os
from pathlib import Path

from task.tools.declare import tool
from task.tools.models import Effect

KEPT = Path(__file__).with_name("notes.txt")


@tool(effects={Effect.WRITE})
def write_note(text: str) -> str:
    """Write a line into the notes."""
    _keep(text)
    return f"noted: {text}"


@tool
def record(text: str) -> str:
    """Keep a line."""
    _keep(text)
    return f"recorded: {text}"


def _keep(text: str) -> None:
    file = os.open(KEPT, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(file, f"{text}\\n".encode())
    finally:
        os.close(file)
'''


@dataclass
class Replica:
    """One agent; it keeps its port however often it is started again. `clock` are the seconds its clock is off."""

    home: Path
    store: StallingProxy
    variables: Mapping[str, str]
    clock: int = 0
    port: int = field(default_factory=free_port)
    process: asyncio.subprocess.Process | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def log(self) -> str:
        return (self.home / "agent.log").read_text(encoding="utf-8")

    async def start(self) -> None:
        """Start it, and wait until it is ready."""
        self.home.mkdir(exist_ok=True)
        environ = environment(self.home, AGENT_PORT=str(self.port), **self.variables)
        if self.clock:
            # Its monotonic clock stays: no machine's jumps.
            environ |= {
                "LD_PRELOAD": glob(FAKETIME)[0], "FAKETIME": f"{self.clock:+d}s", "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            }  # fmt: skip
        with (self.home / "agent.log").open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "task", "serve", cwd=self.home, env=environ, stdout=log, stderr=log
            )
        await self.ready()

    async def ready(self) -> None:
        async with asyncio.timeout(READY_SECONDS), aiohttp.ClientSession() as session:
            while True:
                assert self.process is not None
                assert self.process.returncode is None, self.log[-2000:]
                with suppress(aiohttp.ClientError, TimeoutError):
                    async with session.get(f"{self.url}/health", timeout=aiohttp.ClientTimeout(5)) as response:
                        if response.status == 200:
                            return
                await asyncio.sleep(0.1)

    async def kill(self) -> None:
        """End it without a chance to tidy up."""
        await self._ended_by(signal.SIGKILL)

    async def stop(self) -> None:
        """Let it end as a roll-out does."""
        await self._ended_by(signal.SIGTERM)

    def freeze(self) -> None:
        self._signal(signal.SIGSTOP)

    def wake(self) -> None:
        self._signal(signal.SIGCONT)

    async def _ended_by(self, number: int) -> None:
        assert self.process is not None
        if self.process.returncode is None:
            self.process.send_signal(number)
        await asyncio.wait_for(self.process.wait(), STOP_SECONDS)

    def _signal(self, number: int) -> None:
        if self.process is not None and self.process.returncode is None:
            os.kill(self.process.pid, number)


@dataclass
class Cluster:
    """`url` is the balanced address, `folder` has the notes that the tools of all replicas write."""

    folder: Path
    url: str
    postgres: PostgresServer
    redis: RedisServer
    replicas: list[Replica] = field(default_factory=list[Replica])

    async def keys(self, owners: Sequence[str]) -> list[str]:
        """A new key of each owner."""
        store = await open_store(StoreOptions(self.postgres.url, chores=False))
        try:
            return [(await store.keys.create(owner))[1] for owner in owners]
        finally:
            await store.close()

    def notes(self) -> list[str]:
        """What the tools have written."""
        kept = self.folder / "notes.txt"
        return kept.read_text(encoding="utf-8").splitlines() if kept.exists() else []


@asynccontextmanager
async def cluster(folder: Path, variables: Mapping[str, str], clocks: tuple[int, ...] = ()) -> AsyncGenerator[Cluster]:
    """Everything started. `variables` are further settings of the agents, `clocks` the seconds their clocks are off.

    Each replica reaches the database through a proxy of its own.
    """
    (folder / "notes.py").write_text(NOTES, encoding="utf-8")
    port = free_port()
    async with AsyncExitStack() as stack:
        postgres = await stack.enter_async_context(postgres_server("-c", f"max_connections={CONNECTIONS}"))
        redis = await stack.enter_async_context(redis_server())
        made = Cluster(folder, f"http://127.0.0.1:{port}", postgres, redis)
        for number in range(3):
            proxy = await stack.enter_async_context(stalling_proxy(postgres.port))
            settings = {
                "AGENT_STORE__URL": postgres.url.replace(f":{postgres.port}/", f":{proxy.port}/"),
                "AGENT_REDIS_URL": redis.url, "AGENT_STATE_SECRET": "of-all-replicas-of-this-cluster",
                "AGENT_HTTP__MODE": "keys", "AGENT_HTTP__REQUESTS_PER_MINUTE": "100000",
                "AGENT_TOOL_PATHS": str(folder / "notes.py"), **variables,
            }  # fmt: skip
            clock = clocks[number] if number < len(clocks) else 0
            made.replicas.append(Replica(folder / f"replica-{number + 1}", proxy, settings, clock))
        stack.push_async_callback(_end, made)
        await made.replicas[0].start()  # makes the tables
        await asyncio.gather(*(replica.start() for replica in made.replicas[1:]))
        place = folder / "balancer"
        place.mkdir()
        await stack.enter_async_context(balancer(place, port, *(replica.url for replica in made.replicas)))
        yield made


async def _end(made: Cluster) -> None:
    running = [replica for replica in made.replicas if replica.process is not None]
    for replica in running:
        replica.store.flowing.set()
        replica.wake()
        with suppress(ProcessLookupError):
            replica.process.terminate()  # pyright: ignore[reportOptionalMemberAccess]
    for replica in running:
        assert replica.process is not None
        try:
            await asyncio.wait_for(replica.process.wait(), STOP_SECONDS)
        except TimeoutError:
            await replica.kill()
