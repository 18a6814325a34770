"""`dial-agent serve` in several processes behind one port: started, counted, replaced, drained together."""

import asyncio
import gc
import logging
import os
import socket
import sys
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from math import ceil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, Self

import typer

from task.cli.addresses import base_url, family, usable_port
from task.cli.options import Config, Host, Port, read_settings, write
from task.processes import Program, ProgramFailed, Supervisor, until_stopped
from task.settings import PREFIX, Settings, process_environment
from task.telemetry import SHARED_METRICS
from task.telemetry.logs import set_up_logging

COMMAND = (sys.executable, "-P", "-m", "task", "serve")
CLOSING_SECONDS = 10.0  # after its answers a worker ends runs and closes the store
logger = logging.getLogger(__name__)
app = typer.Typer(add_completion=False)


@dataclass(frozen=True, slots=True)
class Place:
    """A worker's number among `of`, and the folder in which each leaves its process id."""

    number: int
    of: int
    folder: Path

    @classmethod
    def parse(cls, text: str) -> Self:
        number, of, folder = text.split(",", 2)
        return cls(int(number), int(of), Path(folder))

    def __str__(self) -> str:
        return f"{self.number},{self.of},{self.folder}"

    def join(self) -> None:
        """Count this process as ready, and the one that was here before no longer as at work."""
        for gauges in self.folder.glob(f"gauge_live*_{self._pid(self.number)}.db"):
            gauges.unlink()
        file = self.folder / f".{self.number}"
        file.write_text(str(os.getpid()), encoding="ascii")
        file.rename(self.folder / str(self.number))

    def joined(self, pid: int) -> bool:
        """Whether the process of this place is ready."""
        return self._pid(self.number) == pid

    def ready(self) -> tuple[int, int]:
        """How many processes are ready, of how many."""
        count = 0
        for pid in filter(None, map(self._pid, range(1, self.of + 1))):
            with suppress(ProcessLookupError, PermissionError):  # a process of another user is not a worker
                os.kill(pid, 0)
                count += 1
        return count, self.of

    def _pid(self, number: int) -> int:
        file = self.folder / str(number)
        return int(file.read_text(encoding="ascii")) if file.exists() else 0


@app.command()
def serve(
    config: Config = None,
    host: Host = None,
    port: Port = None,
    worker: Annotated[str | None, typer.Option(hidden=True)] = None,
) -> None:
    """Run the agent alone, in as many processes as AGENT_WORKERS names; `worker` is the place of one of them."""
    settings = read_settings(config, foreign=False, host=host, port=port)
    if worker is None and settings.workers > 1:
        raise typer.Exit(run(settings, config))
    gc.disable()  # until the server has loaded everything, which stays for good
    if worker is None:
        usable_port(settings.host, settings.port, "--port", f"{PREFIX}PORT")
    from task import server

    if worker is None:
        server.run(settings)
        return
    mine = Place.parse(worker)
    readers = ceil(settings.limits.reader_processes / mine.of)
    changed: dict[str, Any] = {"limits": settings.limits.model_copy(update={"reader_processes": readers})}
    if mine.number > 1:  # one answers for all at the port of the metrics
        changed["metrics"] = settings.metrics.model_copy(update={"port": None})
    settings = settings.model_copy(update=changed)
    with _bound(settings.host, settings.port) as listener:
        server.run(settings, server.SharedPort(listener, mine.join, mine.ready))


def run(settings: Settings, config: Path | None) -> int:
    """Run the workers until a signal comes or they have to be given up; the exit code says which.

    Raises:
        SettingsError: the port cannot be used.
    """
    port = usable_port(settings.host, settings.port, "--port", f"{PREFIX}PORT")
    set_up_logging(settings.log_level, settings.log_file, as_json=settings.log_format == "json")
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    if settings.workers > cores:
        logger.warning("%sWORKERS: more than %s, one for each core, are of no use", PREFIX, cores)
    options = ("--host", settings.host, "--port", str(port), *(("--config", str(config)) if config else ()))
    with (
        TemporaryDirectory(prefix="dial-agent-") as folder,
        _bound(settings.host, port),  # the port stays ours while no worker listens
    ):
        environment, programs = {**process_environment(), SHARED_METRICS: folder}, list[Program]()
        for number in range(1, settings.workers + 1):
            place = Place(number, settings.workers, Path(folder))
            command = (*COMMAND, *options, "--worker", str(place))
            programs.append(Program(f"worker {number}", command, environment, ready=place.joined, forwarded=False))
        return asyncio.run(_supervise(settings, programs, base_url(settings.host, port)))


async def _supervise(settings: Settings, programs: list[Program], url: str) -> int:
    log = partial(logger.warning, "%s %s")
    grace = settings.shutdown_seconds + CLOSING_SECONDS

    async def serve(supervisor: Supervisor) -> None:
        await supervisor.start()
        logger.info("%s workers answer at %s", len(supervisor.pids), url)
        await supervisor.keep()

    try:
        async with Supervisor(programs, log, grace=grace, together=True) as supervisor:
            await until_stopped(supervisor, serve(supervisor))
    except ProgramFailed as failure:
        write(failure, err=True)
        return failure.exit_code
    return 0


def _bound(host: str, port: int) -> socket.socket:
    # Each worker listens on a socket of its own, so that the system spreads connections evenly: of processes that share
    # one, the first to wake takes all that wait. A worker that dies gets no more of them.
    bound = socket.socket(family(host))
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    bound.bind((host, port))
    return bound
