"""Ports of this machine that nobody listens on."""

from __future__ import annotations

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
