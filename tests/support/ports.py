"""Ports of this machine: one that nothing listens at, and whether something does."""

import asyncio
import os
import socket
from itertools import count

_PORTS = range(15_000, 32_000)  # below those that systems give to connections, and to servers that take any port
_places = count(os.getpid() * 4099)  # far from those of the other test processes


def free_port() -> int:
    """Another one each time: it must stay free until its server listens."""
    while True:
        port = _PORTS[next(_places) % len(_PORTS)]
        with socket.socket() as probe:
            try:
                probe.bind(("", port))
            except OSError:
                continue
            return port


async def listens(port: int) -> bool:
    """Whether something on this machine takes connections at the port."""
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.close()
    return True
