"""The Python interpreter server as part of the product: whether it can run here, and with which command."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import NoReturn

import task
from task.commands import ports
from task.errors import SettingsError
from task.settings import PREFIX, InterpreterSettings, Settings, process_environment

MODULE = (sys.executable, "-m", "mcp_servers.python_interpreter")
TOKEN_VARIABLE = f"{PREFIX}MCP_TOKEN"
PORT_VARIABLE = f"{PREFIX}INTERPRETER__PORT"
# Code runs below this server, so it is told no key of anybody's.
NEEDED = ("HOME", "LANG", "LC_ALL", "PATH", "PYTHONPATH", "PYTHONUNBUFFERED", "TMPDIR", TOKEN_VARIABLE)


def obstacle(settings: Settings) -> str | None:
    """Why the interpreter cannot be started on this machine, with the mend; None when it can."""
    if sys.platform != "linux":
        return "it needs Linux: point PYINTERPRETER_MCP_URL at one that runs elsewhere"
    if not kernel_python(settings.interpreter).exists():
        return f"{kernel_python(settings.interpreter)} does not exist: `make run` makes the kernels' environment"
    return None


def kernel_python(settings: InterpreterSettings) -> Path:
    """The Python of the kernels' own environment, which lies beside the project's unless told otherwise."""
    return settings.python or Path(task.__file__).parent.parent / ".venv-kernel" / "bin" / "python"


def command(settings: Settings) -> tuple[str, ...]:
    """The server's command line, without its port."""
    chosen = settings.interpreter
    given = {
        "--data": settings.data_dir / "interpreter",
        "--python": kernel_python(chosen),
        "--seconds": chosen.seconds,
        "--sessions": chosen.sessions,
        "--idle-minutes": chosen.idle_minutes,
        "--memory-mib": chosen.memory_mib,
    }
    options = [text for name, value in given.items() for text in (name, str(value))]
    return (*MODULE, *options, *(["--unsafe"] if chosen.unsafe else []))


def chosen_port(host: str, port: int) -> int:
    return ports.chosen(host, port, "--port", PORT_VARIABLE)


def become(settings: Settings, host: str, port: int | None, allowed_hosts: list[str]) -> NoReturn:
    """Turn this process into the server.

    Raises:
        SettingsError: it cannot run here, the port is taken, or nobody has said by which token callers are known.
    """
    if reason := obstacle(settings):
        raise SettingsError(f"The Python interpreter cannot run here: {reason}.")
    if settings.mcp_token is None:
        raise SettingsError(f"{TOKEN_VARIABLE}: set the token that callers must show, at least 16 characters.")
    wanted = chosen_port(host, settings.interpreter.port if port is None else port)
    environment = {name: value for name, value in process_environment().items() if name in NEEDED}
    environment[TOKEN_VARIABLE] = settings.mcp_token.get_secret_value()
    names = [text for name in allowed_hosts for text in ("--allowed-host", name)]
    arguments = [*command(settings), "--host", host, "--port", str(wanted), *names]
    os.execve(arguments[0], arguments, environment)  # noqa: S606
