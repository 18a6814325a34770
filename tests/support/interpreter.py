"""The real Python interpreter server as a process of its own, with real kernels in the sandbox."""

import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from task.tools.mcp.connection import conversation_meta
from task.tools.mcp.mcp_client import MCPClient
from task.tools.mcp.results import MCPResult
from tests.support.ports import free_port

ROOT = Path(__file__).parent.parent.parent
KERNEL_PYTHON = ROOT / ".venv-kernel" / "bin" / "python"
TOKEN = "token-of-the-interpreter-tests"
START_SECONDS = 60  # on a busy machine the start takes 20 times as long


@dataclass
class RunningInterpreter:
    """A server at `url` (its MCP address)."""

    port: int
    process: subprocess.Popen[bytes]

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        return f"{self.origin}/mcp"

    def client(self, seconds: float = 50) -> MCPClient:
        return MCPClient(self.url, token=TOKEN, timeout=seconds)


@dataclass
class Talk:
    """One conversation of one person with the server."""

    client: MCPClient
    conversation: str
    principal: str = "somebody"

    async def run(self, code: str, **meta: Any) -> dict[str, Any]:
        """The structured result of running the code."""
        return (await self.call("execute_code", code=code, **meta)).structured

    async def call(self, tool: str, *, meta: dict[str, Any] | None = None, **arguments: Any) -> MCPResult:
        named = {**conversation_meta(self.conversation, self.principal), **(meta or {})}
        return await self.client.call(tool, arguments, meta=named)


@contextmanager
def running_interpreter(
    folder: Path, *options: str, port: int | None = None, core: str = ""
) -> Generator[RunningInterpreter]:
    """A server that answers; ended with the block. `folder` keeps what must outlive it; keys of `core` are accepted."""
    number = port or free_port()
    server = RunningInterpreter(number, _started(folder, options, number, core))
    try:
        _wait_until_healthy(server)
        yield server
    finally:
        server.process.terminate()
        server.process.wait(15)


def _started(folder: Path, options: Sequence[str], port: int, core: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "mcp_servers.python_interpreter", "--port", str(port)]
    command += ["--data", str(folder), "--python", str(KERNEL_PYTHON), *options]
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "AGENT_MCP_TOKEN": TOKEN}
    environment |= {"DIAL_ENDPOINT": core} if core else {}
    return subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL)


def _wait_until_healthy(server: RunningInterpreter) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and server.process.poll() is None:
        try:
            with urllib.request.urlopen(f"{server.origin}/health", timeout=2):
                return
        except OSError:
            time.sleep(0.02)
    raise AssertionError("the interpreter server did not start")
