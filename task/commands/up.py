"""Run the whole local product: decide the model, start the processes, say where everything is, keep it running."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit

from rich.console import Console

from task.commands import ports
from task.commands.addresses import base_url, local_core_key
from task.commands.companions import Companion, absent, companions, told
from task.commands.local_model import announcement, at_terminal, wants_download
from task.commands.logs import LogConsole, PrefixedLines
from task.commands.model_choice import ChosenModel, choose_model
from task.commands.processes import Child, Program, Write
from task.commands.supervisor import ProgramFailed, Supervisor
from task.commands.table import example, overview
from task.commands.tools import offered
from task.errors import SettingsError
from task.settings import PREFIX, Settings, process_environment
from task.settings.sources import CONFIG_VARIABLE

DOWNLOADS = "you asked for it; it is being downloaded, and questions wait until it is here"
STOPPING_SECONDS = 3  # for answers under way: somebody waits at the terminal
COMMAND = (sys.executable, "-m", "task")


@dataclass(frozen=True, slots=True)
class Product:
    """The addresses and the model of one running product; `core_is_ours` tells local Core from a real one, `page`
    whether there is a web page."""

    agent_url: str
    core_url: str
    core_is_ours: bool
    model: ChosenModel
    environment: dict[str, str]
    companions: tuple[Companion, ...] = ()
    page: bool = True

    def programs(self) -> list[Program]:
        """The processes to start, in order."""
        agent = Program("agent", (*COMMAND, "serve"), self.environment, f"{self.agent_url}/health")
        core = Program("core", (*COMMAND, "core"), self.environment, f"{self.core_url}/health")
        servers = [server.program(self.environment) for server in self.companions]
        return [*servers, core, agent] if self.core_is_ours else [*servers, agent]


def run(settings: Settings, config: Path | None, ready_file: Path | None) -> int:
    """Run until a signal comes or something has to be given up; the exit code tells which."""
    downloads = at_terminal() and asyncio.run(_lacks_model(settings)) and wants_download(settings)
    if downloads:
        settings = settings.model_copy(update={"core": settings.core.model_copy(update={"model": "local"})})
    return asyncio.run(_run(settings, config.resolve() if config else None, ready_file, downloads))


async def _lacks_model(settings: Settings) -> bool:
    return settings.core.model == "auto" and (await choose_model(settings)).rule == "demo"


async def _run(settings: Settings, config: Path | None, ready_file: Path | None, downloads: bool) -> int:
    began = time.monotonic()
    product = await plan(settings, config)
    console = LogConsole()
    for line in absent(settings):
        console.print(f"[yellow]{line}[/yellow]")
    if downloads:
        product = replace(product, model=replace(product.model, reason=DOWNLOADS))
    elif product.model.rule == "local":
        console.print(announcement(settings))
    programs = product.programs()
    lines = PrefixedLines(console, [program.name for program in programs])
    async with _downloading(product.environment, lines, downloads), Supervisor(programs, lines) as supervisor:
        asked_to_stop = _on_signals(supervisor)
        work = asyncio.create_task(_serve(supervisor, product, console, began, ready_file))
        await asyncio.wait({work, asked_to_stop}, return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            work.cancel()
            console.print("Stopping …")
            return 0
        return _outcome(work, console)


@asynccontextmanager
async def _downloading(environment: dict[str, str], write: Write, wanted: bool) -> AsyncGenerator[None]:
    """Beside everything else, so that the product is ready meanwhile."""
    if not wanted:
        yield
        return
    child = await Child.start(Program("model", (*COMMAND, "model", "pull"), environment), write)
    try:
        yield
    finally:
        await child.end(grace=1)


async def plan(settings: Settings, config: Path | None) -> Product:
    """Addresses, model and environment of the product that `settings` describe.

    Raises:
        SettingsError: a port is taken, or the data folder cannot be written.
    """
    model = await choose_model(settings)
    core_is_ours = model.rule != "dial"
    port = ports.chosen(settings.host, settings.port, "--port", f"{PREFIX}PORT")
    shared = {
        "PYTHONUNBUFFERED": "1",
        "DEPLOYMENT_NAME": model.name,
        f"{PREFIX}PORT": str(port),
        f"{PREFIX}HOST": settings.host,
        f"{PREFIX}SHUTDOWN_SECONDS": str(min(settings.shutdown_seconds, STOPPING_SECONDS)),
    }
    if config is not None:
        shared[CONFIG_VARIABLE] = str(config)
    core_url = settings.dial_endpoint
    if core_is_ours:
        core_url, further = _local_core(settings, model, port)
        shared.update(further)
    servers = companions(settings)
    environment = {**process_environment(), **shared, **told(servers, settings)}
    agent_url = base_url(settings.host, port)
    return Product(agent_url, core_url, core_is_ours, model, environment, tuple(servers), settings.http.ui)


def _local_core(settings: Settings, model: ChosenModel, agent_port: int) -> tuple[str, dict[str, str]]:
    core_port = ports.chosen(settings.core.host, settings.core_port, "--core-port", f"{PREFIX}CORE_PORT")
    core_url = base_url(settings.core.host, core_port)
    agent = urlsplit(base_url(settings.host, agent_port)).netloc
    environment = {
        "DIAL_ENDPOINT": core_url,
        "DIAL_API_KEY": local_core_key(settings),
        f"{PREFIX}CORE_PORT": str(core_port),
        f"{PREFIX}CORE__MODEL": model.rule if model.rule in ("local", "demo", "config") else "upstream",
        f"{PREFIX}CORE__HOST_MAP": json.dumps({**settings.core.host_map, "agent": agent}),
    }
    if model.base_url:
        environment["OPENAI_BASE_URL"] = model.base_url
    return core_url, environment


async def _serve(
    supervisor: Supervisor, product: Product, console: Console, began: float, ready_file: Path | None
) -> None:
    await supervisor.start()
    seconds = time.monotonic() - began
    if ready_file is not None:
        _write_ready(ready_file, product, supervisor, seconds)
    tools = await offered(product.agent_url)
    beside = [(server.title, f"{server.url}/mcp") for server in product.companions]
    table = overview(product.agent_url, product.core_url, product.model, tools, seconds, beside, page=product.page)
    console.print(table)
    console.print(f"Try:\n{example(product.core_url, product.model)}", markup=False, soft_wrap=True)
    await supervisor.keep()


def _outcome(work: asyncio.Task[None], console: Console) -> int:
    try:
        work.result()
    except ProgramFailed as failure:
        console.print(f"[red]{failure}[/red]")
        return failure.exit_code
    return 0


def _on_signals(supervisor: Supervisor) -> asyncio.Future[None]:
    loop = asyncio.get_running_loop()
    asked: asyncio.Future[None] = loop.create_future()

    def stop() -> None:
        if asked.done():
            supervisor.kill()  # the second Ctrl-C does not wait
        else:
            asked.set_result(None)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, stop)
    return asked


def _write_ready(path: Path, product: Product, supervisor: Supervisor, seconds: float) -> None:
    content = {
        "agent": product.agent_url,
        "core": product.core_url,
        "model": product.model.name,
        "rule": product.model.rule,
        "processes": supervisor.pids,
        "ready_seconds": round(seconds, 3),
    }
    unfinished = path.with_name(f"{path.name}.part")
    try:
        unfinished.write_text(json.dumps(content), encoding="utf-8")
        os.replace(unfinished, path)
    except OSError as error:
        raise SettingsError(f"--ready-file: {path} cannot be written: {error.strerror}.") from error
