"""Each content is read once, whichever tool and agent asks for it."""

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack

import pytest

from task.documents.model import Block, Extraction, packed, unpacked
from task.llm.base import ChatModel
from task.llm.scripted import ScriptedModel, says
from task.search.readings import Readings
from task.search.shelf import DocumentCache
from task.shared.redis_store import RedisStore
from task.tools.base import BaseTool
from task.tools.files.file_content_extraction_tool import FileContentExtractionTool
from task.tools.rag.rag_tool import RagTool
from tests.support.documents import DirectReaders, MemoryFiles, manual
from tests.support.embedding import WordVectors
from tests.support.redis_peer import redis_peer
from tests.support.tool_calls import called, caller_of

MANUAL = "files/bucket/manual.txt"
COPY = "files/bucket/copy.txt"


def files() -> MemoryFiles:
    return MemoryFiles({MANUAL: manual().encode(), COPY: manual().encode()})


def tools_over(readings: Readings) -> tuple[BaseTool, BaseTool]:
    """Both tools that read documents, as one product has them."""
    model: ChatModel = ScriptedModel(says("Wash it in warm soapy water [1]."))
    searching = RagTool(
        "http://core", "writer", DocumentCache.create(), readings=readings, embedder=WordVectors(),
        model=lambda name, caller: model,
    )  # fmt: skip
    return FileContentExtractionTool("http://core", readings=readings), searching


async def ask_both(tools: Sequence[BaseTool], url: str = MANUAL) -> None:
    reading, searching = tools
    assert "OWNER'S MANUAL" in (await called(reading, file_url=url)).text()
    assert "soapy water" in (await called(searching, file_url=url, request="How is the tray washed?")).text()


async def test_pages_and_search_read_a_file_once() -> None:
    readers, stored = DirectReaders(), files()
    await ask_both(tools_over(Readings(stored, readers)))
    assert (readers.calls, stored.downloads) == (1, [MANUAL])


async def test_two_agents_read_a_file_once_through_redis() -> None:
    readers, stored = DirectReaders(), files()
    async with redis_peer() as redis, AsyncExitStack() as stack:
        stores = [RedisStore(redis.url) for _ in range(2)]
        agents = [Readings(stored, readers, store=store) for store in stores]
        for store in stores:
            stack.push_async_callback(store.close)
        for readings in agents:
            stack.push_async_callback(readings.close)
        reading, _ = tools_over(agents[0])
        _, searching = tools_over(agents[1])
        await called(reading, file_url=MANUAL)
        await called(searching, file_url=MANUAL, request="How is the tray washed?")
    assert (readers.calls, stored.downloads) == (1, [MANUAL])


@pytest.mark.fault("readers: two requests extracting one file at once")
async def test_calls_at_the_same_time_share_the_reading() -> None:
    readers, stored = DirectReaders(), files()
    readings = Readings(stored, readers)
    found = [await readings.find(MANUAL, caller_of(key)) for key in ("ann", "bob", "eve")]
    async with asyncio.timeout(25):
        texts = await asyncio.gather(*map(readings.read, found))
    assert len({key for key, _ in texts}) == 1
    assert (readers.calls, len(stored.downloads)) == (1, 3)


async def test_a_file_that_changes_before_it_is_downloaded_is_kept_as_what_it_is() -> None:
    stored = files()
    readings = Readings(stored, DirectReaders())
    ann = caller_of("ann")
    found = await readings.find(MANUAL, ann)
    stored.contents[MANUAL] = b"Something else."
    _, text = await readings.read(found)
    assert text.text == "Something else."
    stored.contents[MANUAL] = manual().encode()
    _, text = await readings.read(await readings.find(MANUAL, ann))
    assert "OWNER'S MANUAL" in text.text


async def test_a_text_larger_than_the_memory_for_texts_is_read_but_not_kept() -> None:
    stored, readers = files(), DirectReaders()
    readings = Readings(stored, readers, cache_bytes=1000)
    for _ in range(2):
        _, text = await readings.read(await readings.find(MANUAL, caller_of("ann")))
        assert "OWNER'S MANUAL" in text.text
    assert readers.calls == 2


@pytest.mark.parametrize("text", ["plain", "two\nlines", "a lost letter \ufffd", "漢字 😀"])
def test_a_text_survives_as_bytes(text: str) -> None:
    found = Extraction((Block(text, "a | b", 3), Block("x")), ("a note",))
    assert unpacked(packed(found)) == found
