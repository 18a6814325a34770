"""The embedding model in the agent's own process: its threads, their order and priority, what fails and what ends."""

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from task.embedding.embedder import NICE, Embedder, EmbedderOptions
from task.embedding.weights import EmbeddingUnavailable
from tests.support.waiting import until

ROOT = Path(__file__).parents[2]
QUESTION = "How should I clean the plate?"
ANSWER = "Take out the glass tray and wash it in warm soapy water."
OTHER = "The annual report was approved by the board."
DOCUMENT = [letter * length for length, letter in enumerate("abcdefghij", 1)]


class Stepwise:
    """One thread, whose batches wait for `steps`; a vector is its text's length."""

    batch, at_once = 2, 1

    def __init__(self) -> None:
        self.taken: list[list[str]] = []
        self.priorities: set[int] = set()
        self.steps = threading.Semaphore(0)

    def lengths(self, texts: Sequence[str]) -> list[int]:
        return [len(text.split()) or 1 for text in texts]

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        self.taken.append(list(texts))
        self.priorities.add(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))
        assert self.steps.acquire(timeout=20)
        if "bad" in texts:
            raise ValueError("not for users")
        return np.array([[len(text)] for text in texts], np.float32)


@asynccontextmanager
async def busy() -> AsyncGenerator[tuple[Embedder, Stepwise, asyncio.Task[NDArray[np.float32]], list[int]]]:
    """An embedder whose thread is at the first batch of a document, and the progress of that."""
    model, seen = Stepwise(), list[int]()
    embedder = Embedder(loading=lambda: model)
    document = asyncio.create_task(embedder.embed(DOCUMENT, seen.append))
    try:
        async with asyncio.timeout(20):
            await until(lambda: model.taken)
            yield embedder, model, document, seen
    finally:
        model.steps.release(100)
        await embedder.close()


@pytest.mark.usefixtures("weights")
@pytest.mark.fault("search in documents: half of a letter in a text")
async def test_similar_meanings_are_close_beside_a_broken_text_in_any_event_loop() -> None:
    embedder = Embedder()
    rows = await embedder.embed([QUESTION, ANSWER, OTHER, "broken \ud800 letter"])
    assert rows.shape == (4, 384)
    assert np.allclose(np.linalg.norm(rows, axis=1), 1, atol=1e-5)
    assert rows[0] @ rows[1] > 0.4 > 0.2 > rows[0] @ rows[2]
    await embedder.close()
    assert (await asyncio.to_thread(asyncio.run, embedder.embed([QUESTION]))) @ rows[0] > 0.999
    await embedder.close()


@pytest.mark.fault("search in documents: no texts at all")
async def test_no_texts_have_no_vectors() -> None:
    async with busy() as (embedder, _, _, _), asyncio.timeout(20):
        assert len(await embedder.embed([])) == 0


IMPORTED = """
import os, task
before = dict(os.environ)
from task.embedding.embedder import Embedder
assert dict(os.environ) == before
Embedder()
print(os.environ["TOKENIZERS_PARALLELISM"], os.environ["OMP_WAIT_POLICY"])
"""


def test_the_libraries_get_their_variables_from_an_embedder_and_not_from_an_import() -> None:
    done = subprocess.run([sys.executable, "-c", IMPORTED], cwd=ROOT, capture_output=True, encoding="utf-8", timeout=60,
                          env={"PATH": os.environ["PATH"], "OMP_WAIT_POLICY": "ACTIVE"}, check=False)  # fmt: skip
    assert done.stdout == "false ACTIVE\n", done.stderr


async def test_a_question_comes_before_documents_which_take_turns_the_longest_texts_first() -> None:
    async with busy() as (embedder, model, document, seen):
        other = asyncio.create_task(embedder.embed([str(number) * 3 for number in range(9)]))
        question = asyncio.create_task(embedder.embed(["how?"]))
        await asyncio.sleep(0)
        model.steps.release(2)
        assert await question == [[4]]
        assert not document.done()
        model.steps.release(100)
        assert (await document)[:, 0].tolist() == [len(text) for text in DOCUMENT]
        assert (await other).shape == (9, 1)
    assert model.taken[:2] == [["i" * 9, "j" * 10], ["how?"]]
    assert ["g" * 7, "h" * 8] in model.taken[2:4], "the documents take turns"
    assert seen[-1] == len(DOCUMENT)
    own = os.getpriority(os.PRIO_PROCESS, 0)
    assert model.priorities == {min(own + NICE, 19) if sys.platform == "linux" else own}


