"""Run ten probes inside a sandbox: `probes.py WORLD` prints one JSON line for each.

Each line says what the probe got, or what stopped it. The file stands alone: inside the sandbox no other file of the
product can be read.
"""

import ctypes
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from typing import Any

PATIENCE_SECONDS = 2.0
LINGER_SECONDS = 60
NEW_USER_NAMESPACE = 0x10000000
World = dict[str, Any]


def read_file(world: World) -> str:
    """read a file outside"""
    return _text(f"{world['outside']}/secret")


def read_by_link(world: World) -> str:
    """read a file outside through a symbolic link"""
    os.symlink(f"{world['outside']}/secret", "link")
    return _text("link")


def write_file(world: World) -> str:
    """overwrite a file outside"""
    return _write(f"{world['outside']}/write_file")


def create_in_read_only(world: World) -> str:
    """make a file in a read-only folder"""
    return _write(f"{world['read_only']}/create_in_read_only")


def connect(world: World) -> str:
    """connect to a TCP port of this machine"""
    return _send(socket.AF_INET, ("127.0.0.1", world["port"]), b"connect")


def connect_by_name(world: World) -> str:
    """connect to an abstract Unix socket"""
    return _send(socket.AF_UNIX, f"\0{world['socket']}", b"connect_by_name")


def read_environment(world: World) -> str:
    """read the environment of a process outside"""
    return _text(f"/proc/{world['neighbour']}/environ")


def end_neighbour(world: World) -> str:
    """end a process outside"""
    os.kill(world["neighbour"], signal.SIGKILL)
    return ""


def new_namespace(world: World) -> str:
    """make a user namespace"""
    if ctypes.CDLL(None, use_errno=True).unshare(NEW_USER_NAMESPACE) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return str(world["secret"])


def outlive(world: World) -> str:
    """leave a process in a session of its own that outlives the run"""
    if os.fork() == 0:
        os.setsid()
        os.closerange(0, 64)
        time.sleep(LINGER_SECONDS)
        os._exit(0)
    return ""


PROBES: dict[str, Callable[[World], str]] = {
    probe.__name__: probe
    for probe in (
        read_file,
        read_by_link,
        write_file,
        create_in_read_only,
        connect,
        connect_by_name,
        read_environment,
        end_neighbour,
        new_namespace,
        outlive,
    )
}


def _text(path: str) -> str:
    with open(path) as file:
        return file.read(4000)


def _write(path: str) -> str:
    with open(path, "w") as file:
        file.write("escaped")
    return ""


def _send(family: int, address: Any, message: bytes) -> str:
    with socket.socket(family) as sender:
        sender.settimeout(PATIENCE_SECONDS)
        sender.connect(address)
        sender.sendall(message)
    return ""


def main(world: World) -> None:
    """Try each probe; what it got proves an escape only where the caller's secret is in it."""
    for name, probe in PROBES.items():
        try:
            got, error = probe(world), ""
        except OSError as refusal:
            got, error = "", refusal.strerror or str(refusal)
        print(json.dumps({"name": name, "got": got, "error": error}), flush=True)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
