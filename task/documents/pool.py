"""Reader processes, started when files come and kept for a while: bytes in, blocks out."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from task.documents.extract import extract, format_of
from task.documents.model import Block, Extraction, NotText, Unreadable, UnsupportedFile
from task.documents.worker import BLOCK, FAILURE, HEADER, REQUEST, encoded
from task.errors import ToolError, new_reference
from task.telemetry.operations import queued

logger = logging.getLogger(__name__)

PROCESSES = 2
_TINY = 32 * 1024
_ERRORS = {kind.__name__: kind for kind in (ToolError, NotText, Unreadable, UnsupportedFile)}
Frame = tuple[bytes, bytes]  # its kind and its payload
_ROOT = Path(__file__).parents[2]
# Nothing of the server's own environment: a reader needs no key.
_ENVIRONMENT = {
    "LC_ALL": "C.UTF-8",
    "OMP_NUM_THREADS": "1",
    "OMP_THREAD_LIMIT": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "PATH": "/usr/local/bin:/usr/bin:/bin",
}
_SECONDS_TO_DIE = 5.0
_SIGNALLED = 128  # under bubblewrap the status is this number and the signal's


@dataclass(frozen=True, slots=True)
class ReaderLimits:
    """Limits of reading one file; memory is address space, which is more than what is really used.

    After `documents` files a process is replaced; an idle one ends after `idle_seconds`.
    """

    seconds: float = 120.0
    memory_bytes: int = 2**30
    output_bytes: int = 64 * 2**20
    documents: int = 50
    idle_seconds: float = 60.0


class ReaderPool:
    """Reads documents in at most `processes` processes at a time; further files wait for one.

    A process that takes too much time or memory is killed and the caller gets an error; the next file gets a new
    process. Cancelling a reading kills its process too. Small plain text is read in this process.

    Raises:
        ToolError: by reading; the text says what is wrong with the file.
    """

    def __init__(self, limits: ReaderLimits | None = None, *, processes: int = PROCESSES) -> None:
        self._limits = limits or ReaderLimits()
        self._slots = asyncio.Semaphore(processes)
        self._idle: dict[_ReaderProcess, asyncio.TimerHandle] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self._is_closed = False

    async def extraction(self, name: str, content: bytes, content_type: str | None = None) -> Extraction:
        """The document's blocks and notes."""
        if len(content) <= _TINY and format_of(name, content, content_type).is_plain_text:
            with suppress(UnicodeDecodeError):  # detecting another encoding takes long
                content.decode()
                return extract(name, content, content_type)
        request = json.dumps([name, content_type]).encode() + b"\n" + content
        with queued("documents"):
            async with self._slots:
                *blocks, (kind, payload) = await self._answer(name, request)
        if kind == FAILURE:
            raise _failure(name, *json.loads(payload))
        return Extraction(tuple(_block_of(payload) for _, payload in blocks), tuple(json.loads(payload)))

    async def close(self) -> None:
        """End the idle processes now, and each of the others when it is done."""
        self._is_closed = True
        for process in list(self._idle):
            self._retire(process)
        await asyncio.gather(*self._ending)

    async def _answer(self, name: str, request: bytes) -> list[Frame]:
        if self._idle:
            process, timer = self._idle.popitem()
            timer.cancel()
            with suppress(_ReaderDied):  # it may have died before it received the file
                return await self._asked(process, name, request)
        try:
            return await self._asked(await _start(self._limits), name, request)
        except _ReaderDied as error:
            raise _died(name, error.status) from error

    async def _asked(self, process: _ReaderProcess, name: str, request: bytes) -> list[Frame]:
        try:
            async with asyncio.timeout(self._limits.seconds):
                frames = await process.ask(request)
        except TimeoutError as error:
            raise ToolError(_out_of(name, f"time, {self._limits.seconds:g} seconds")) from error
        else:
            if not self._is_closed and process.documents < self._limits.documents:
                loop = asyncio.get_running_loop()
                self._idle[process] = loop.call_later(self._limits.idle_seconds, self._retire, process)
            return frames
        finally:
            if process not in self._idle:
                await process.end()

    def _retire(self, process: _ReaderProcess) -> None:
        self._idle.pop(process).cancel()
        ending = asyncio.create_task(process.end())
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)


