"""The servers that `dial-agent up` starts beside the agent, and what the agent is told of them."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NoReturn

from task.commands import interpreter, ports
from task.commands.addresses import base_url
from task.commands.processes import Program
from task.settings import PREFIX, Settings, process_environment
from task.settings.installation import installation_secret

SEARCH = (sys.executable, "-m", "mcp_servers.duckduckgo")
TOKEN_VARIABLE = f"{PREFIX}MCP_TOKEN"
HOST = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Companion:
    """A server of ours; `variable` tells the agent its address. `needed`: the only variables it gets; None: all.

    `name` stands before its lines, `title` beside its address.
    """

    name: str
    title: str
    command: tuple[str, ...]
    port: int
    variable: str
    needed: tuple[str, ...] | None = None

    @property
    def url(self) -> str:
        return base_url(HOST, self.port)

    def program(self, environment: Mapping[str, str]) -> Program:
        given = {name: environment[name] for name in self.needed or environment if name in environment}
        return Program(self.name, (*self.command, "--port", str(self.port)), given, f"{self.url}/health", optional=True)


def companions(settings: Settings) -> list[Companion]:
    """The servers to start: those whose address nobody has given.

    Raises:
        SettingsError: a port is taken.
    """
    started: list[Companion] = []
    if settings.ddg_mcp_url is None:
        port = ports.chosen(HOST, settings.search_port, "--search-port", f"{PREFIX}SEARCH_PORT")
        started.append(Companion("search", "Search", SEARCH, port, "DDG_MCP_URL"))
    if settings.pyinterpreter_mcp_url is None and interpreter.obstacle(settings) is None:
        port = interpreter.chosen_port(HOST, settings.interpreter.port)
        command = interpreter.command(settings)
        started.append(Companion("python", "Python", command, port, "PYINTERPRETER_MCP_URL", interpreter.NEEDED))
    return started


def absent(settings: Settings) -> list[str]:
    """What cannot be started here, and why, as lines for a person."""
    reason = interpreter.obstacle(settings) if settings.pyinterpreter_mcp_url is None else None
    return [f"No Python interpreter: {reason}."] if reason else []


def told(started: list[Companion], settings: Settings) -> dict[str, str]:
    """The environment that lets the agent and the servers meet.

    Raises:
        SettingsError: the data folder cannot be written.
    """
    if not started:
        return {}
    given = settings.mcp_token
    token = given.get_secret_value() if given else installation_secret(settings.data_dir / "mcp.key")
    return {TOKEN_VARIABLE: token, **{server.variable: f"{server.url}/mcp" for server in started}}


def become_search_server(settings: Settings, host: str, port: int | None) -> NoReturn:
    """Turn this process into the search server.

    Raises:
        SettingsError: the port is taken.
    """
    wanted = ports.chosen(host, settings.search_port if port is None else port, "--port", f"{PREFIX}SEARCH_PORT")
    environment = process_environment()
    if settings.mcp_token:
        environment[TOKEN_VARIABLE] = settings.mcp_token.get_secret_value()
    os.execve(SEARCH[0], [*SEARCH, "--host", host, "--port", str(wanted)], environment)  # noqa: S606
