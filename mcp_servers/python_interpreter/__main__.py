"""`python -m mcp_servers.python_interpreter`: read the options, refuse what cannot be served, serve."""

import argparse
import fcntl
import os
import sys
from dataclasses import replace
from pathlib import Path

from mcp_servers import serving
from mcp_servers.callers import CORE_VARIABLE
from mcp_servers.python_interpreter.config import MIB, Config, Limits
from mcp_servers.serving import TOKEN_VARIABLE

REFUSED_EXIT = 2


class Refusal(Exception):
    """Why the server cannot start and what to do about it, in one line."""


def parse(arguments: list[str], environ: dict[str, str]) -> Config:
    """The configuration from options and environment.

    Raises:
        Refusal: something is missing or invalid.
    """
    given = _parser().parse_args(arguments)
    token = environ.get(TOKEN_VARIABLE, "").strip()
    if len(token) < 16:
        raise Refusal(f"{TOKEN_VARIABLE}: set the token that callers must send, at least 16 characters.")
    if not given.python.is_file():
        raise Refusal(f"--python: {given.python} does not exist; `dial-agent up` creates the kernels' environment.")
    limits = replace(
        Limits(),
        seconds=given.seconds,
        idle_seconds=given.idle_minutes * 60,
        lifetime_seconds=given.lifetime_hours * 3600,
        sessions=given.sessions,
        running=given.running,
        spares=given.spares,
        memory_bytes=given.memory_mib * MIB,
    )
    return Config(
        token=token, data_dir=given.data, python=given.python.absolute(), host=given.host, port=given.port,
        allowed_hosts=tuple(given.allowed_host), core=environ.get(CORE_VARIABLE) or None, work_dir=given.work,
        unsafe=given.unsafe, tier=given.tier, preload=not given.bare,
        keep_alive_seconds=given.keep_alive_seconds, drain_seconds=given.drain_seconds, limits=limits,
    )  # fmt: skip


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m mcp_servers.python_interpreter", description=__doc__)
    add, usual = parser.add_argument, Limits()
    add("--host", default="127.0.0.1", help="address to listen on")
    add("--port", type=int, default=8050)
    add("--keep-alive-seconds", type=int, default=serving.KEEP_ALIVE_SECONDS, help="life of idle connections")
    add("--drain-seconds", type=float, default=0, help="time for running calls when a signal ends the server")
    add("--allowed-host", action="append", default=[], metavar="NAME", help="further accepted host name; repeatable")
    add(
        "--data",
        type=Path,
        required=True,
        metavar="FOLDER",
        help="state kept across restarts; FOLDER-2 … beside another server",
    )
    add("--work", type=Path, metavar="FOLDER", help="the kernels' files (default: the temporary folder)")
    add("--python", type=Path, required=True, metavar="FILE", help="Python of the kernels' own environment")
    add("--tier", default="auto", choices=["auto", "bubblewrap", "landlock"], help="sandbox to use")
    add("--unsafe", action="store_true", help="run without a sandbox: code may do everything that this user may")
    add("--bare", action="store_true", help="do not import pandas and matplotlib in advance")
    add("--seconds", type=float, default=usual.seconds, help="time limit of one call")
    add("--idle-minutes", type=float, default=usual.idle_seconds / 60)
    add("--lifetime-hours", type=float, default=usual.lifetime_seconds / 3600)
    add("--sessions", type=int, default=usual.sessions, help="maximum number of sessions")
    add("--running", type=int, default=usual.running, help="calls that run at a time; others wait")
    add("--spares", type=int, default=usual.spares, help="kernels kept ready")
    add("--memory-mib", type=int, default=usual.memory_bytes // MIB, help="memory of each process")
    return parser


def serve(config: Config) -> None:
    """Serve until a signal arrives.

    Raises:
        Refusal: there is no sandbox.
    """
    from mcp_servers.python_interpreter.launch import Launcher, NoSandbox
    from mcp_servers.sandbox import probe

    folder, lock = _unused_folder(config.data_dir)
    config = replace(config, data_dir=folder)
    try:
        _serve(config, Launcher.find(config, probe()))
    except NoSandbox as reason:
        raise Refusal(
            f"no sandbox works here ({reason}); see docs/interpreter.md, or use --unsafe if you accept that."
        ) from reason
    finally:
        os.close(lock)


def _serve(config: Config, launcher: object) -> None:
    import logging

    from mcp_servers.python_interpreter.interpreter import Interpreter
    from mcp_servers.python_interpreter.launch import Launcher
    from mcp_servers.python_interpreter.server import create_app

    assert isinstance(launcher, Launcher)
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s %(message)s")  # before the SDK's own
    if launcher.tier == "none":
        print("WARNING no sandbox: code may do all that this user may", file=sys.stderr, flush=True)
    interpreter = Interpreter(config, launcher)
    app, kept, drain = create_app(interpreter), config.keep_alive_seconds, None
    if config.drain_seconds > 0:
        drain = interpreter.drain
    serving.run(app, config.host, config.port, keep_alive_seconds=kept, shutdown_seconds=3, drain=drain)


def _unused_folder(wanted: Path) -> tuple[Path, int]:
    # The first that no other server uses, of `wanted`, `wanted-2` …, with its lock.
    folder, number = wanted, 1
    while (lock := _lock(folder)) is None:
        number += 1
        folder = wanted.with_name(f"{wanted.name}-{number}")
    return folder, lock


def _lock(folder: Path) -> int | None:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return None
    return lock


def main() -> None:
    try:
        serve(parse(sys.argv[1:], dict(os.environ)))
    except Refusal as refusal:
        print(refusal, file=sys.stderr)
        sys.exit(REFUSED_EXIT)


if __name__ == "__main__":
    main()
