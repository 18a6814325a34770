"""`dial-agent up`: choose the model, start the processes, print where everything is, keep it running."""

import asyncio
import json
import os
import shlex
import shutil
import signal
import sys
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from itertools import cycle
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import typer
from rich.box import ROUNDED
from rich.console import Console
from rich.table import Table
from rich.text import Text

from task.cli.addresses import base_url, local_core_key, usable_port
from task.cli.checks import NO_MODEL, PICTURES, REGISTER, Check, checked, core_check, dapr_check, model_check
from task.cli.companions import TOKEN_VARIABLE, Companion, companions, prepare_interpreter, servers_token
from task.cli.core_config import replace_file
from task.cli.model import sparse, wants_download
from task.cli.model_choice import ChosenModel, choose_model
from task.cli.options import Config, Port, read_settings
from task.cli.tools import offered_tools
from task.embedding.weights import PackagedModel
from task.permissions.icerc import visible
from task.processes import Child, Program, ProgramFailed, Supervisor, until_stopped
from task.product.backends import BACKENDS
from task.product.parts import packaged_model
from task.settings import PREFIX, Settings, process_environment
from task.settings.sources import CONFIG_VARIABLE

DOWNLOADS = "you asked for it; it is being downloaded, and questions wait until that is done"
STOPPING_SECONDS = 3  # for answers in progress: a user waits at the terminal
COMMAND = (sys.executable, "-P", "-m", "task")
LOG_WIDTH = 120
COLOURS = ("cyan", "magenta", "yellow", "green", "blue")
TRY = "ask --demo"  # three questions about sample files
ROUTE = "/openai/deployments/general-purpose-agent/chat/completions"
EMBEDDING = (sys.executable, "-P", "-m", "task.embedding.weights")
CHECKED = {"dial": (core_check, model_check, dapr_check), "upstream": (model_check, dapr_check)}
app = typer.Typer(add_completion=False)
LABELS = {
    "demo": " (a demo, not a real model)",
    "local": " (a small model on this machine: for trying the product, not for judging it)",
}


@dataclass(frozen=True, slots=True)
class StartPlan:
    """What is about to run: addresses, model and the environment of the processes; `page`: there is a web page."""

    agent_url: str
    core_url: str
    model: ChosenModel
    environment: dict[str, str]
    companions: list[Companion]
    page: bool
    embedding: PackagedModel | None

    def downloads(self, local: bool) -> tuple[list[Program], list[Program]]:
        """What is missing: the local model, which the product does not wait for; what search in documents needs."""
        pull = [Program("model", (*COMMAND, "model", "pull"), self.environment)] if local else []
        if self.embedding is None or self.embedding.state().kind == "ready":
            return pull, []
        return pull, [Program("documents", (*EMBEDDING, str(self.embedding.base)), self.environment)]

    def programs(self) -> list[Program]:
        """The processes to start, in order."""
        agent = Program("agent", (*COMMAND, "serve"), self.environment, f"{self.agent_url}/health")
        core = Program("core", (*COMMAND, "core"), self.environment, f"{self.core_url}/health")
        servers = [server.program(self.environment) for server in self.companions]
        return [*servers, agent] if self.model.rule == "dial" else [*servers, core, agent]


@app.command()
def up(
    config: Config = None,
    port: Port = None,
    core_port: Annotated[int | None, typer.Option("--core-port", min=0, max=65535, help="Port of local Core.")] = None,
    ready_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write addresses and process ids to it as JSON once everything is ready."),
    ] = None,
) -> None:
    """Run until a signal comes or a program has to be given up; the exit code says which."""
    settings = read_settings(config, foreign=False, port=port, core_port=core_port)
    asks = settings.core.model == "auto" and sys.stdin.isatty() and sys.stdout.isatty()
    downloads = asks and asyncio.run(choose_model(settings)).rule == "demo" and wants_download(settings)
    if downloads:
        settings = settings.model_copy(update={"core": settings.core.model_copy(update={"model": "local"})})
    if settings.pyinterpreter_mcp_url is None:
        console = LogConsole()
        with console.status("") as status:  # shown at a terminal only
            reason = prepare_interpreter(settings, status.update if console.is_terminal else sparse())
        if reason:
            console.print(Text(visible(f"No Python interpreter: {reason}."), "yellow"))
    raise typer.Exit(asyncio.run(_run(settings, config.resolve() if config else None, ready_file, downloads)))


