"""The servers that `dial-agent up` starts beside the agent, and what the agent is told of them."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NoReturn

from task.commands import ports
from task.commands.addresses import base_url
from task.commands.processes import Program
from task.settings import PREFIX, Settings, process_environment
from task.utils.installation import installation_secret

SEARCH = (sys.executable, "-m", "mcp_servers.duckduckgo")
TOKEN_VARIABLE = f"{PREFIX}MCP_TOKEN"
HOST = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Companion:
    """A server of ours; `variable` tells the agent its address."""

    name: str
    command: tuple[str, ...]
    port: int
    variable: str

    @property
    def url(self) -> str:
        return base_url(HOST, self.port)

    def program(self, environment: Mapping[str, str]) -> Program:
        return Program(
            self.name, (*self.command, "--port", str(self.port)), environment, f"{self.url}/health", optional=True
        )  # fmt: skip


def companions(settings: Settings) -> list[Companion]:
    """The servers to start: those whose address nobody has given.

    Raises:
        SettingsError: a port is taken.
    """
    if settings.ddg_mcp_url is not None:
        return []
    port = ports.chosen(HOST, settings.search_port, "--search-port", f"{PREFIX}SEARCH_PORT")
    return [Companion("search", SEARCH, port, "DDG_MCP_URL")]


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
