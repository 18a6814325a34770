"""One reader process as the server sees it: started, asked, killed."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from task.documents.workers.frames import HEADER, Kind, frame, parsed
from task.documents.workers.limits import ReaderLimits

_MODULE = "task.documents.workers"
_ROOT = Path(__file__).parents[3]
# Nothing of the server's own environment: the reader needs no key.
_ENVIRONMENT = {
    "LC_ALL": "C.UTF-8",
    "OMP_NUM_THREADS": "1",
    "OMP_THREAD_LIMIT": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "PATH": "/usr/local/bin:/usr/bin:/bin",
}
_SECONDS_TO_DIE = 5.0

Frame = tuple[Kind, bytes]


class ReaderDied(Exception):
    """The process ended before it had answered.

    `status` is its exit status, minus the signal that ended it; `started` whether it had received the request.
    """

    def __init__(self, status: int | None, *, started: bool) -> None:
        super().__init__(f"the reader process ended with status {status}")
        self.status = status
        self.started = started


@dataclass(slots=True, eq=False)
class ReaderProcess:
    """A running process; `documents` counts the files it was given."""

    _process: Process
    documents: int = 0

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        return self._process.returncode is None and not _has_ended(self.pid)

    async def ask(self, want: str, name: str, content: bytes, content_type: str | None) -> list[Frame]:
        """The frames of the answer: the first is STARTED, the last DONE or FAILURE.

        Raises:
            ReaderDied: the process ended first.
        """
        request = json.dumps({"want": want, "name": name, "content_type": content_type}).encode()
        self.documents += 1
        frames: list[Frame] = []
        try:
            await self._send(Kind.REQUEST, request)
            await self._send(Kind.CONTENT, content)
            while not frames or frames[-1][0] not in (Kind.DONE, Kind.FAILURE):
                frames.append(await self._next())
        except (asyncio.IncompleteReadError, ConnectionError, ValueError) as error:
            await self.end()
            raise ReaderDied(self._process.returncode, started=bool(frames)) from error
        return frames

    async def end(self) -> None:
        """Kill the process and all it has started; afterwards it is gone."""
        if self._process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
        async with asyncio.timeout(_SECONDS_TO_DIE):
            await self._process.communicate()

    async def _send(self, kind: Kind, payload: bytes) -> None:
        assert self._process.stdin is not None
        for piece in frame(kind, payload):
            self._process.stdin.write(piece)
            await self._process.stdin.drain()

    async def _next(self) -> Frame:
        assert self._process.stdout is not None
        kind, length = parsed(await self._process.stdout.readexactly(HEADER.size))
        return kind, await self._process.stdout.readexactly(length)


def _has_ended(pid: int) -> bool:
    # The event loop learns of it only when it comes around to it, which may be after the next request was sent.
    if not hasattr(os, "waitid"):
        return False
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return True


async def started(limits: ReaderLimits) -> ReaderProcess:
    """A new process under these limits, in a group of its own: a terminal's interrupt does not reach it."""
    arguments = (os.getpid(), limits.memory_bytes, limits.seconds, limits.output_bytes)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", _MODULE, *map(str, arguments),
        stdin=PIPE, stdout=PIPE, stderr=DEVNULL, cwd=_ROOT, env=_ENVIRONMENT, start_new_session=True,
    )  # fmt: skip
    return ReaderProcess(process)