class _ReaderDied(Exception):
    """The process ended before it had answered; `status` is its exit status, minus the signal that ended it."""

    def __init__(self, status: int | None) -> None:
        super().__init__(f"the reader process ended with status {status}")
        self.status = status


@dataclass(slots=True, eq=False)
class _ReaderProcess:
    """A running process; `documents` counts the files it was given."""

    _process: Process
    documents: int = 0

    async def ask(self, request: bytes) -> list[Frame]:
        """The frames of the answer.

        Raises:
            _ReaderDied: the process ended first.
        """
        self.documents += 1
        frames: list[Frame] = []
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            for piece in encoded(REQUEST, request):
                self._process.stdin.write(piece)
                await self._process.stdin.drain()
            while not frames or frames[-1][0] == BLOCK:
                kind, length = HEADER.unpack(await self._process.stdout.readexactly(HEADER.size))
                frames.append((kind, await self._process.stdout.readexactly(length)))
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            await self.end()
            raise _ReaderDied(self._process.returncode) from error
        return frames

    async def end(self) -> None:
        """Kill the process and all it has started; afterwards it is gone."""
        if self._process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
        assert self._process.stdin is not None
        async with asyncio.timeout(_SECONDS_TO_DIE):
            await self._process.communicate()
            self._process.stdin.close()
            with suppress(ConnectionError):  # it died before it had read all
                await self._process.stdin.wait_closed()


async def _start(limits: ReaderLimits) -> _ReaderProcess:
    # In a group of its own: a terminal's interrupt does not reach it.
    process = await asyncio.create_subprocess_exec(
        *_command(limits), stdin=PIPE, stdout=PIPE, stderr=DEVNULL, cwd="/", env=_ENVIRONMENT, start_new_session=True
    )
    return _ReaderProcess(process)


def _command(limits: ReaderLimits) -> list[str]:
    # In the sandbox it may read the installation and nothing else; without one it has its limits only.
    arguments = map(str, (limits.memory_bytes, limits.seconds, limits.output_bytes))
    reader = [sys.executable, "-P", "-m", "task.documents.worker", *arguments]
    if sys.platform != "linux":
        return reader
    policy = {
        "workdir": "/",
        "read_only": [sys.prefix, sys.base_prefix, str(_ROOT / "task")],
        "environment": _ENVIRONMENT,
        "limits": {"memory": limits.memory_bytes, "file_bytes": None},
        "allow_unsafe": True,
    }
    launcher = str(_ROOT / "mcp_servers" / "sandbox" / "__main__.py")
    return [sys.executable, "-I", "-S", launcher, "--policy", json.dumps(policy), "--", *reader]


def _block_of(payload: bytes) -> Block:
    head, _, text = payload.decode().partition("\n")
    heading, page = json.loads(head)
    return Block(text, heading, page)


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


def _died(name: str, status: int | None) -> ToolError:
    if status is not None and status > _SIGNALLED:
        status = _SIGNALLED - status
    if status == -signal.SIGXCPU:
        return ToolError(_out_of(name, "time"))
    if status in (1, -signal.SIGKILL):  # Python had no memory left to report it, or the system killed it for lack of it
        return ToolError(_out_of(name, "memory"))
    logger.warning("the reader of a document ended with status %s", status)
    return ToolError(
        f"The file {name!r} could not be read: the reader crashed on it, so it is damaged or needs more memory than "
        "there is. Tell the user, or ask for a smaller or newer copy."
    )


def _out_of(name: str, what: str) -> str:
    return f"The file {name!r} could not be read: the reader ran out of {what}. Ask the user for a smaller file."
