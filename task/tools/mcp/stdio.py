"""MCP servers that are programs on this machine: each runs in the sandbox launcher and is connected by its pipes."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Any, TextIO

from task.tools.mcp.results import Fault, MCPFailure, asked_to_stop
from task.utils.folders import delete

if TYPE_CHECKING:
    from mcp import Client

START_SECONDS, LAST_WORDS_SECONDS = 60.0, 2.0
ENDING_SECONDS = 10.0  # the SDK closes the input, then asks, then kills
_LAST_WORDS = 2000
_SHOWN = 300


@dataclass(frozen=True, slots=True)
class LocalProgram:
    """A server's command line, and what the launcher allows it.

    `launcher` is the command of the launcher, `policy` its policy, to which a scratch folder is added as home and for
    temporary files; `secrets` are left out of what is reported.
    """

    argv: tuple[str, ...]
    launcher: tuple[str, ...]
    policy: Mapping[str, Any]
    secrets: tuple[str, ...] = ()


Connect = Callable[[Any], AbstractAsyncContextManager["Client"]]  # with a transport of the SDK


@asynccontextmanager
async def connected(
    program: LocalProgram, server: str, connect: Connect, ended: Callable[[], None]
) -> AsyncGenerator[Client]:
    """A client of the program, which lives as long as the context; `ended` is called when it ends by itself.

    Raises:
        MCPFailure: it cannot be started, with its own last words.
    """
    folder = Path(mkdtemp(prefix="dial-agent-mcp-"))
    words, opened = _Words(ended), False
    try:
        reader, writing = os.pipe()
        await asyncio.get_running_loop().connect_read_pipe(lambda: words, os.fdopen(reader, "rb", 0))
        with os.fdopen(writing, "w") as writer:
            async with connect(_transport(program, folder, writer)) as client:
                opened = True
                yield client
    except BaseException as error:
        if opened or asked_to_stop():
            raise
        raise await _not_started(program, server, words) from error
    finally:
        words.close()
        with suppress(OSError):
            delete(folder)


@asynccontextmanager
async def _transport(program: LocalProgram, folder: Path, writer: TextIO) -> AsyncGenerator[Any]:
    from mcp import StdioServerParameters
    from mcp.client.stdio import stdio_client

    scratch, file = folder / "scratch", folder / "policy.json"
    scratch.mkdir()
    policy: dict[str, Any] = {"workdir": str(scratch), **program.policy}
    policy["read_write"] = [*policy.get("read_write", ()), str(scratch)]
    policy["environment"] = {"HOME": str(scratch), "TMPDIR": str(scratch), **policy.get("environment", {})}
    file.write_text(json.dumps(policy))  # not among the arguments, which every user of the machine may read
    command, *arguments = program.launcher
    arguments += ["--policy", str(file), "--", *program.argv]
    parameters = StdioServerParameters(command=command, args=arguments, env={"LC_ALL": "C.UTF-8"})
    async with stdio_client(parameters, writer) as streams:
        writer.close()  # only the program has it now, so that its end is noticed
        yield streams


class _Words(asyncio.Protocol):
    """The end of what a program writes to its standard error."""

    def __init__(self, ended: Callable[[], None]) -> None:
        self._ended = ended
        self._tail = b""
        self.complete = asyncio.Event()
        self.transport: asyncio.BaseTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self._tail = (self._tail + data)[-_LAST_WORDS:]

    def connection_lost(self, exc: Exception | None) -> None:
        self.complete.set()
        self._ended()

    def close(self) -> None:
        if self.transport is not None:
            self.transport.close()

    def last_line(self) -> str:
        lines = self._tail.decode(errors="replace").split("\n")
        return next((" ".join(line.split()) for line in reversed(lines) if line.strip()), "")


async def _not_started(program: LocalProgram, server: str, words: _Words) -> MCPFailure:
    await asyncio.wait({asyncio.ensure_future(words.complete.wait())}, timeout=LAST_WORDS_SECONDS)
    line = words.last_line() or "it ended without a word"
    for secret in program.secrets:
        line = line.replace(secret, "***")
    return MCPFailure(
        Fault.UNAVAILABLE,
        f"The server {server} could not be started ({line[:_SHOWN]}). An operator has to check its command and what "
        "it may read, write and reach; tell the user, and answer without it.",
    )
