"""A few reader processes, started when files come and kept for a while: bytes in, pages or blocks out."""

from __future__ import annotations

import asyncio
import json
import logging
import signal

from task.documents.extract import extract, format_of
from task.documents.model import Block, Extraction, NotText, Unreadable, UnsupportedFile
from task.documents.paging import pages_of
from task.documents.workers.frames import Kind
from task.documents.workers.limits import ReaderLimits
from task.documents.workers.process import Frame, ReaderDied, ReaderProcess, started
from task.errors import ToolError, new_reference

logger = logging.getLogger(__name__)

PROCESSES = 2
_TINY = 32 * 1024
_ERRORS = {kind.__name__: kind for kind in (ToolError, NotText, Unreadable, UnsupportedFile)}


class ReaderPool:
    """Reads documents in at most `processes` processes at a time; whoever comes later waits for one.

    A process that takes too much time or memory is killed, and the caller told so; the next file gets a new one. To
    cancel a reading kills its process as well. Small plain text is read on the spot.

    Raises:
        ToolError: by both methods that read; the text says what is wrong with the file.
    """

    def __init__(self, limits: ReaderLimits | None = None, *, processes: int = PROCESSES) -> None:
        self._limits = limits or ReaderLimits()
        self._slots = asyncio.Semaphore(processes)
        self._idle: dict[ReaderProcess, asyncio.TimerHandle] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self._is_closed = False

    async def pages(self, name: str, content: bytes, content_type: str | None = None) -> tuple[str, ...]:
        """The document on pages, the first opening with the report; none when it is empty."""
        if _is_tiny_text(name, content, content_type):
            return pages_of(extract(name, content, content_type))
        frames = await self._asked("pages", name, content, content_type)
        return tuple(payload.decode() for kind, payload in frames if kind is Kind.PAGE)

    async def extraction(self, name: str, content: bytes, content_type: str | None = None) -> Extraction:
        """The document's blocks and notes."""
        if _is_tiny_text(name, content, content_type):
            return extract(name, content, content_type)
        frames = await self._asked("blocks", name, content, content_type)
        notes = [note for kind, payload in frames if kind is Kind.NOTES for note in json.loads(payload)]
        return Extraction(tuple(_block(payload) for kind, payload in frames if kind is Kind.BLOCK), tuple(notes))

    async def close(self) -> None:
        """End the processes that wait for work, and each of the others when it is done."""
        self._is_closed = True
        for process in list(self._idle):
            self._retire(process)
        await asyncio.gather(*self._ending)

    async def _asked(self, want: str, name: str, content: bytes, content_type: str | None) -> list[Frame]:
        async with self._slots:
            frames: list[Frame] = []
            while not frames:
                frames = await self._answer(await self._taken(), want, name, content, content_type)
        kind, payload = frames[-1]
        if kind is Kind.FAILURE:
            raise _failure(name, *json.loads(payload))
        return frames

    async def _answer(
        self, process: ReaderProcess, want: str, name: str, content: bytes, content_type: str | None
    ) -> list[Frame]:
        # Empty when the process, which had waited for work, died before it received the request: not the file's fault.
        is_new = process.documents == 0
        try:
            async with asyncio.timeout(self._limits.seconds):
                frames = await process.ask(want, name, content, content_type)
        except TimeoutError as error:
            raise ToolError(_out_of(name, f"time, {self._limits.seconds:g} seconds")) from error
        except ReaderDied as error:
            if is_new or error.started:
                raise _died(name, error.status) from error
            return []
        else:
            self._keep(process, frames[-1])
            return frames
        finally:
            if process not in self._idle:
                await process.end()

    async def _taken(self) -> ReaderProcess:
        while self._idle:
            process, timer = self._idle.popitem()
            timer.cancel()
            if process.is_alive:
                return process
            await process.end()
        return await started(self._limits)

    def _keep(self, process: ReaderProcess, last: Frame) -> None:
        if self._is_closed or process.documents >= self._limits.documents or self._took_much(*last):
            return
        timer = asyncio.get_running_loop().call_later(self._limits.idle_seconds, self._retire, process)
        self._idle[process] = timer

    def _took_much(self, kind: Kind, payload: bytes) -> bool:
        if kind is Kind.DONE:
            return int(payload) > self._limits.kept_bytes
        return json.loads(payload)[0] == MemoryError.__name__

    def _retire(self, process: ReaderProcess) -> None:
        self._idle.pop(process).cancel()
        ending = asyncio.create_task(process.end())
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)


def _is_tiny_text(name: str, content: bytes, content_type: str | None) -> bool:
    if len(content) > _TINY or not format_of(name, content, content_type).is_plain_text:
        return False
    try:
        content.decode()
    except UnicodeDecodeError:  # to find its encoding takes long
        return False
    return True


def _block(payload: bytes) -> Block:
    head, _, text = payload.decode().partition("\n")
    heading, page = json.loads(head)
    return Block(text, heading, page)


def _failure(name: str, kind: str, text: str) -> ToolError:
    if kind == "MemoryError":
        return ToolError(_out_of(name, "memory"))
    if kind in _ERRORS:
        return _ERRORS[kind](text)
    reference = new_reference()
    logger.error("the reader of a document failed (reference %s): %s", reference, text)
    return ToolError(
        f"The file {name!r} could not be read: its reader failed unexpectedly (reference {reference}). Tell the user."
    )


def _died(name: str, status: int | None) -> ToolError:
    if status == -signal.SIGXCPU:
        return ToolError(_out_of(name, "time"))
    if status in (1, -signal.SIGKILL):  # Python without the memory to say so, or stopped by the system that has none
        return ToolError(_out_of(name, "memory"))
    logger.warning("the reader of a document ended with status %s", status)
    return ToolError(
        f"The file {name!r} could not be read: the reader broke down on it, so it is damaged or needs more memory than "
        "there is. Tell the user, or ask for a smaller or newer copy."
    )


def _out_of(name: str, what: str) -> str:
    return f"The file {name!r} could not be read: the reader ran out of {what}. Ask the user for a smaller file."
