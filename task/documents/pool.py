"""Reader processes, started when files come and kept for a while: bytes in, blocks out."""

import asyncio
import json
import logging
import os
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from task.documents.extract import extract, format_of
from task.documents.model import Extraction, NotText, Unreadable, UnsupportedFile, unpacked
from task.documents.worker import FAILURE, LENGTH
from task.errors import ToolError, new_reference
from task.shares import Shares
from task.telemetry.operations import queued

logger = logging.getLogger(__name__)

PROCESSES = 3
NICE = 5  # streaming answers take precedence over documents being read
_TINY, _LARGE = 32 * 1024, 4 * 2**20
_ERRORS = {kind.__name__: kind for kind in (ToolError, NotText, Unreadable, UnsupportedFile)}
_ROOT = Path(__file__).parents[2]
# Nothing of the server's own environment: a reader needs no key.
_ENVIRONMENT = {
    "LC_ALL": "C.UTF-8",
    "MALLOC_TOP_PAD_": str(64 * 2**20),  # a first document was a third slower, by 22,000 faults of small pages
    "OMP_NUM_THREADS": "1",
    "OMP_THREAD_LIMIT": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "PATH": "/usr/local/bin:/usr/bin:/bin",
}
_SECONDS_TO_DIE = 5.0
_DIED = (asyncio.IncompleteReadError, ConnectionError)


@dataclass(frozen=True, slots=True)
class ReaderLimits:
    """Limits of reading one file; memory is address space, which is more than what is really used.

    A large file may take `seconds`, a small one less (`seconds_for`). A process that has read a file ends after
    `idle_seconds` without another one.
    """

    seconds: float = 120.0
    memory_bytes: int = 2**30
    output_bytes: int = 64 * 2**20
    idle_seconds: float = 60.0

    def seconds_for(self, size: int) -> float:
        """How long a file of so many bytes may take: an eighth of `seconds`, and all of them from 3.5 MiB on."""
        return self.seconds * min(1.0, 1 / 8 + size / _LARGE)


