"""The servers beside the agent: whether each can run here, with which command, and how the agent finds it."""

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from task.cli.addresses import base_url, free_port, port_fault, usable_port
from task.cli.environments import InstallationFailed, kernels_name, make_kernels
from task.cli.model import sparse
from task.cli.options import Config, read_settings
from task.errors import SettingsError
from task.processes import Program
from task.settings import PREFIX, Settings, process_environment
from task.settings.installation import installation_secret
from task.settings.sources import CLONE
from task.wheels import Report

SEARCH = (sys.executable, "-P", "-m", "mcp_servers.duckduckgo")
INTERPRETER = (sys.executable, "-P", "-m", "mcp_servers.python_interpreter")
TOKEN_VARIABLE = f"{PREFIX}MCP_TOKEN"
SEARCH_PORT, INTERPRETER_PORT = f"{PREFIX}SEARCH_PORT", f"{PREFIX}INTERPRETER__PORT"
HOST = "127.0.0.1"
LoopbackHost = Annotated[str, typer.Option(help="Address to listen on.")]
ServerPort = Annotated[int | None, typer.Option(min=0, max=65535, help="Port of the server.")]
search, interpreter = typer.Typer(add_completion=False), typer.Typer(add_completion=False)
# Code runs below the interpreter, so it gets no keys.
INTERPRETER_VARIABLES = (
    TOKEN_VARIABLE,
    *("DIAL_ENDPOINT", "HOME", "LANG", "LC_ALL", "PATH", "PYTHONPATH", "PYTHONUNBUFFERED", "TMPDIR"),
)


@dataclass(frozen=True, slots=True)
class Companion:
    """A server of ours.

    `name` stands before its lines, `title` beside its address; `service` is its host in Core's configuration;
    `variable` names its address for the agent; `inherited` are the only variables it gets (None: all).
    """

    name: str
    service: str
    title: str
    command: tuple[str, ...]
    port: int
    variable: str
    inherited: Sequence[str] | None = None

    @property
    def url(self) -> str:
        return base_url(HOST, self.port)

    def program(self, environment: Mapping[str, str]) -> Program:
        given = {name: environment[name] for name in self.inherited or environment if name in environment}
        return Program(self.name, (*self.command, "--port", str(self.port)), given, f"{self.url}/health", optional=True)


def companions(settings: Settings) -> list[Companion]:
    """The servers to start: those for which the settings name no address.

    Where the usual port is taken, for instance by a second product, the server gets another one.

    Raises:
        SettingsError: a port that the settings name is taken.
    """
    chosen, started = settings.interpreter, list[Companion]()
    if settings.ddg_mcp_url is None:
        port = _port(settings.search_port, "search_port" in settings.model_fields_set, SEARCH_PORT)
        command, variable = _search_command(settings), "DDG_MCP_URL"
        started.append(Companion("search", "search", "Search", command, port, variable))
    if settings.pyinterpreter_mcp_url is None and interpreter_obstacle(settings) is None:
        port = _port(chosen.port, "port" in chosen.model_fields_set, INTERPRETER_PORT)
        command, variable = _interpreter_command(settings), "PYINTERPRETER_MCP_URL"
        own = Companion("python", "python-interpreter", "Python", command, port, variable, INTERPRETER_VARIABLES)
        started.append(own)
    return started


def _port(port: int, chosen: bool, variable: str) -> int:
    return usable_port(HOST, port, variable) if chosen or not port_fault(HOST, port) else free_port(HOST)


def servers_token(settings: Settings) -> str:
    """The token that the servers ask of their callers: that of the settings, else this installation's own.

    Raises:
        SettingsError: the data folder cannot be written.
    """
    token = settings.mcp_token
    return token.get_secret_value() if token is not None else installation_secret(settings.data_dir / "mcp.key")


def interpreter_obstacle(settings: Settings) -> str | None:
    """Why the interpreter cannot be started on this machine, with the fix; None when it can."""
    if sys.platform != "linux":
        return "it needs Linux: point PYINTERPRETER_MCP_URL at one that runs elsewhere"
    python = _kernel_python(settings)
    if not python.exists():
        return f"{python} does not exist" + ("" if settings.interpreter.python else "; `dial-agent up` makes it")
    if settings.interpreter.python is None and python.lstat().st_uid not in (0, os.getuid()):
        return f"{python.parents[1]} belongs to another user: choose another folder with AGENT_DATA_DIR"
    return None


def prepare_interpreter(settings: Settings, report: Report) -> str | None:
    """Make the kernels' environment on the first call; why the interpreter cannot be started, None when it can."""
    python = _kernel_python(settings)
    if sys.platform == "linux" and settings.interpreter.python is None and not python.exists():
        try:
            make_kernels(python.parents[1], process_environment(), lambda step: report(f"{step} (for Python code)"))
        except InstallationFailed as error:
            return str(error)
    return interpreter_obstacle(settings)


@search.command()
def become_search_server(config: Config = None, host: LoopbackHost = HOST, port: ServerPort = None) -> None:
    """Turn this process into the search server."""
    settings = read_settings(config, foreign=False, search_port=port)
    wanted = usable_port(host, settings.search_port, "--port", SEARCH_PORT)
    token = {TOKEN_VARIABLE: settings.mcp_token.get_secret_value()} if settings.mcp_token else {}
    command = (*_search_command(settings), "--host", host, "--port", str(wanted))
    os.execve(command[0], command, {**process_environment(), **token})  # noqa: S606


@interpreter.command()
def become_interpreter(
    config: Config = None,
    host: LoopbackHost = HOST,
    port: ServerPort = None,
    allowed_host: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Additional host name that callers may use; may be repeated."),
    ] = None,
) -> None:
    """Turn this process into the Python interpreter server."""
    settings = read_settings(config, foreign=False)
    if reason := prepare_interpreter(settings, sparse()):
        raise SettingsError(f"The Python interpreter cannot run here: {reason}.")
    if settings.mcp_token is None:
        raise SettingsError(f"{TOKEN_VARIABLE}: set the token that callers must show, at least 16 characters.")
    wanted = usable_port(host, settings.interpreter.port if port is None else port, "--port", INTERPRETER_PORT)
    environment = {name: value for name, value in process_environment().items() if name in INTERPRETER_VARIABLES}
    environment[TOKEN_VARIABLE] = settings.mcp_token.get_secret_value()
    names = [text for name in allowed_host or () for text in ("--allowed-host", name)]
    command = (*_interpreter_command(settings), "--host", host, "--port", str(wanted), *names)
    os.execve(command[0], command, environment)  # noqa: S606


def _kernel_python(settings: Settings) -> Path:
    # Code cannot import the product: its environment is another one, in the clone or else in the data folder.
    in_clone = (CLONE / "pyproject.toml").is_file()
    own = CLONE / ".venv-kernel" if in_clone else settings.data_dir / kernels_name()
    return settings.interpreter.python or own / "bin" / "python"


def _search_command(settings: Settings) -> tuple[str, ...]:
    return (*SEARCH, "--keep-alive-seconds", str(settings.keep_alive_seconds))


def _interpreter_command(settings: Settings) -> tuple[str, ...]:
    chosen = settings.interpreter
    given = chosen.model_dump(exclude={"port", "unsafe"}) | {
        "keep_alive_seconds": settings.keep_alive_seconds,
        "data": settings.data_dir / "interpreter",
        "python": _kernel_python(settings),
    }
    options = [text for name, value in given.items() for text in (f"--{name.replace('_', '-')}", str(value))]
    return (*INTERPRETER, *options, *(["--unsafe"] if chosen.unsafe else []))