@pytest.mark.fault("search in documents: a text on which the library fails")
async def test_texts_with_as_many_words_are_computed_together() -> None:
    async with busy() as (embedder, model, document, _), asyncio.timeout(20):
        model.steps.release(100)
        await document
        before = len(model.taken)
        texts = ["aaaaaaa", "a a a a", "bbbbbbb", "b b b b", "ccc ccc", "ddd ddd"]
        assert (await embedder.embed(texts)).tolist() == [[7.0]] * 6
        assert [sorted(batch) for batch in model.taken[before:]] == [texts[1:4:2], texts[4:], texts[0:3:2]]


async def test_a_cancelled_call_drops_its_remaining_batches_and_one_that_fails_its_own() -> None:
    async with busy() as (embedder, model, document, _):
        document.cancel()
        await asyncio.wait({document})
        model.steps.release(3)
        other = asyncio.create_task(embedder.embed(["next"]))
        with pytest.raises(EmbeddingUnavailable, match=r"^A text could not be embedded: ValueError$"):
            await embedder.embed(["bad"])
        assert await other == [[4]]
    assert document.cancelled()
    assert sorted(model.taken) == [["bad"], ["i" * 9, "j" * 10], ["next"]]


async def test_what_waits_for_a_closed_embedder_is_refused() -> None:
    async with busy() as (embedder, model, document, _):
        closing = asyncio.create_task(embedder.close())
        with pytest.raises(EmbeddingUnavailable, match="being stopped"):
            await document
        model.steps.release()
        await closing
    assert len(model.taken) == 1


@pytest.mark.fault("search in documents: a model that is not there")
async def test_a_missing_model_is_refused_with_a_reason(tmp_path: Path) -> None:
    for model, words in (("no-model", "named by its whole path"), ("", "EMBEDDING_MODEL")):
        embedder = Embedder(EmbedderOptions(str(tmp_path / model)))
        for answer in await asyncio.gather(embedder.embed([ANSWER]), embedder.embed([OTHER]), return_exceptions=True):
            assert isinstance(answer, EmbeddingUnavailable)
            assert words in str(answer)


@pytest.mark.fault("search in documents: a model that cannot be loaded at first")
async def test_the_next_request_tries_again() -> None:
    model, broken = Stepwise(), iter([True, False])
    model.steps.release()

    def loading() -> Stepwise:
        if next(broken):
            raise OSError("not for users")
        return model

    embedder = Embedder(loading=loading)
    with pytest.raises(EmbeddingUnavailable, match=r"could not be loaded \(OSError\)\. Check EMBEDDING_MODEL\.$"):
        await embedder.embed([QUESTION])
    assert (await embedder.embed([QUESTION])).shape == (1, 1)
    await embedder.close()


WATCHED = f"""
import asyncio, sys
from pathlib import Path
from task.embedding.embedder import Embedder
from tests.support.loop_watch import watched
async def main():
    embedder, texts = Embedder(), [{ANSWER * 8!r}] * 40
    print((await embedder.embed(texts)).shape)
    left = asyncio.create_task(embedder.embed(texts * 9))
    await embedder.embed(["how?"])
watched(Path(sys.argv[1]), 0.05)
asyncio.run(main())
"""


@pytest.mark.usefixtures("weights")
def test_neither_loading_nor_computing_holds_the_event_loop_or_the_end_of_the_process(tmp_path: Path) -> None:
    report = tmp_path / "report"
    done = subprocess.run([sys.executable, "-c", WATCHED, report], cwd=ROOT, capture_output=True, encoding="utf-8",
                          timeout=60, check=True)  # fmt: skip
    assert done.stdout == "(40, 384)\n"
    assert not report.exists(), report.read_text(encoding="utf-8")
