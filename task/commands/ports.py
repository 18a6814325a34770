"""Which ports are free, and who holds those that are not."""

from __future__ import annotations

import errno
import socket
from pathlib import Path

from task.errors import SettingsError

LISTENING = "0A"  # TCP_LISTEN in /proc/net/tcp


def free_port(host: str) -> int:
    """A port nobody listens on at this moment."""
    with socket.socket(_family(host)) as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def require_free(host: str, port: int, option: str, variable: str) -> None:
    """Stop with one sentence when `port` cannot be listened on.

    Raises:
        SettingsError: the port is taken, needs rights, or the host is not this machine's.
    """
    fault = fault_of(host, port)
    if fault:
        raise SettingsError(f"{fault}; choose another with {option} or {variable}.")


def chosen(host: str, port: int, option: str, variable: str) -> int:
    """The port to listen on: `port` once it is known to be free, or any free one for 0.

    Raises:
        SettingsError: as `require_free` does.
    """
    if port == 0:
        return free_port(host)
    require_free(host, port, option, variable)
    return port


def fault_of(host: str, port: int) -> str | None:
    """Why nothing can listen on `host:port`, as a clause; None when it can."""
    try:
        with socket.socket(_family(host)) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
            return None
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return f"Port {port} is in use by {holder_of(port) or 'another process'}"
        return f"Nothing can listen on {host} port {port}: {error.strerror}"


def holder_of(port: int) -> str | None:
    """The listening process as `name (process 123)`, where Linux lets us see it."""
    sockets = {f"socket:[{inode}]" for inode in _listening_inodes(port)}
    if not sockets:
        return None
    for process in Path("/proc").glob("[0-9]*"):
        try:
            held = any(str(link.readlink()) in sockets for link in (process / "fd").iterdir())
            if held:
                return f"{(process / 'comm').read_text().strip()} (process {process.name})"
        except OSError:
            continue  # ended meanwhile, or somebody else's
    return None


def _listening_inodes(port: int) -> set[str]:
    inodes: set[str] = set()
    for table in (Path("/proc/net/tcp"), Path("/proc/net/tcp6")):
        lines = table.read_text().splitlines()[1:] if table.exists() else []
        columns = [line.split() for line in lines]
        inodes.update(row[9] for row in columns if row[3] == LISTENING and int(row[1].rpartition(":")[2], 16) == port)
    return inodes


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET
