"""The whole product as a user starts it: `dial-agent up` in an empty home, on free ports."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.isolation import NO_OLLAMA
from tests.support.ports import free_port

ROOT = Path(__file__).resolve().parents[2]
UNUSED_PORT = str(free_port())


@dataclass(frozen=True, slots=True)
class Finished:
    """A command that has ended."""

    code: int
    out: str
    err: str

    def events(self) -> list[dict[str, Any]]:
        """The lines of `--json`."""
        return [json.loads(line) for line in self.out.splitlines()]

    def event(self, kind: str) -> dict[str, Any]:
        """The last line of that type."""
        return next(event for event in reversed(self.events()) if event["type"] == kind)


@dataclass
class RunningProduct:
    """`ready` is what `--ready-file` holds; `lines` what the product printed so far."""

    home: Path
    environ: dict[str, str]
    process: asyncio.subprocess.Process
    ready: dict[str, Any] = field(default_factory=dict[str, Any])
    lines: list[str] = field(default_factory=list[str])
    more: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def having(self, words: str, seconds: float = 20) -> str:
        """The first printed line with these words."""
        async with asyncio.timeout(seconds), self.more:
            while not (found := [line for line in self.lines if words in line]):
                await self.more.wait()
            return found[0]

    async def ask(self, question: str, *options: str) -> Finished:
        """`dial-agent ask` of this product."""
        return await dial_agent(self.home, "ask", question, *options, DIAL_ENDPOINT=self.ready["core"])

    async def stop(self, number: int = signal.SIGINT) -> int:
        """Send a signal and wait for the end; the exit code."""
        if self.process.returncode is None:
            self.process.send_signal(number)
        return await asyncio.wait_for(self.process.wait(), 15)

    async def read(self) -> None:
        """Collect the printed lines until the product ends."""
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            async with self.more:
                self.lines.append(line.decode().rstrip("\n"))
                self.more.notify_all()


def environment(home: Path, **environ: str) -> dict[str, str]:
    """Nothing of this machine but its programs."""
    base = {
        "HOME": str(home),
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(ROOT),
        "OLLAMA_LOCAL": NO_OLLAMA,
        "AGENT_PORT": UNUSED_PORT,
        "AGENT_CORE_PORT": UNUSED_PORT,
        "AGENT_SEARCH_PORT": "0",
        "AGENT_INTERPRETER__PORT": "0",
    }
    return {**base, **environ}


async def dial_agent(home: Path, *arguments: str, cwd: Path | str | None = None, **environ: str) -> Finished:
    """Run one command to its end, in the home or in another folder."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "task", *arguments,
        cwd=cwd or home, env=environment(home, **environ),
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        out, err = await asyncio.wait_for(process.communicate(), 300)
    finally:
        if process.returncode is None:
            process.kill()
    return Finished(process.returncode or 0, out.decode(), err.decode())


@asynccontextmanager
async def running_product(home: Path, **environ: str) -> AsyncGenerator[RunningProduct]:
    """The product once it is ready; it ends with the block."""
    ready_file = home / "ready.json"
    ready_file.unlink(missing_ok=True)
    variables = environment(home, **environ)
    options = ("up", "--port", "0", "--core-port", "0", "--ready-file", str(ready_file))
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "task", *options,
        cwd=home, env=variables, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    product = RunningProduct(home, variables, process)
    reading = asyncio.create_task(product.read())
    try:
        await product.having("Ready in", 30)
        product.ready = json.loads(ready_file.read_text())
        yield product
    finally:
        await product.stop()
        await asyncio.wait_for(reading, 20)
