"""Start a program in the sandbox launcher, collect what it prints, and end all of it in time."""

import asyncio
import atexit
import json
import os
import signal
import socket
import subprocess
import sys
from asyncio.subprocess import DEVNULL
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from threading import Lock
from typing import Any

from task.closing import run_to_completion

PROBE_SECONDS, ENDING_SECONDS = 60.0, 20.0
_LAUNCHER = str(Path(__file__).parents[3] / "mcp_servers" / "sandbox" / "__main__.py")
TIMEOUT_CODE, REFUSED, NOT_EXECUTABLE = 124, 125, 126
_PIECE, _MOST_BYTES = 65536, 200_000
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


@dataclass(frozen=True)
class ShellResult:
    """What a command left. Source: planner and executor reference, ShellResult."""

    ok: bool
    stdout: str
    stderr: str
    code: int

    @property
    def text(self) -> str:
        """The result as the model reads it."""
        state = f"OK (code {self.code})" if self.ok else f"ERROR (code {self.code})"
        return f"{state}\nSTDOUT:\n{self.stdout}\nSTDERR:\n{self.stderr}"


@cache
def sandbox_here() -> Sandbox:
    """The best sandbox of this machine; the first call takes a moment."""
    command = launcher_command("--probe")
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


async def launched(policy: Mapping[str, Any], argv: Sequence[str], seconds: float, output_bytes: int) -> ShellResult:
    """Run a program under the launcher's policy for at most `seconds`; nothing of it is left afterwards.

    Of each output the first and last `output_bytes / 2` are kept.
    """
    mark = 2**61 + int.from_bytes(os.urandom(7))
    try:
        message = "\0".join([json.dumps({**policy, "mark": mark}), *argv]).encode(errors="surrogateescape")
        if message.count(b"\0") != len(argv) or len(message) > _MOST_BYTES:
            raise ValueError
    except ValueError:
        fault = f"a command has no NUL characters, no halves of characters, and at most {_MOST_BYTES:,} bytes"
        return ShellResult(False, "", fault, NOT_EXECUTABLE)
    starting = asyncio.ensure_future(asyncio.to_thread(_LAUNCHER_PROCESS.started, message))
    try:
        run = await asyncio.shield(starting)
    except asyncio.CancelledError:
        (await starting).abandon()
        raise
    outputs = [_PipeReader(pipe, output_bytes) for pipe in run.pipes]
    ended = asyncio.get_running_loop().sock_recv(run.control, _PIECE)
    reading = asyncio.gather(ended, *(output.read() for output in outputs))
    try:
        done, _ = await asyncio.wait({reading}, timeout=seconds)
    finally:
        if not reading.done():
            await run_to_completion(_end(run.pid, mark, reading))
        run.control.close()
    stdout, stderr = (output.text() for output in outputs)
    if not done:
        return ShellResult(False, stdout, f"{stderr}\ntimeout".lstrip(), TIMEOUT_CODE)
    # A launcher that was itself ended sends no exit code.
    code = int(reading.result()[0] or REFUSED)
    return ShellResult(code == 0, stdout, stderr, code)


async def _end(pid: int, mark: int, reading: asyncio.Future[Any]) -> None:
    # The launcher ends the run and then itself; if it cannot, everything that carries the mark is ended from outside.
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
    await asyncio.wait({reading}, timeout=ENDING_SECONDS)
    if not reading.done():
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        killing = await asyncio.create_subprocess_exec(
            *launcher_command("--kill", str(mark)), stdout=DEVNULL, stderr=DEVNULL
        )
        await killing.wait()
        await asyncio.wait({reading}, timeout=ENDING_SECONDS)
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)


@dataclass(frozen=True, slots=True)
class _LaunchedRun:
    """A run: the socket that gets its exit code, its output and errors, and its launcher's process once it is there."""

    control: socket.socket
    pipes: tuple[int, int]
    pid: int = 0

    def abandon(self) -> None:
        """Leave the run, which its launcher then ends."""
        self.control.close()
        for pipe in self.pipes:
            os.close(pipe)


class _LauncherProcess:
    """The launcher's process that starts all runs of this one; it ends when this one ends."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._requests: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def started(self, message: bytes) -> _LaunchedRun:
        """A new run; where the launcher's process has ended, there is a new one first.

        Raises:
            OSError: it cannot be started.
        """
        with self._lock:
            try:
                return self._ask(self._requests or self._opened(), message)
            except (BrokenPipeError, ConnectionResetError):
                return self._ask(self._opened(), message)

    def _ask(self, requests: socket.socket, message: bytes) -> _LaunchedRun:
        control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        (output, to_output), (errors, to_errors) = os.pipe(), os.pipe()
        run = _LaunchedRun(control, (output, errors))
        try:
            with theirs, open(to_output, "wb"), open(to_errors, "wb"):
                socket.send_fds(requests, [message], [to_output, to_errors, theirs.fileno()])
            pid = control.recv(_PIECE)
            if not pid:
                raise ConnectionResetError("the launcher ended before the run began")
        except OSError:
            run.abandon()
            raise
        control.setblocking(False)
        return replace(run, pid=int(pid))

    def close(self) -> None:
        """End the process; a run would end with it."""
        if self._requests is not None and self._process is not None:
            self._requests.close()
            self._process.wait(ENDING_SECONDS)

    def _opened(self) -> socket.socket:
        self.close()
        self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._requests.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * _MOST_BYTES)
        with theirs:
            self._process = subprocess.Popen(  # noqa: S603
                launcher_command("--serve"),
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=_ENVIRONMENT,
                cwd="/",
                start_new_session=True,
            )
        return self._requests


_LAUNCHER_PROCESS = _LauncherProcess()
atexit.register(_LAUNCHER_PROCESS.close)


def launcher_command(*arguments: str) -> list[str]:
    """The command line of the launcher."""
    return [sys.executable, "-I", "-S", _LAUNCHER, *arguments]


class _PipeReader:
    """The head and the tail of what comes out of a pipe."""

    def __init__(self, pipe: int, most: int) -> None:
        self._pipe = pipe
        self._half = most // 2
        self._kept = bytearray()
        self._left_out = 0

    async def read(self) -> None:
        stream = asyncio.StreamReader()
        protocol = asyncio.StreamReaderProtocol(stream)
        file = os.fdopen(self._pipe, "rb", buffering=0)  # closed by its transport
        await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, file)
        while piece := await stream.read(_PIECE):
            self._kept += piece
            if (more := len(self._kept) - 2 * self._half) > 0:
                del self._kept[self._half : self._half + more]
                self._left_out += more

    def text(self) -> str:
        middle = f"\n[{self._left_out:,} bytes left out]\n".encode() if self._left_out else b""
        return (self._kept[: self._half] + middle + self._kept[self._half :]).decode(errors="replace")
