"""Keep the machine that runs the tests out of them: its user's home, settings, terminal and running services."""

import errno
import os
import re
import socket
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

OUTSIDE: Mapping[str, str] = dict(os.environ)  # what tests marked `local_model` or `live_*` still see
KEPT = re.compile(
    r"PATH|TMPDIR|TZ|LANG(UAGE)?|LC_\w+|LD_LIBRARY_PATH|(BENCH|CORE|COV|COVERAGE|PIP|PYTEST|SSL)_\w+|PYTHON\w*"
)
NO_OLLAMA = "http://127.0.0.1:9"
SERVICES = {5030, 8050, 8051, 8080, 11434} - {urlsplit(OUTSIDE.get("CORE_BASE_URL", "")).port}


def hide_environment(home: str) -> None:
    """Give this process, and those it starts, a home of their own and no variable that changes what the tests do."""
    for name in [name for name in os.environ if not KEPT.fullmatch(name)]:
        del os.environ[name]
    # As `task` sets PYDANTIC_V2 itself, for tests that import the SDK before it.
    os.environ |= {"HOME": home, "OLLAMA_LOCAL": NO_OLLAMA, "PYDANTIC_V2": "True"}


def without_services(connect: Callable[[socket.socket, Any], None]) -> Callable[[socket.socket, Any], None]:
    """`connect` that finds nobody at the ports where the product and Ollama listen by default."""

    def refusing(self: socket.socket, address: Any) -> None:
        if isinstance(address, tuple) and address[1] in SERVICES:
            raise ConnectionRefusedError(errno.ECONNREFUSED, "tests reach no service that they have not started")
        connect(self, address)

    return refusing
