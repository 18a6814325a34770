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
    words, tail, opened = asyncio.StreamReader(), b"", False

    async def listen() -> None:
        nonlocal tail
        while piece := await words.read(2**16):
            tail = (tail + piece)[-_LAST_WORDS:]
        ended()

    reader, writing = os.pipe()
    protocol, errors = asyncio.StreamReaderProtocol(words), os.fdopen(reader, "rb", 0)
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, errors)
    listening = asyncio.create_task(listen())
    try:
        with os.fdopen(writing, "w") as writer:
            async with connect(_transport(program, folder, writer)) as client:
                opened = True
                yield client
    except BaseException as error:
        if opened or asked_to_stop():
            raise
        await asyncio.wait({listening}, timeout=LAST_WORDS_SECONDS)
        lines = (" ".join(line.split()) for line in reversed(tail.decode(errors="replace").split("\n")))
        last = next(filter(None, lines), "it ended without a word")
        for secret in program.secrets:
            last = last.replace(secret, "***")
        reason = (
            f"The server {server} could not be started ({last[:_SHOWN]}). An operator has to check its command and "
            "what it may read, write and reach; tell the user, and answer without it."
        )
        raise MCPFailure(Fault.UNAVAILABLE, reason) from error
    finally:
        listening.cancel()
        transport.close()
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
