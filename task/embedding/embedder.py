"""The vectors of texts, by a model in this process: loaded when it is first needed, in threads that yield to others."""

from __future__ import annotations

import asyncio
import atexit
import os
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from threading import Condition, Lock, Thread, current_thread
from typing import TYPE_CHECKING

from task.closing import in_own_thread
from task.embedding.model import VARIABLES, Encoder, Precision, load, load_ranker
from task.embedding.weights import EXTRA, MODEL_NAME, EmbeddingUnavailable, PackagedModel, State
from task.telemetry.operations import queued

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

ENGINE = "2"  # raised when the packaged model's vectors change: indexes made before are made again, once
QUESTION = 8  # a request with more texts is a document
WINDOW = 64  # texts of about as many letters, which are put in the order of their words: padding is computed, too
PROGRESS_SECONDS = 0.25
CLOSE_SECONDS = 5.0  # for a batch or for loading; a download ends with the process
NICE = 5  # streaming answers take precedence over documents being indexed

Observer = Callable[[int], None]  # receives how many of the texts are embedded


@dataclass(frozen=True, slots=True)
class EmbedderOptions:
    """Which model, and how it computes.

    `model` is a folder or a name on a model hub, empty for the `packaged` one; `threads` 0 takes all cores.
    `cross_encoder`, named like a model, is what `rank` uses.
    """

    model: str = ""
    precision: Precision = "auto"
    threads: int = 0
    packaged: PackagedModel = field(default_factory=PackagedModel)
    cross_encoder: str = ""


class _Job(Future["NDArray[np.float32]"]):
    """The texts of one request: taken batch by batch, longest first, answered in their own order."""

    def __init__(self, texts: Sequence[str]) -> None:
        super().__init__()
        self.texts = texts
        self.left = sorted(range(len(texts)), key=lambda place: len(texts[place]))  # taken from the end
        self.rows: dict[int, NDArray[np.float32]] = {}
        self._measured = 0  # so many at the end are in the order of their words
        self._taking = Lock()

    def take(self, model: Encoder) -> list[int]:
        """The places of the next batch; none where others were faster."""
        with self._taking:
            if self._measured <= 0 and len(self.left) > model.batch:
                window = self.left[-WINDOW:]
                words = dict(zip(window, model.lengths(_whole([self.texts[place] for place in window])), strict=True))
                self.left[-WINDOW:] = sorted(window, key=words.__getitem__)
                self._measured = len(window)
            places = self.left[-model.batch :]
            del self.left[-model.batch :]
            self._measured -= len(places)
            return places

    def settle(self, error: EmbeddingUnavailable | None = None) -> None:
        with suppress(InvalidStateError):  # cancelled, or settled by another batch
            if error is not None:
                self.set_exception(error)
            elif len(self.rows) == len(self.texts):
                import numpy as np

                self.set_result(np.array([self.rows[place] for place in range(len(self.rows))], np.float32))


