"""The embedding process: answers agents on a Unix socket, questions before documents, until its owner is gone."""

from __future__ import annotations

import asyncio
import json
import os
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from time import monotonic

from task.embedding.frames import Frame, receive, send
from task.embedding.model import Encoder
from task.embedding.weights import EmbeddingUnavailable

BATCH = 4  # a question waits for one; on processors small batches of like lengths are the fastest as well
QUESTION = 8  # texts at most in what is asked; more are a document
BEAT_SECONDS = 1.0
PROGRESS_SECONDS = 0.25
_REFUSING_SECONDS = 0.3


class Job:
    """The texts of one request: taken batch by batch, longest first, answered in their own order."""

    def __init__(self, texts: Sequence[str]) -> None:
        self.texts = texts
        self.finished: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.done = self.given = 0
        self.rows: list[bytes] = [b""] * len(texts)
        self._order = sorted(range(len(texts)), key=lambda place: -len(texts[place]))

    @property
    def is_question(self) -> bool:
        return len(self.texts) <= QUESTION

    def next_batch(self) -> list[int]:
        batch = self._order[self.given : self.given + BATCH]
        self.given += len(batch)
        return batch

    def take(self, places: Sequence[int], rows: Sequence[bytes]) -> None:
        for place, row in zip(places, rows, strict=True):
            self.rows[place] = row
        self.done += len(places)


class EmbeddingServer:
    """Loads the model in a thread while it already listens; a model that cannot be loaded ends it after one answer."""

    def __init__(self, load: Callable[[], Encoder]) -> None:
        self._load = load
        self._threads = ThreadPoolExecutor(thread_name_prefix="model")
        self._jobs: deque[Job] = deque()
        self._work = asyncio.Event()
        self._refusal: EmbeddingUnavailable | None = None

    async def run(self) -> None:
        """Work on the jobs for ever, or until the model cannot be loaded."""
        loop = asyncio.get_running_loop()
        await self._work.wait()
        try:
            model = await loop.run_in_executor(self._threads, self._load)
        except Exception as error:
            await self._refuse(error)
            return
        await asyncio.gather(*(self._batches(model) for _ in range(model.at_once)))

    async def _batches(self, model: Encoder) -> None:
        """Work on one batch after the other; several of these share the jobs."""
        while True:
            await self._work.wait()
            if not self._jobs:
                self._work.clear()
                continue
            await self._step(model, self._next())

    async def _step(self, model: Encoder, job: Job) -> None:
        places = job.next_batch()
        if job.given == len(job.texts):
            self.drop(job)
        encode = asyncio.get_running_loop().run_in_executor(
            self._threads, _rows, model, [job.texts[place] for place in places]
        )
        try:
            rows = await encode
        except Exception as error:  # whatever a library throws at one text must not end the others' work
            self.drop(job)
            if not job.finished.done():
                job.finished.set_exception(
                    EmbeddingUnavailable(f"A text could not be embedded: {type(error).__name__}")
                )
            return
        job.take(places, rows)
        if job.done == len(job.texts) and not job.finished.done():
            job.finished.set_result(None)

    def _next(self) -> Job:
        for job in self._jobs:
            if job.is_question:
                return job
        self._jobs.rotate(-1)
        return self._jobs[-1]

    async def _refuse(self, error: Exception) -> None:
        known = isinstance(error, EmbeddingUnavailable)
        self._refusal = error if known else EmbeddingUnavailable(_explained(error))
        for job in tuple(self._jobs):
            job.finished.set_exception(self._refusal)
        await asyncio.sleep(_REFUSING_SECONDS)  # the answers leave before the process does

    def add(self, job: Job) -> None:
        if self._refusal is not None:
            job.finished.set_exception(self._refusal)
            return
        self._jobs.append(job)
        self._work.set()

    def drop(self, job: Job) -> None:
        with suppress(ValueError):
            self._jobs.remove(job)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one connection: one request of texts; closing it cancels the request."""
        job: Job | None = None
        try:
            request = await receive(reader)
            job = Job(json.loads(request.body))
            self.add(job) if job.texts else job.finished.set_result(None)
            await self._answer(job, reader, writer)
        except (ConnectionError, ValueError):
            pass  # the agent has gone, or is none
        finally:
            if job is not None:
                self.drop(job)
            writer.close()

    async def _answer(self, job: Job, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        gone = asyncio.ensure_future(reader.read(1))
        told, last = -1, 0.0
        try:
            while not job.finished.done():
                await asyncio.wait({gone, job.finished}, timeout=PROGRESS_SECONDS, return_when=asyncio.FIRST_COMPLETED)
                if gone.done():
                    return
                if job.done != told or monotonic() - last >= BEAT_SECONDS:
                    told, last = job.done, monotonic()
                    await send(writer, Frame("progress", {"done": job.done, "total": len(job.texts)}))
            await send(writer, _answer_of(job))
        finally:
            gone.cancel()


def _answer_of(job: Job) -> Frame:
    if (error := job.finished.exception()) is not None:
        return Frame("unavailable", body=str(error).encode())
    return Frame("vectors", {"rows": len(job.rows)}, b"".join(job.rows))


def _rows(model: Encoder, texts: Sequence[str]) -> list[bytes]:
    return [row.tobytes() for row in model.encode(texts).astype("<f4")]


def _explained(error: Exception) -> str:
    if isinstance(error, ImportError):
        return f"Search by meaning is not installed ({error}). Install the product's `rag` extra."
    return f"The embedding model could not be loaded ({type(error).__name__}). Check EMBEDDING_MODEL."


async def listen(path: Path, load: Callable[[], Encoder], owner: int, ready: Callable[[], None]) -> None:
    """Serve at `path` until the pipe `owner` is closed at its other end or the model cannot be loaded."""
    server = EmbeddingServer(load)
    listening = await asyncio.start_unix_server(server.serve, path)
    os.chmod(path, 0o600)
    ready()
    gone = asyncio.create_task(_owner_gone(owner))
    work = asyncio.create_task(server.run())
    await asyncio.wait({gone, work}, return_when=asyncio.FIRST_COMPLETED)
    await asyncio.to_thread(path.unlink, missing_ok=True)
    listening.close()
    if work.done():
        work.result()


async def _owner_gone(owner: int) -> None:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    transport, _ = await loop.connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(owner, "rb", buffering=0)
    )
    await reader.read()
    transport.close()
