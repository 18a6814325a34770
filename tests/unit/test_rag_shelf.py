"""Indexes by content, found only by callers who prove that they may read the file."""

import asyncio
from dataclasses import dataclass, field

import pytest

from task.core_client.models import Caller
from task.embedding.embedder import Embedder
from task.embedding.weights import MODEL_NAME
from task.errors import ToolError
from task.search.ranking import DocumentIndex
from task.search.readings import Readings
from task.search.shelf import MAX_CHUNKS, DocumentCache, Shelf
from tests.support.documents import DirectReaders, MemoryFiles, MemoryStore, SlowFiles, manual
from tests.support.embedding import WordVectors
from tests.support.tool_calls import caller_of
from tests.support.waiting import until

MANUAL = "files/bucket/manual.txt"
ANN = caller_of("ann", "chat-1", "key-ann")
BOB = caller_of("bob", "chat-2", "key-bob")


@dataclass
class Library:
    files: MemoryFiles = field(default_factory=lambda: MemoryFiles({MANUAL: manual().encode()}))
    vectors: WordVectors = field(default_factory=WordVectors)
    readers: DirectReaders = field(default_factory=DirectReaders)
    store: MemoryStore = field(default_factory=MemoryStore)
    max_chunks: int = MAX_CHUNKS
    shelf: Shelf = field(init=False)
    waiting: int = 0  # callers who have opened the document and want its index

    def __post_init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Another process with the same store: nothing is left in memory."""
        readings = Readings(self.files, self.readers, store=self.store)
        self.shelf = Shelf(readings, self.vectors, DocumentCache.create(), max_chunks=self.max_chunks)

    async def index(self, caller: Caller, url: str = MANUAL, news: list[int] | None = None) -> DocumentIndex:
        opened = await self.shelf.open(url, caller)
        self.waiting += 1
        return await self.shelf.indexed(opened, (news if news is not None else []).append)

    @property
    def done(self) -> tuple[int, int]:
        """Downloads and embedded documents so far."""
        return len(self.files.downloads), self.vectors.calls


async def test_a_file_is_downloaded_by_each_user_and_embedded_once() -> None:
    library = Library()
    first = await library.index(ANN)
    opened = await library.shelf.open(MANUAL, ANN)
    assert opened.index is not None
    assert library.done == (1, 1)
    assert [str(chunk) for chunk in first.chunks] == [str(chunk) for chunk in opened.index.chunks]

    library = Library()
    await library.index(ANN)
    await library.index(BOB)
    assert library.done == (2, 1)

    bare = Library(MemoryFiles({MANUAL: manual().encode()}, has_etags=False))
    await bare.index(ANN)
    await bare.index(ANN)
    assert bare.done == (2, 1)


async def test_an_index_of_another_engine_is_made_again_once(monkeypatch: pytest.MonkeyPatch) -> None:
    library = Library()
    await library.index(ANN)
    assert Embedder().model_name != MODEL_NAME, "as the former engine's vectors were called"
    monkeypatch.setattr(WordVectors, "model_name", "words 2")
    await library.index(ANN)
    await library.index(ANN)
    assert library.done[1] == 2


@pytest.mark.fault("search in documents: access withdrawn")
async def test_what_is_kept_gives_no_access_and_names_no_user() -> None:
    library = Library()
    await library.index(ANN)
    library.files.readers[MANUAL] = {"key-bob"}
    with pytest.raises(ToolError, match="No access"):
        await library.shelf.open(MANUAL, ANN)
    assert library.done == (1, 1)

    library = Library()
    await library.index(ANN)
    library.files.readers[MANUAL] = {"key-ann"}
    library.restart()
    with pytest.raises(ToolError):
        await library.shelf.open(MANUAL, BOB)

    library = Library()
    await library.index(ANN)
    stored = " ".join(library.store.values)
    assert not any(word in stored for word in ("ann", "chat-1", "manual", "bucket"))


@pytest.mark.fault("search in documents: a file that changed between two questions")
async def test_a_file_of_other_content_or_name_is_read_again_and_indexed_once() -> None:
    library = Library()
    await library.index(ANN)
    library.files.contents[MANUAL] = b"# New\n\n" + b"The oven was replaced by a stove. " * 400
    index = await library.index(ANN)
    assert "stove" in index.document.text
    assert library.done == (2, 2)

    library = Library(MemoryFiles({MANUAL: manual().encode(), "files/b/copy.txt": manual().encode()}))
    await library.index(ANN)
    index = await library.index(ANN, "files/b/copy.txt")
    assert index.document.name == "copy.txt"
    assert library.done == (2, 1)


@pytest.mark.fault("search in documents: the first of two callers leaves with its key")
async def test_a_download_fails_with_its_own_caller_only() -> None:
    files = SlowFiles({MANUAL: manual().encode()})
    library = Library(files)
    ann, bob = (asyncio.create_task(library.index(requester)) for requester in (ANN, BOB))
    await until(lambda: len(files.started) == 2)
    files.readers[MANUAL] = {"key-bob"}  # a request that has ended takes its key with it
    files.gate.set()
    async with asyncio.timeout(20):
        assert (await bob).chunks
        with pytest.raises(ToolError, match="No access"):
            await ann


@pytest.mark.fault("search in documents: two requests that index one file")
async def test_two_requests_for_one_content_index_once_and_one_receives_progress() -> None:
    library = Library()
    library.vectors.gate.clear()
    news: list[int] = []
    both = [asyncio.create_task(library.index(requester, news=news)) for requester in (ANN, BOB)]
    await until(lambda: library.vectors.calls == 1)
    library.vectors.gate.set()
    async with asyncio.timeout(20):
        index, _ = await asyncio.gather(*both)
    assert library.vectors.calls == 1
    assert news == sorted(set(news))
    assert news[-1] == len(index.chunks)


@pytest.mark.fault("search in documents: a caller who leaves while a file is indexed")
async def test_indexing_continues_when_one_caller_leaves_and_stops_with_the_last() -> None:
    library = Library()
    library.vectors.gate.clear()
    ann, bob = (asyncio.create_task(library.index(requester)) for requester in (ANN, BOB))
    await until(lambda: library.vectors.calls == 1 and library.waiting == 2)
    ann.cancel()
    await asyncio.wait({ann}, timeout=10)
    assert library.vectors.cancelled == 0
    bob.cancel()
    await asyncio.wait({bob}, timeout=10)
    assert library.vectors.cancelled == 1


@pytest.mark.fault("search in documents: a damaged entry of the store")
@pytest.mark.parametrize(("kind", "made"), [("index:", (1, 2)), ("text:", (2, 1))])
async def test_a_damaged_entry_of_the_store_is_dropped_and_made_again(kind: str, made: tuple[int, int]) -> None:
    library = Library()
    await library.index(ANN)
    [key] = [key for key in library.store.values if key.startswith(kind)]
    library.store.values[key] = library.store.values[key][:-9]
    for _ in range(2):
        library.restart()
        await library.index(ANN)
        assert library.done == made


@pytest.mark.fault("search in documents: a very long document")
async def test_a_very_long_document_is_cut_and_noted() -> None:
    library = Library(max_chunks=10)
    index = await library.index(ANN)
    assert len(index.chunks) == 10
    assert "only the first 10 of" in index.document.notes[-1]