class Embedder:
    """One model and its threads: questions first, then a batch of each document in turn.

    The first request loads it; after a failure the next request tries again. May be used from several threads and
    event loops. `loading` gives the model, by default the one of the options.
    """

    def __init__(self, options: EmbedderOptions | None = None, loading: Callable[[], Encoder] | None = None) -> None:
        self.options = chosen = options or EmbedderOptions()
        self._load = loading or partial(load, chosen.packaged, chosen.model, chosen.precision, chosen.threads)
        self._jobs: list[_Job] = []
        self._threads: list[Thread] = []  # the first loads the model and starts the others
        self._changed = Condition()  # guards both, and every job
        self._ranking = Lock()
        os.environ.update({**VARIABLES, **os.environ})  # while there are no threads that read them
        atexit.register(self._stop)  # a thread that is within a library would abort the end of the process

    @property
    def model_name(self) -> str:
        """Distinguishes the vectors of different models."""
        return self.options.model or f"{MODEL_NAME} {ENGINE}"

    def state(self) -> State:
        """Whether the model is here; the libraries find other models themselves."""
        return State("ready", "ready") if self.options.model else self.options.packaged.state()

    async def embed(
        self, texts: Sequence[str], observer: Observer | None = None, caller: object = None
    ) -> NDArray[np.float32]:
        """One normalised row for each text; cancelling the call drops its remaining batches. No caller is needed.

        Raises:
            EmbeddingUnavailable: the model cannot be loaded, or fails.
        """
        with queued("embedding"):
            self._submit(job := _Job(texts))
            job.settle()  # of no texts there are no batches
            answer = asyncio.wrap_future(job)
            try:
                while not answer.done():
                    await asyncio.wait({answer}, timeout=PROGRESS_SECONDS)
                    if observer is not None:
                        observer(len(job.rows))
                return await answer
            finally:
                answer.cancel()

    async def rank(self, question: str, texts: Sequence[str]) -> NDArray[np.float32]:
        """How well each text answers the question, by the cross-encoder of the options.

        Raises:
            EmbeddingUnavailable: it cannot be loaded.
        """

        def scores() -> NDArray[np.float32]:
            with self._ranking:  # its tokenizer belongs to one thread at a time
                _yield_to_others()
                try:
                    rows = load_ranker(self.options.cross_encoder)(_whole([question, *texts]))
                    return rows.reshape(len(texts), -1)[:, 0]
                except Exception as error:
                    raise _unavailable(error, "AGENT_RAG__CROSS_ENCODER") from error

        with queued("embedding"):
            return await in_own_thread(scores)

    async def start(self) -> None:
        """Have the model loaded, without waiting; a search that follows reports what is wrong with it."""
        self._submit()

    async def close(self) -> None:
        """End the threads; what waits for them fails. A later request starts them again."""
        await asyncio.to_thread(self._stop)

    def _stop(self) -> None:
        for thread in self._end(EmbeddingUnavailable("Search in documents is being stopped. Try again later.")):
            thread.join(CLOSE_SECONDS)

    def _submit(self, *jobs: _Job) -> None:
        with self._changed:
            self._jobs += jobs
            if not self._threads:
                self._start_thread(self._open)
            self._changed.notify_all()

    def _start_thread(self, work: Callable[[], None]) -> None:
        self._threads.append(Thread(target=work, name="embedding", daemon=True))
        self._threads[-1].start()

    def _open(self) -> None:
        _yield_to_others()
        try:
            model = self._load()
        except Exception as error:
            self._end(_unavailable(error, "EMBEDDING_MODEL"))
            return
        with self._changed:
            if current_thread() in self._threads:  # not closed in the meantime
                for _ in range(1, model.at_once):
                    self._start_thread(partial(self._work, model))
        self._work(model)

    def _work(self, model: Encoder) -> None:
        while (job := self._next_job()) is not None:
            try:
                if places := job.take(model):
                    job.rows |= zip(places, model.encode(_whole([job.texts[place] for place in places])), strict=True)
                    job.settle()
            except Exception as error:  # whatever a library raises for one text must not end the others' work
                job.settle(EmbeddingUnavailable(f"A text could not be embedded: {type(error).__name__}"))

    def _next_job(self) -> _Job | None:
        with self._changed:
            while current_thread() in self._threads:
                self._jobs = [job for job in self._jobs if job.left and not job.done()]
                if self._jobs:
                    job = min(self._jobs, key=lambda job: len(job.texts) > QUESTION)  # the first question, or the first
                    self._jobs.remove(job)
                    self._jobs.append(job)
                    return job
                self._changed.wait()
        return None

    def _end(self, reason: EmbeddingUnavailable) -> list[Thread]:
        with self._changed:
            threads, self._threads = self._threads, []
            jobs, self._jobs = self._jobs, []
            self._changed.notify_all()
            for job in jobs:
                job.settle(reason)
        return threads


def _yield_to_others() -> None:
    if sys.platform == "linux":  # where each thread has a priority of its own, which the threads it starts inherit
        os.nice(NICE)


def _whole(texts: Sequence[str]) -> list[str]:
    # Half of a surrogate pair, as in "\ud800", is not text.
    return [text.encode(errors="replace").decode() for text in texts]


def _unavailable(error: Exception, setting: str) -> EmbeddingUnavailable:
    if isinstance(error, EmbeddingUnavailable):
        return error
    reason = f"The embedding model could not be loaded ({type(error).__name__}). Check {setting}."
    if isinstance(error, ImportError):
        reason = f"{setting} needs packages that are not installed ({error}): pip install '{EXTRA}'."
    return EmbeddingUnavailable(reason)
