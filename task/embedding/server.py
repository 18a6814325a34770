"""The embedding process, which `Embedder` starts with `main`.

It answers agents on a Unix socket, questions before documents, and ends when its standard input is closed. A request
and its answers are frames: a JSON header and raw bytes.
"""

import asyncio
import json
import os
import struct
import sys
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any, cast

from task.embedding.model import Encoder, Precision, load, load_ranker
from task.embedding.weights import EXTRA, EmbeddingUnavailable, PackagedModel

QUESTION = 8  # a request with more texts is a document
BEAT_SECONDS = 1.0
PROGRESS_SECONDS = 0.25
MAX_BYTES = 512 * 2**20
_LENGTHS = struct.Struct("!II")
_REFUSING_SECONDS = 0.3
_NICE = 5  # streaming answers take precedence over documents being indexed


@dataclass(frozen=True, slots=True)
class Frame:
    """A message of this `kind`; `facts` are small values, `body` is text or float32 vectors."""

    kind: str
    facts: dict[str, Any] = field(default_factory=dict[str, Any])
    body: bytes = b""


async def send(writer: asyncio.StreamWriter, frame: Frame) -> None:
    header = json.dumps({"kind": frame.kind, **frame.facts}).encode()
    writer.write(_LENGTHS.pack(len(header), len(frame.body)) + header)
    writer.write(frame.body)
    await writer.drain()


async def receive(reader: asyncio.StreamReader) -> Frame:
    """The next frame.

    Raises:
        ConnectionError: the other side is gone, or sends something that is not a frame.
    """
    try:
        header_size, body_size = _LENGTHS.unpack(await reader.readexactly(_LENGTHS.size))
        if header_size + body_size > MAX_BYTES:
            raise ConnectionError("a frame is larger than any can be")
        header = json.loads(await reader.readexactly(header_size))
        body = await reader.readexactly(body_size)
    except (asyncio.IncompleteReadError, ValueError) as error:
        raise ConnectionError("the connection broke off") from error
    return Frame(header.pop("kind"), header, body)


class Job:
    """The texts of one request: taken batch by batch, longest first, answered in their own order."""

    def __init__(self, texts: Sequence[str]) -> None:
        self.texts = texts
        self.finished: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.done = self.given = 0
        self.rows: list[bytes] = [b""] * len(texts)
        self._order = sorted(range(len(texts)), key=lambda place: -len(texts[place]))
        if not texts:
            self.finished.set_result(None)

    def next_batch(self, most: int) -> list[int]:
        batch = self._order[self.given : self.given + most]
        self.given += len(batch)
        return batch

    def take(self, places: Sequence[int], rows: Sequence[bytes]) -> None:
        for place, row in zip(places, rows, strict=True):
            self.rows[place] = row
        self.done += len(places)
        if self.done == len(self.texts) and not self.finished.done():
            self.finished.set_result(None)

    def fail(self, error: EmbeddingUnavailable) -> None:
        if not self.finished.done():
            self.finished.set_exception(error)