async def _run(settings: Settings, config: Path | None, ready_file: Path | None, downloads: bool) -> int:
    started, console = time.monotonic(), LogConsole()
    plan = await _plan(settings, config)
    if downloads:
        plan = replace(plan, model=replace(plan.model, reason=DOWNLOADS))
    programs, (pull, needed) = plan.programs(), plan.downloads(downloads)
    lines = prefixed_lines(console, [program.name for program in (*programs, *pull, *needed)])
    try:
        async with AsyncExitStack() as stack:
            children = [await Child.start(program, lines) for program in (*needed, *pull)]
            for child in children:
                stack.push_async_callback(child.end, grace=1)
            supervisor = await stack.enter_async_context(Supervisor(programs, lines))
            awaited = [child.exited for child in children[: len(needed)]]
            work = _serve(settings, supervisor, plan, console, started, ready_file, awaited)
            await until_stopped(supervisor, work)
            console.print("Stopping …")
    except ProgramFailed as failure:
        console.print(Text(visible(str(failure)), "red"))
        return failure.exit_code
    return 0


async def _plan(settings: Settings, config: Path | None) -> StartPlan:
    model, servers = await choose_model(settings), companions(settings)
    port = usable_port(settings.host, settings.port, "--port", f"{PREFIX}PORT")
    agent_url, core_url = base_url(settings.host, port), settings.dial_endpoint
    shared = {
        "PYTHONUNBUFFERED": "1",
        "DEPLOYMENT_NAME": model.name,
        f"{PREFIX}PORT": str(port),
        f"{PREFIX}HOST": settings.host,
        f"{PREFIX}SHUTDOWN_SECONDS": str(min(settings.shutdown_seconds, STOPPING_SECONDS)),
    }
    if config is not None:
        shared[CONFIG_VARIABLE] = str(config)
    if model.rule != "dial":
        core_port = usable_port(settings.core.host, settings.core_port, "--core-port", f"{PREFIX}CORE_PORT")
        core_url = base_url(settings.core.host, core_port)
        # Where the services that Core's configuration names are on this machine.
        started = {server.service: urlsplit(server.url).netloc for server in servers}
        hosts = {**settings.core.host_map, **started, "agent": urlsplit(agent_url).netloc}
        shared |= {
            "DIAL_ENDPOINT": core_url,
            "DIAL_API_KEY": local_core_key(settings),
            f"{PREFIX}CORE_PORT": str(core_port),
            f"{PREFIX}CORE__MODEL": "auto" if model.rule == "dapr" else model.rule,
            f"{PREFIX}CORE__HOST_MAP": json.dumps(hosts),
        }
        if not BACKENDS[settings.backend].of_core:  # otherwise Core authenticates the callers
            shared[f"{PREFIX}HTTP__REQUEST_KEYS"] = "true"
        if model.base_url:
            shared["OPENAI_BASE_URL"] = model.base_url
    if servers:  # the agent and the servers find each other
        shared |= {TOKEN_VARIABLE: servers_token(settings)}
        shared |= {server.variable: f"{server.url}/mcp" for server in servers}
    environment = {**process_environment(), **shared}
    searches = settings.rag.enabled and not (settings.rag.embeddings or settings.embedding_model)
    embedding = packaged_model(settings) if searches else None
    return StartPlan(agent_url, core_url, model, environment, servers, settings.http.ui, embedding)


