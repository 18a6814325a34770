"""Reader processes, started when files come and kept for a while: bytes in, blocks out."""

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
from task.documents.model import Extraction, NotText, Unreadable, UnsupportedFile, unpacked
from task.documents.worker import FAILURE, LENGTH
from task.errors import ToolError, new_reference
from task.telemetry.operations import queued

logger = logging.getLogger(__name__)

PROCESSES = 2
_TINY = 32 * 1024
_ERRORS = {kind.__name__: kind for kind in (ToolError, NotText, Unreadable, UnsupportedFile)}
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
_DIED = (asyncio.IncompleteReadError, ConnectionError)


@dataclass(frozen=True, slots=True)
class ReaderLimits:
    """Limits of reading one file; memory is address space, which is more than what is really used.

    An idle process ends after `idle_seconds`.
    """

    seconds: float = 120.0
    memory_bytes: int = 2**30
    output_bytes: int = 64 * 2**20
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
        self._idle: dict[Process, asyncio.TimerHandle] = {}
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
                answer = await self._answer(name, request)
        if answer.startswith(FAILURE):
            raise _failure(name, *json.loads(answer.removeprefix(FAILURE)))
        return await asyncio.to_thread(unpacked, answer)

    async def close(self) -> None:
        """End the idle processes now, and each of the others when it is done."""
        self._is_closed = True
        for process in list(self._idle):
            self._retire(process)
        await asyncio.gather(*self._ending)

    async def _answer(self, name: str, request: bytes) -> bytes:
        if self._idle:
            process, timer = self._idle.popitem()
            timer.cancel()
            with suppress(*_DIED):  # while it was idle; a new one reads the file
                return await self._asked(process, name, request)
        # In a group of its own: a terminal's interrupt does not reach it.
        process = await asyncio.create_subprocess_exec(
            *_command(self._limits),
            stdin=PIPE,
            stdout=PIPE,
            stderr=DEVNULL,
            cwd="/",
            env=_ENVIRONMENT,
            start_new_session=True,
        )
        try:
            return await self._asked(process, name, request)
        except _DIED as error:
            logger.warning("the reader of a document ended with status %s", process.returncode)
            raise ToolError(
                f"The file {name!r} could not be read: the reader crashed on it, so it is damaged or needs more memory "
                "than there is. Tell the user, or ask for a smaller or newer copy."
            ) from error

    async def _asked(self, process: Process, name: str, request: bytes) -> bytes:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            async with asyncio.timeout(self._limits.seconds):
                process.stdin.writelines((LENGTH.pack(len(request)), request))
                await process.stdin.drain()
                (length,) = LENGTH.unpack(await process.stdout.readexactly(LENGTH.size))
                answer = await process.stdout.readexactly(length)
        except TimeoutError as error:
            raise ToolError(_out_of(name, f"time, {self._limits.seconds:g} seconds")) from error
        else:
            if not self._is_closed:
                loop = asyncio.get_running_loop()
                self._idle[process] = loop.call_later(self._limits.idle_seconds, self._retire, process)
            return answer
        finally:
            if process not in self._idle:
                await _end(process)

    def _retire(self, process: Process) -> None:
        self._idle.pop(process).cancel()
        ending = asyncio.create_task(_end(process))
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)


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
