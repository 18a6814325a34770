"""Search at full size and over several processes: a shared Redis, a very long PDF, the library's own vectors."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from task.llm.scripted import Reply, says, wants
from task.tools.rag.document_cache import DocumentCache
from task.tools.rag.shelf import Reader, Shelf, ShelfLimits
from task.tools.rag.store import PREFIX, RedisStore
from task.utils.documents.workers.pool import ReaderPool
from task.utils.embedder.client import Embedder
from task.utils.embedder.minilm import MiniLM
from task.utils.embedder.weights import packaged_folder
from tests.support.chat_reader import Answer, chat_reader
from tests.support.documents import MemoryFiles, manual
from tests.support.pdfs import text_pdf
from tests.support.ports import free_port
from tests.support.product import MODEL, Product, product
from tests.support.redis_server import RedisServer, redis_server
from tests.support.up import environment
from tests.support.upstream import Received

pytestmark = pytest.mark.system
PLATE, DEFROST = "How should I clean the plate?", "How do I defrost food?"


def sharing(redis: RedisServer, folder: Path) -> Any:
    return {"process_dir": folder, "store_url": redis.url}


def searches(received: Received) -> Reply:
    question = received.messages[-1]["content"].splitlines()[0]
    [url] = set(re.findall(r"files/\S+", " ".join(m["content"] for m in received.messages if m["role"] == "user")))
    return wants("rag_search_tool", request=question, file_url=url)


@asynccontextmanager
async def second_agent(p: Product, home: Path, **environ: str) -> AsyncGenerator[str]:
    """Another agent process beside the product's own, at its address."""
    port = free_port()
    variables = environment(home, DIAL_ENDPOINT=p.core.url, DEPLOYMENT_NAME=MODEL, AGENT_PORT=str(port), **environ)
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", "task", "serve", cwd=home, env=variables)
    try:
        async with asyncio.timeout(30):
            while not await _listens(port):
                await asyncio.sleep(0.05)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        await asyncio.wait_for(process.wait(), 20)


async def _listens(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.close()
    await writer.wait_closed()
    return True


async def test_a_second_agent_process_finds_what_the_first_has_indexed(tmp_path: Path, embedding_dir: Path) -> None:
    turns = [
        searches, says("Wash the tray in warm soapy water [1]."), says("In soapy water."),
        searches, says("Press AUTO DEFROST [1]."), says("Press AUTO DEFROST."),
        searches, says("NOT IN THE DOCUMENT"), says("It is not in the document."),
    ]  # fmt: skip
    async with (
        redis_server() as redis,
        product(*turns, tmp_path=tmp_path, rag=sharing(redis, embedding_dir)) as p,
    ):
        file = await p.reader.upload("manual.txt", manual().encode(), "text/plain")
        first = await p.reader.ask(PLATE, file)
        shared = {"AGENT_RAG__STORE_URL": redis.url, "AGENT_RAG__PROCESS_DIR": str(embedding_dir)}
        async with second_agent(p, tmp_path, **shared) as url, chat_reader(url, "key-one") as reader:
            second = await reader.ask(DEFROST, file)
        async with second_agent(p, tmp_path, **shared) as url, chat_reader(url, "key-one") as reader:
            third = await reader.ask("How long should I microwave popcorn?", file)
    assert "Using cached index" not in stage_of(first)
    assert "Using cached index" in stage_of(second)
    assert "Using cached index" in stage_of(third)
    assert p.upstream.requests[-1].messages[-1]["content"].startswith("Not in the document")


def stage_of(answer: Answer) -> str:
    return answer.stages[0].content


async def test_redis_may_go_and_come_back(tmp_path: Path) -> None:
    seconds = 0.0
    async with redis_server() as redis:
        store = RedisStore(redis.url, clock=lambda: seconds)
        await store.put("key", b"value", 60)
        assert await store.get("key") == b"value"
        await redis.stop()
        assert await store.get("key") is None
        await redis.start()
        assert await store.get("key") is None  # it rests
        seconds += 6
        await store.put("key", b"again", 60)
        assert await store.get("key") == b"again"
        await store.drop("key")
        assert await store.get("key") is None
        await store.close()


async def test_a_damaged_entry_in_redis_is_made_again(tmp_path: Path, embedding_dir: Path) -> None:
    from redis.asyncio import Redis

    turns = [searches, says("Soap [1]."), says("Soap.")] * 2
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


async def test_a_pdf_of_2000_pages_is_searched_with_the_right_page(embedding_dir: Path) -> None:
    content = text_pdf(2000, 3)
    readers, embedder = ReaderPool(), Embedder(embedding_dir)
    files = MemoryFiles({"files/b/long.pdf": content})
    shelf = Shelf(files, readers, embedder, DocumentCache.create(), limits=ShelfLimits(max_size=len(content)))
    opened = await shelf.open("files/b/long.pdf", Reader("key", "ann", "chat"))
    index = await shelf.indexed(opened, lambda progress: None)
    await readers.close()
    pages = [chunk.place.page for chunk in index.chunks]
    assert (pages[0], pages[-1]) == (1, 2000)
    assert len(set(pages)) == 2000


async def test_the_packaged_model_gives_the_vectors_of_its_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("TQDM_DISABLE", "1")
    texts = [manual()[:500], "short", "Температура от 20 до 25 °C. " * 40, "| a | b |\n| 1 | 2 |", "製造元は二年間"]
    from sentence_transformers import SentenceTransformer

    expected = SentenceTransformer(str(packaged_folder()), device="cpu").encode(texts, show_progress_bar=False)
    found = MiniLM(packaged_folder(), "float32").encode(texts)
    assert np.abs(expected - found).max() < 1e-5
    assert (found * MiniLM(packaged_folder(), "bfloat16").encode(texts)).sum(axis=1).min() > 0.999
