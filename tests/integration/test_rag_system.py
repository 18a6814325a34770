"""Search at full size and with real servers: a Redis, a very long PDF, the library's own vectors."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from task.documents.pool import ReaderPool
from task.embedding.client import Embedder
from task.embedding.environment import EmbeddingEnvironment
from task.llm.scripted import says
from task.search.document_cache import DocumentCache
from task.search.readings import Readings, Requester
from task.search.shelf import Shelf
from task.shared.redis_store import PREFIX, RedisStore
from tests.support.chat_reader import Answer
from tests.support.document_turns import PLATE, searches
from tests.support.documents import MemoryFiles, manual
from tests.support.pdfs import text_pdf
from tests.support.product import product
from tests.support.redis_server import RedisServer, redis_server

pytestmark = pytest.mark.system


def sharing(redis: RedisServer, folder: Path) -> Any:
    return {"process_dir": folder, "store_url": redis.url}  # the setting by its former name


def stage_of(answer: Answer) -> str:
    return answer.stages[0].content


@pytest.mark.fault("search in documents: Redis gone and back")
async def test_redis_may_go_and_come_back(tmp_path: Path) -> None:
    seconds = 0.0
    async with redis_server() as redis:
        store = RedisStore(redis.url, clock=lambda: seconds)
        await store.put("key", b"value", 60)
        assert await store.get("key") == b"value"
        await store.put_many({"one": b"1", "two": b"2"}, 60)
        assert await store.get_many(["two", "none", "one"]) == [b"2", None, b"1"]
        await redis.stop()
        assert await store.get("key") is None
        assert await store.get_many(["one", "two"]) == [None, None]
        await store.put_many({"one": b"3"}, 60)
        await redis.start()
        assert await store.get("key") is None  # it rests
        seconds += 6
        await store.put("key", b"again", 60)
        assert await store.get("key") == b"again"
        await store.drop("key")
        assert await store.get("key") is None
        await store.close()


@pytest.mark.fault("search in documents: a damaged entry of the store")
async def test_a_damaged_entry_in_redis_is_made_again(tmp_path: Path, embedding_dir: Path) -> None:
    from redis.asyncio import Redis

    turns = [searches(PLATE), says("Soap [1]."), says("Soap.")]
    async with redis_server() as redis, Redis.from_url(redis.url) as client:
        for number in range(2):
            folder = tmp_path / str(number)
            async with product(*turns, tmp_path=folder, rag=sharing(redis, embedding_dir)) as p:
                file = await p.reader.upload("manual.txt", manual().encode(), "text/plain")
                answer = await p.reader.ask(PLATE, file)
            assert "Using cached index" not in stage_of(answer)
            assert answer.stages[0].status == "completed"
            [key] = await client.keys(f"{PREFIX}index:*")
            await client.set(key, b"damaged")


@pytest.mark.fault("search in documents: a PDF of 2,000 pages")
async def test_a_pdf_of_2000_pages_is_searched_with_the_right_page(embedding_dir: Path) -> None:
    content = text_pdf(2000, 3)
    readers, embedder = ReaderPool(), Embedder(embedding_dir)
    files = MemoryFiles({"files/b/long.pdf": content})
    shelf = Shelf(Readings(files, readers, max_size=len(content)), embedder, DocumentCache.create())
    opened = await shelf.open("files/b/long.pdf", Requester("key", "ann", "chat"))
    index = await shelf.indexed(opened, lambda progress: None)
    await readers.close()
    pages = [chunk.place.page for chunk in index.chunks]
    assert (pages[0], pages[-1]) == (1, 2000)
    assert len(set(pages)) == 2000


# In the embedding process's environment: the largest differences of vectors, and the least cosine.
_COMPARISON = """
import json, sys
import numpy as np
from sentence_transformers import SentenceTransformer
from torch.backends import mkldnn
from task.embedding.model import MiniLM, packaged_folder
texts, folder = json.load(sys.stdin), packaged_folder()
expected = SentenceTransformer(str(folder), device="cpu").encode(texts, show_progress_bar=False)
found = MiniLM(folder, "float32").encode(texts)
half = MiniLM(folder, "bfloat16").encode(texts)
mkldnn.enabled = False  # torch's own switch
plain = MiniLM(folder, "float32").encode(texts)
differences = [float(np.abs(expected - vectors).max()) for vectors in (found, plain)]
print(json.dumps([*differences, float((found * half).sum(axis=1).min())]))
"""


def test_the_packaged_model_gives_the_vectors_of_its_library() -> None:
    texts = [manual()[:500], "short", "Температура от 20 до 25 °C. " * 40, "| a | b |\n| 1 | 2 |", "製造元は二年間"]
    offline = {"HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1", "PYTHONPATH": str(Path(__file__).parents[2])}
    python = EmbeddingEnvironment().python
    done = subprocess.run([python, "-c", _COMPARISON], input=json.dumps(texts), env=offline, stdout=subprocess.PIPE,
                          text=True, timeout=120, check=True)  # fmt: skip
    difference, plain, cosine = json.loads(done.stdout)
    assert max(difference, plain) < 1e-5
    assert cosine > 0.999