class EmbeddingServer:
    """Loads the model in a thread while it already listens; a model that cannot be loaded ends it after one answer."""

    def __init__(self, load: Callable[[], Encoder]) -> None:
        self._load = load
        self._threads = ThreadPoolExecutor(thread_name_prefix="model")
        self._ranking = ThreadPoolExecutor(1)
        self._jobs: deque[Job] = deque()
        self._work = asyncio.Event()
        self._refusal: EmbeddingUnavailable | None = None

    async def run(self) -> None:
        """Work on the jobs until the process ends, or until the model turns out not to load."""
        try:
            model = await asyncio.get_running_loop().run_in_executor(self._threads, self._load)
        except Exception as error:
            self._refusal = error if isinstance(error, EmbeddingUnavailable) else _unavailable(error)
            await self._work.wait()
            for job in tuple(self._jobs):
                job.fail(self._refusal)
            await asyncio.sleep(_REFUSING_SECONDS)  # so that the answers leave before the process ends
            return
        await asyncio.gather(*(self._run_batches(model) for _ in range(model.at_once)))

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one connection: one request of texts; closing it cancels the request."""
        job: Job | None = None
        try:
            request = await receive(reader)
            if request.kind == "rank":
                await self._rank(request, writer)
                return
            job = Job(json.loads(request.body))
            if job.texts:
                self._jobs.append(job)
                self._work.set()
            if self._refusal is not None:
                job.fail(self._refusal)
            await self._answer(job, reader, writer)
        except (ConnectionError, ValueError):
            pass  # the agent is gone, or this is not an agent
        finally:
            if job is not None:
                self._drop(job)
            writer.close()

    async def _rank(self, request: Frame, writer: asyncio.StreamWriter) -> None:
        def scores() -> bytes:
            return load_ranker(request.facts["model"])(json.loads(request.body)).astype("<f4").tobytes()

        try:
            body = await asyncio.get_running_loop().run_in_executor(self._ranking, scores)
        except Exception as error:
            await send(writer, Frame("unavailable", body=str(_unavailable(error, "AGENT_RAG__CROSS_ENCODER")).encode()))
        else:
            await send(writer, Frame("vectors", {"rows": len(body) // 4}, body))

    async def _run_batches(self, model: Encoder) -> None:
        # Several of these share the jobs.
        while True:
            await self._work.wait()
            if not self._jobs:
                self._work.clear()
                continue
            job = self._next_job()
            places = job.next_batch(model.batch)
            if job.given == len(job.texts):
                self._drop(job)
            texts = [job.texts[place] for place in places]
            try:
                rows = await asyncio.get_running_loop().run_in_executor(self._threads, model.encode, texts)
            except Exception as error:  # whatever a library raises for one text must not end the others' work
                self._drop(job)
                job.fail(EmbeddingUnavailable(f"A text could not be embedded: {type(error).__name__}"))
            else:
                job.take(places, [row.tobytes() for row in rows.astype("<f4")])

    def _next_job(self) -> Job:
        for job in self._jobs:
            if len(job.texts) <= QUESTION:
                return job
        self._jobs.rotate(-1)
        return self._jobs[-1]

    def _drop(self, job: Job) -> None:
        with suppress(ValueError):
            self._jobs.remove(job)

    async def _answer(self, job: Job, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        gone = asyncio.ensure_future(reader.read(1))
        reported, last = -1, 0.0
        try:
            while not job.finished.done():
                await asyncio.wait({gone, job.finished}, timeout=PROGRESS_SECONDS, return_when=asyncio.FIRST_COMPLETED)
                if gone.done():
                    return
                if job.done != reported or monotonic() - last >= BEAT_SECONDS:
                    reported, last = job.done, monotonic()
                    await send(writer, Frame("progress", {"done": job.done, "total": len(job.texts)}))
            if (error := job.finished.exception()) is not None:
                await send(writer, Frame("unavailable", body=str(error).encode()))
            else:
                await send(writer, Frame("vectors", {"rows": len(job.rows)}, b"".join(job.rows)))
        finally:
            gone.cancel()


def _unavailable(error: Exception, setting: str = "EMBEDDING_MODEL") -> EmbeddingUnavailable:
    if isinstance(error, ImportError):
        reason = f"{setting} needs packages that are not installed ({error}): pip install '{EXTRA}'."
    else:
        reason = f"The embedding model could not be loaded ({type(error).__name__}). Check {setting}."
    return EmbeddingUnavailable(reason)


async def listen(path: Path, load: Callable[[], Encoder]) -> None:
    """Serve at `path` until standard input is closed at its other end or the model turns out not to load."""
    server = EmbeddingServer(load)
    listening = await asyncio.start_unix_server(server.serve, path)
    os.chmod(path, 0o600)
    print("ready", flush=True)
    gone = asyncio.create_task(_input_closed())
    work = asyncio.create_task(server.run())
    await asyncio.wait({gone, work}, return_when=asyncio.FIRST_COMPLETED)
    await asyncio.to_thread(path.unlink, missing_ok=True)
    listening.close()
    if work.done():
        work.result()


async def _input_closed() -> None:
    reader = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(sys.stdin.fileno(), "rb", buffering=0)
    )
    await reader.read()
    transport.close()


def main(socket: str, weights: str, model: str, precision: str, threads: str) -> None:
    os.nice(_NICE)
    packaged = PackagedModel(Path(weights))
    asyncio.run(listen(Path(socket), partial(load, packaged, model, cast("Precision", precision), int(threads))))
    os._exit(0)  # a thread may still be loading the model, and nothing waits for it
