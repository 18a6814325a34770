"""MCP servers as processes of their own, on free loopback ports, to be stopped, killed and restarted."""

import base64
import os
import socket
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from tests.support.ports import free_port

ROOT = Path(__file__).resolve().parents[2]
START_SECONDS = 30
# The peer's picture.
PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="
)


class ServerProcess:
    """One server's process; `start` after `kill` gives a new one at the same address."""

    def __init__(self, port: int, command: list[str], environment: dict[str, str]) -> None:
        self.port = port
        self.url = f"http://127.0.0.1:{port}/mcp"
        self._command = command
        self._environment = {**os.environ, **environment, "PYTHONPATH": str(ROOT)}
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Run it and wait until it listens."""
        self._process = subprocess.Popen(self._command, env=self._environment, cwd=ROOT)
        deadline = time.monotonic() + START_SECONDS
        while not self._listens():
            assert self._process.poll() is None, "the server ended at its start"
            assert time.monotonic() < deadline, "the server does not listen"
            time.sleep(0.01)

    def stop(self) -> int:
        """Ask it to end, as the supervisor does; its exit code."""
        assert self._process is not None
        self._process.terminate()
        return self._process.wait(10)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(10)

    def _listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0


@contextmanager
def _running(
    module: str, *options: str, port: int | None = None, started: bool = True, **environment: str
) -> Generator[ServerProcess]:
    # In the options, `{port}` is the server's port.
    port = port or free_port()
    command = [sys.executable, "-m", module, *(option.replace("{port}", str(port)) for option in options)]
    server = ServerProcess(port, command, environment)
    try:
        if started:
            server.start()
        yield server
    finally:
        server.kill()


def mcp_peer(
    folder: Path, *, legacy: bool = False, token: str | None = None, started: bool = True
) -> AbstractContextManager[ServerProcess]:
    """The peer of `tests.support.mcp_peer`; its notes are `notes.txt` in `folder`."""
    options = [*(["--legacy"] if legacy else []), *(["--token", token] if token else [])]
    return _running("tests.support.mcp_peer", "{port}", str(folder / "notes.txt"), *options, started=started)


def search_server(
    search_url: str, *, token: str = "", core: str = "", port: int | None = None, started: bool = True
) -> AbstractContextManager[ServerProcess]:
    """The product's own search server, asking a page of ours instead of DuckDuckGo; it accepts keys of `core`."""
    options = ["--port", "{port}", "--search-url", search_url, "--log-level", "WARNING"]
    environment = {"AGENT_MCP_TOKEN": token, "DIAL_ENDPOINT": core}
    return _running("mcp_servers.duckduckgo", *options, port=port, started=started, **environment)


def foreign_interpreter(kind: str) -> AbstractContextManager[ServerProcess]:
    """A server of `tests.support.foreign_interpreter`."""
    return _running("tests.support.foreign_interpreter", "{port}", kind)
