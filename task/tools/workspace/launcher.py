"""Start a program in the sandbox launcher, collect what it prints, and end all of it in time."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from task.blocking import run_to_completion

PROBE_SECONDS, ENDING_SECONDS = 60.0, 20.0
_LAUNCHER = str(Path(__file__).parents[3] / "mcp_servers" / "sandbox" / "__main__.py")
_PIECE = 65536
_ENVIRONMENT = {"LC_ALL": "C.UTF-8", "PATH": os.defpath}  # the launcher's; the program gets the policy's


@dataclass(frozen=True, slots=True)
class Sandbox:
    """The sandbox of this machine: the tier's name, or why there is none."""

    tier: str
    missing: str | None = None

    @property
    def notes(self) -> str:
        """What programs cannot do in it although they may expect to, for the model."""
        if self.tier != "landlock":
            return ""
        return " Changes of mode, owner and times of files are ignored, and there is no /dev/shm and no terminal."


@dataclass(frozen=True, slots=True)
class Ran:
    """How a program ended; `code` is None if its time was up."""

    code: int | None
    stdout: str
    stderr: str


@cache
def sandbox_here() -> Sandbox:
    """The best sandbox of this machine; the first call takes a moment."""
    command = _launcher("--probe")
    found: dict[str, Any]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PROBE_SECONDS, check=False)  # noqa: S603
        found = json.loads(done.stdout) if done.returncode == 0 else {"name": "none", "works": {"": done.stderr}}
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        found = {"name": "none", "works": {"": type(error).__name__}}
    if found["name"] != "none":
        return Sandbox(found["name"])
    reasons = "; ".join(f"{tier}: {why}".strip(": \n") for tier, why in found["works"].items() if why)
    return Sandbox("none", f"no sandbox works on this machine ({reasons})")


async def launched(policy: Mapping[str, Any], argv: Sequence[str], seconds: float, output_bytes: int) -> Ran:
    """Run a program under the launcher's policy for at most `seconds`; nothing of it is left afterwards.

    Of each output the first and last `output_bytes / 2` are kept.
    """
    mark = 2**61 + int.from_bytes(os.urandom(7))
    command = _launcher("--policy", json.dumps({**policy, "mark": mark}), "--", *argv)
    process = await asyncio.create_subprocess_exec(
        *command, stdin=DEVNULL, stdout=PIPE, stderr=PIPE, env=_ENVIRONMENT, start_new_session=True
    )
    assert process.stdout is not None
    assert process.stderr is not None
    outputs = [_Output(process.stdout, output_bytes), _Output(process.stderr, output_bytes)]
    reading = asyncio.gather(*(output.read() for output in outputs), process.wait())
    try:
        done, _ = await asyncio.wait({reading}, timeout=seconds)
    finally:
        if not reading.done():
            await run_to_completion(_end(process, mark, reading))
    return Ran(process.returncode if done else None, *(output.text() for output in outputs))


async def _end(process: Process, mark: int, reading: asyncio.Future[Any]) -> None:
    # The launcher ends the run and then itself; if it cannot, everything that carries the mark is ended from outside.
    with suppress(ProcessLookupError):
        process.terminate()
    await asyncio.wait({reading}, timeout=ENDING_SECONDS)
    if not reading.done():
        with suppress(ProcessLookupError):
            process.kill()
        killing = await asyncio.create_subprocess_exec(*_launcher("--kill", str(mark)), stdout=DEVNULL, stderr=DEVNULL)
        await killing.wait()
        await asyncio.wait({reading}, timeout=ENDING_SECONDS)
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)


def _launcher(*arguments: str) -> list[str]:
    return [sys.executable, "-I", "-S", _LAUNCHER, *arguments]


class _Output:
    """The head and the tail of a stream."""

    def __init__(self, stream: asyncio.StreamReader, most: int) -> None:
        self._stream = stream
        self._half = most // 2
        self._head = bytearray()
        self._tail = bytearray()
        self._length = 0

    async def read(self) -> None:
        while piece := await self._stream.read(_PIECE):
            self._length += len(piece)
            room = self._half - len(self._head)
            self._head += piece[:room] if room > 0 else b""
            self._tail += piece[max(room, 0) :]
            if len(self._tail) > 2 * max(self._half, _PIECE):
                del self._tail[: -self._half]

    def text(self) -> str:
        tail = bytes(self._tail[-self._half :])
        left_out = self._length - len(self._head) - len(tail)
        middle = f"\n[{left_out:,} bytes left out]\n".encode() if left_out else b""
        return (bytes(self._head) + middle + tail).decode(errors="replace")