class ReaderPool:
    """Reads documents in at most `processes` processes at a time; an owner has a share of them, and further files wait.

    A process reads the files of one owner only; one that has read nothing yet is started ahead, for the next owner. A
    process that takes too much time or memory is killed and the caller gets an error; the next file gets another
    process. Cancelling a reading kills its process too. Small plain text is read in this process.

    Raises:
        ToolError: by reading; the text says what is wrong with the file.
    """

    def __init__(self, limits: ReaderLimits | None = None, *, processes: int = PROCESSES) -> None:
        self._limits = limits or ReaderLimits()
        self._processes = processes
        self._places = Shares(processes)
        self._fresh: list[Process] = []
        self._idle: dict[Process, tuple[str, asyncio.TimerHandle]] = {}  # by owner, the one that waits longest first
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closed = False

    async def extraction(
        self, name: str, content: bytes, content_type: str | None = None, *, owner: str = ""
    ) -> Extraction:
        """The document's blocks and notes; `owner` is whose document it is."""
        if len(content) <= _TINY and format_of(name, content, content_type).is_plain_text:
            with suppress(UnicodeDecodeError):  # detecting another encoding takes long
                content.decode()
                return extract(name, content, content_type)
        seconds = self._limits.seconds_for(len(content))
        request = json.dumps([name, content_type, seconds]).encode() + b"\n" + content
        with queued("documents"):
            async with self._places.place(owner):
                try:
                    answer = await self._answer(name, request, seconds, owner)
                finally:
                    # Not earlier: its start would take a processor from this reading.
                    self._fresh = [process for process in self._fresh if process.returncode is None]
                    if not self._fresh and not self._is_closed:
                        self._in_background(self._start_ahead())
        if answer.startswith(FAILURE):
            raise _failure(name, *json.loads(answer.removeprefix(FAILURE)))
        return await asyncio.to_thread(unpacked, answer)

    async def close(self) -> None:
        """End the processes that wait now, and each of the others when it is done."""
        self._is_closed = True
        while self._tasks:
            await asyncio.gather(*self._tasks)
        for process in list(self._idle):
            self._retire(process)
        await asyncio.gather(*self._tasks, *map(_end, self._fresh))

    async def _answer(self, name: str, request: bytes, seconds: float, owner: str) -> bytes:
        waiting = next((process for process, (whose, _) in self._idle.items() if whose == owner), None)
        if waiting is not None:
            self._idle.pop(waiting)[1].cancel()
        elif self._fresh:
            waiting = self._fresh.pop()
        if waiting is not None:
            with suppress(*_DIED):  # while it waited; a new one reads the file
                return await self._asked(waiting, name, request, seconds, owner)
        process = await self._started()
        try:
            return await self._asked(process, name, request, seconds, owner)
        except _DIED as error:
            logger.warning("the reader of a document ended with status %s", process.returncode)
            raise ToolError(
                f"The file {name!r} could not be read: the reader crashed on it, so it is damaged or needs more memory "
                "than there is. Tell the user, or ask for a smaller or newer copy."
            ) from error

    async def _asked(self, process: Process, name: str, request: bytes, seconds: float, owner: str) -> bytes:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            async with asyncio.timeout(seconds):
                process.stdin.writelines((LENGTH.pack(len(request)), request))
                await process.stdin.drain()
                (length,) = LENGTH.unpack(await process.stdout.readexactly(LENGTH.size))
                answer = await process.stdout.readexactly(length)
        except TimeoutError as error:
            raise ToolError(_out_of(name, f"time, {seconds:.0f} seconds")) from error
        else:
            if not self._is_closed:
                timer = asyncio.get_running_loop().call_later(self._limits.idle_seconds, self._retire, process)
                self._idle[process] = owner, timer
                if len(self._idle) > self._processes:
                    self._retire(next(iter(self._idle)))
            return answer
        finally:
            if process not in self._idle:
                await _end(process)

    async def _started(self) -> Process:
        # In a group of its own: a terminal's interrupt does not reach it.
        return await asyncio.create_subprocess_exec(
            *_command(self._limits),
            stdin=PIPE,
            stdout=PIPE,
            stderr=DEVNULL,
            cwd="/",
            env=_ENVIRONMENT,
            start_new_session=True,
        )

    async def _start_ahead(self) -> None:
        with suppress(OSError):  # the next file reports it
            process = await self._started()
            self._fresh.append(process)

    def _retire(self, process: Process) -> None:
        self._idle.pop(process)[1].cancel()
        self._in_background(_end(process))

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def _end(process: Process) -> None:
    # With all that it has started; afterwards it is gone.
    if process.returncode is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    assert process.stdin is not None
    async with asyncio.timeout(_SECONDS_TO_DIE):
        await process.communicate()
        process.stdin.close()
        with suppress(ConnectionError):  # it died before it had read all
            await process.stdin.wait_closed()


def _command(limits: ReaderLimits) -> list[str]:
    # In the sandbox it may read the installation and nothing else; without one it has its limits only.
    arguments = map(str, (limits.memory_bytes, limits.output_bytes))
    reader = [sys.executable, "-P", "-m", "task.documents.worker", *arguments]
    if sys.platform != "linux":
        return reader
    policy = {
        "workdir": "/",
        "read_only": [sys.prefix, sys.base_prefix, str(_ROOT / "task")],
        "environment": _ENVIRONMENT,
        "limits": {"memory": limits.memory_bytes, "file_bytes": None, "nice": NICE},
        "allow_unsafe": True,
    }
    launcher = str(_ROOT / "mcp_servers" / "sandbox" / "__main__.py")
    return [sys.executable, "-I", "-S", launcher, "--policy", json.dumps(policy), "--", *reader]


def _failure(name: str, fault: str, text: str) -> ToolError:
    if fault == MemoryError.__name__:
        return ToolError(_out_of(name, "memory"))
    if fault in _ERRORS:
        return _ERRORS[fault](text)
    reference = new_reference()
    logger.error("the reader of a document failed (reference %s): %s", reference, text)
    return ToolError(
        f"The file {name!r} could not be read: its reader failed unexpectedly (reference {reference}). Tell the user."
    )


def _out_of(name: str, what: str) -> str:
    return f"The file {name!r} could not be read: the reader ran out of {what}. Ask the user for a smaller file."