async def _serve(
    settings: Settings,
    supervisor: Supervisor,
    plan: StartPlan,
    console: Console,
    started: float,
    file: Path | None,
    downloads: Collection[asyncio.Task[int]],
) -> None:
    checks, *_ = await asyncio.gather(
        checked(settings, CHECKED.get(plan.model.rule, ())),
        supervisor.start(),
        asyncio.gather(*map(asyncio.shield, downloads)),
    )
    seconds = time.monotonic() - started
    if file is not None:
        ready = {
            "agent": plan.agent_url,
            "core": plan.core_url,
            "model": plan.model.name,
            "rule": plan.model.rule,
            "processes": supervisor.pids,
            "ready_seconds": round(seconds, 3),
        }
        replace_file(file, json.dumps(ready), 0o644, option="--ready-file")
    tools = await offered_tools(plan.agent_url)
    console.print(overview(plan, tools, seconds, supervisor.pids, checks))
    console.print(Text(visible(f"Try:\n{example(plan.core_url, plan.model)}")), soft_wrap=True)
    await supervisor.keep()


class LogConsole(Console):
    """A terminal or a log; once its reader is gone, this process gets the signal to end."""

    def __init__(self) -> None:
        super().__init__(highlight=False, width=None if sys.stdout.isatty() else LOG_WIDTH)

    def on_broken_pipe(self) -> None:
        self.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        os.kill(os.getpid(), signal.SIGTERM)


def prefixed_lines(console: Console, names: Sequence[str]) -> Callable[[str, str], None]:
    """Writes `name │ line`; the name keeps its colour and its width, and a pipe gets the same without colour."""
    width, colours = max(map(len, names)), dict(zip(names, cycle(COLOURS), strict=False))

    def write(name: str, line: str) -> None:
        text = Text.from_ansi(line)
        text = text if visible(text.plain) == text.plain else Text(visible(text.plain))
        console.print(Text.assemble((f"{name:<{width}} │ ", colours[name]), text), soft_wrap=True)

    return write


def overview(
    plan: StartPlan,
    tools: Sequence[str] | None,
    ready_seconds: float,
    running: Collection[str] = (),
    checks: Sequence[Check] = (),
) -> Table:
    """The table that is printed once.

    `running` names the programs that have started; of the `checks` of Core and the model, each that is bad or takes a
    tool away becomes a warning.
    """
    table = Table(box=ROUNDED, show_header=False, title=f"Ready in {ready_seconds:.1f} s", title_justify="left")
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    model, through_core = plan.model, plan.model.rule == "dial"
    if plan.page:
        table.add_row("Web page", f"{plan.agent_url}/")
    table.add_row("Agent", f"{plan.agent_url}\n{plan.agent_url}{ROUTE}")
    table.add_row("DIAL Core", plan.core_url if through_core else f"{plan.core_url} (local, no account needed)")
    for server in plan.companions:
        fault = "" if server.name in running else "\nIt did not start; its output above says why."
        table.add_row(server.title, f"{server.url}/mcp{fault}")
    listed = "could not be listed; see `dial-agent tools`" if tools is None else ", ".join(tools)
    table.add_row("Model", Text(visible(f"{model.name}{LABELS.get(model.rule, '')}\nbecause {model.reason}")))
    table.add_row("Tools", Text(visible(listed)))
    if plan.embedding is not None and (state := plan.embedding.state()).kind != "ready":
        table.add_row("Documents", Text(visible(f"Search in documents is {state.text}. Everything else works.")))
    if model.rule == "demo":
        table.add_row("Missing", Text(visible(f"A real model. {NO_MODEL} Then start again.")))
    for check in (check for check in checks if check.state == "bad" or check.name == PICTURES):
        table.add_row("Warning", Text(visible(f"{check.found}. {check.fix}"), "yellow"))
    if through_core and not any(check.name == "deployments" for check in checks):
        table.add_row("Needed", Text(visible(f"{plan.core_url} must know this agent: {REGISTER}")))
    table.add_row("Stop", "Ctrl-C")
    return table


def example(core_url: str, model: ChosenModel) -> str:
    """A command to try; it is printed below the table, which would wrap it so that it cannot be copied."""
    beside = str(Path(sys.executable).with_name("dial-agent"))
    command = "dial-agent" if shutil.which("dial-agent") else shlex.quote(beside)
    usual = model.rule == "dial" or core_url == "http://127.0.0.1:8080"
    return f"{command} {TRY}" if usual else f"{command} {TRY} --endpoint {core_url}"
