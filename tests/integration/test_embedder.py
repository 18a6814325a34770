"""The embedding process: real, killed, stopped, refused, shared."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest

from task.embedding.client import Embedder, EmbedderOptions
from task.embedding.weights import EmbeddingUnavailable


@pytest.fixture
def tmp_path(short_path: Path) -> Path:
    return short_path  # the embedding process's socket lies there


QUESTION = "How should I clean the plate?"
ANSWER = "Take out the glass tray and wash it in warm soapy water."
OTHER = "The annual report was approved by the board."


@asynccontextmanager
async def own_embedder(folder: Path, silence: float = 30, **options: object) -> AsyncGenerator[Embedder]:
    """A process only for this test; by default its model is a folder without one."""
    chosen = EmbedderOptions(**{"model": str(folder), **options})  # type: ignore[arg-type]
    embedder = Embedder(folder / "run", chosen, silence=silence)
    try:
        yield embedder
    finally:
        await embedder.close()


async def test_similar_meanings_are_close(embedding_dir: Path) -> None:
    rows = await Embedder(embedding_dir).embed([QUESTION, ANSWER, OTHER])
    near, far = float(rows[0] @ rows[1]), float(rows[0] @ rows[2])
    assert rows.shape == (3, 384)
    assert np.allclose(np.linalg.norm(rows, axis=1), 1, atol=1e-5)
    assert near > 0.4 > 0.2 > far


@pytest.mark.fault("search in documents: half of a letter in a text")
async def test_half_a_surrogate_pair_does_not_affect_other_texts(embedding_dir: Path) -> None:
    rows = await Embedder(embedding_dir).embed([ANSWER, "broken \ud800 letter"])
    assert np.allclose(np.linalg.norm(rows, axis=1), 1, atol=1e-5)


async def test_a_question_does_not_wait_for_a_document(embedding_dir: Path) -> None:
    embedder, seen = Embedder(embedding_dir), list[int]()
    document = asyncio.create_task(embedder.embed([f"{ANSWER * 8} {n}" for n in range(300)], seen.append))
    while not any(seen):
        await asyncio.sleep(0.005)
    async with asyncio.timeout(20):
        await embedder.embed([QUESTION])
    assert not document.done()
    document.cancel()
    await asyncio.wait({document}, timeout=10)
    assert document.cancelled()


async def test_agents_of_one_host_share_the_process(embedding_dir: Path) -> None:
    another = Embedder(embedding_dir)
    await another.embed([QUESTION])
    assert another.pid is None


@pytest.mark.fault("search in documents: the embedding process killed")
async def test_a_killed_process_is_restarted_without_a_failure(tmp_path: Path) -> None:
    seen = list[int]()
    async with own_embedder(tmp_path, model="") as embedder:
        waiting = asyncio.create_task(embedder.embed([QUESTION, ANSWER], seen.append))
        others = [asyncio.create_task(embedder.embed([f"{OTHER} {number}"])) for number in range(20)]
        async with asyncio.timeout(20):
            while embedder.pid is None or not seen:
                await asyncio.sleep(0.01)
        first = embedder.pid
        os.kill(first, signal.SIGKILL)
        async with asyncio.timeout(40):
            rows = await waiting
            assert len(await asyncio.gather(*others)) == 20
        assert rows.shape == (2, 384)
        assert embedder.pid not in (None, first)


@pytest.mark.fault("search in documents: the embedding process hangs")
@pytest.mark.system
async def test_a_process_that_hangs_is_replaced(tmp_path: Path) -> None:
    seen = list[int]()
    # This depends on the wall clock and cannot be strict: the new process reports nothing while a library that it
    # loads holds the interpreter, which takes seconds on a busy machine.
    async with own_embedder(tmp_path, silence=10, model="") as embedder:
        waiting = asyncio.create_task(embedder.embed([QUESTION], seen.append))
        async with asyncio.timeout(20):
            while embedder.pid is None or not seen:
                await asyncio.sleep(0.001)
        first = embedder.pid
        os.kill(first, signal.SIGSTOP)
        async with asyncio.timeout(90):
            assert (await waiting).shape == (1, 384)
        assert embedder.pid not in (None, first)


@pytest.mark.fault("search in documents: a model that is not there")
async def test_a_missing_model_is_refused_with_a_reason(tmp_path: Path) -> None:
    for model, words in (("no-model", "named by its whole path"), ("", "EMBEDDING_MODEL")):
        async with own_embedder(tmp_path, model=str(tmp_path / model)) as embedder:
            with pytest.raises(EmbeddingUnavailable, match=words):
                await embedder.embed([QUESTION])


async def test_a_folder_that_others_can_write_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run").chmod(0o777)
    async with own_embedder(tmp_path) as embedder:
        with pytest.raises(EmbeddingUnavailable, match="written by others"):
            await embedder.embed([QUESTION])


def test_the_process_ends_with_the_agent_that_started_it(tmp_path: Path) -> None:
    code = (
        "import asyncio, os, sys; from pathlib import Path; from task.embedding.client import *\n"
        f"e = Embedder(Path({str(tmp_path / 'run')!r}), EmbedderOptions({str(tmp_path)!r}))\n"
        "try: asyncio.run(e.embed(['x']))\nexcept Exception: pass\n"
        "e._start(); print(e.pid, flush=True); os.kill(os.getpid(), 9)"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, encoding="utf-8", timeout=30, check=False)
    pid = int(ended.stdout)
    for _ in range(500):
        if not Path(f"/proc/{pid}").exists() or _is_zombie(pid):
            return
        asyncio.run(asyncio.sleep(0.01))
    raise AssertionError("the embedding process outlived its agent")


def _is_zombie(pid: int) -> bool:
    try:
        return ") Z" in Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except OSError:
        return True
