"""The cost of search in documents: indexing against the library's defaults, a warm question, stalls, memory.

How answers stream while a document is indexed is read from the whole agent; it is not judged where its streams falter
without any indexing.
"""

import asyncio
import gc
import statistics
from itertools import pairwise
from pathlib import Path
from time import perf_counter, process_time

import psutil
import uvloop

from task.documents.model import Block
from task.embedding.embedder import Embedder
from task.search.chunks import ChunkedDocument, chunk_document
from task.search.passages import passages
from task.search.ranking import DocumentIndex, build_index, indexed_texts, search
from task.search.shelf import DocumentCache
from tests.benchmarks import processes
from tests.benchmarks.bench_agent import ROUTE
from tests.benchmarks.figures import Figure, measure_and_report, quiet_machine
from tests.benchmarks.load import Load, request
from tests.benchmarks.upstream import NOUNS, prose

ROUNDS, QUESTIONS, DOCUMENTS = 3, 40, 200
CHUNKS, MANY_CHUNKS, CHUNK_CHARS = 160, 20_000, 455
LIVE_CHARACTERS, STREAMS, WORDS, PAUSE_MS, ANSWER_SECONDS = 150_000, 4, 150, 20, 300
STALL = 0.05
TICK = 0.001
CACHE_BYTES = 16 * 2**20


def document(number: int, chunks: int) -> ChunkedDocument:
    """Prose of about this many chunks, all different."""
    return chunk_document(f"manual-{number}.txt", [Block(prose(number, chunks * CHUNK_CHARS))])


async def indexing(embedder: Embedder) -> tuple[float, float]:
    """Chunks per second, and per second of the processors."""
    texts = indexed_texts(document(0, CHUNKS))
    rates: list[tuple[float, float]] = []
    for _ in range(ROUNDS):
        started, worked = perf_counter(), process_time()
        await embedder.embed(texts)
        rates.append((len(texts) / (perf_counter() - started), len(texts) / (process_time() - worked)))
    return statistics.median(rate for rate, _ in rates), statistics.median(rate for _, rate in rates)


async def warm_question(embedder: Embedder, index: DocumentIndex) -> float:
    """Median seconds from a question to the excerpts the model will read."""
    times: list[float] = []
    for number in range(QUESTIONS):
        question = f"How is the {NOUNS[number % len(NOUNS)]}{number} repaired?"
        started = perf_counter()
        [vector] = await embedder.embed([question])
        hits = await asyncio.to_thread(search, [index], question, vector)
        passages([index.document], hits, k=3, tokens=1500)
        times.append(perf_counter() - started)
    return statistics.median(times)


async def made(embedder: Embedder, chunked: ChunkedDocument) -> DocumentIndex:
    vectors = await embedder.embed(await asyncio.to_thread(indexed_texts, chunked))
    return await asyncio.to_thread(build_index, chunked, vectors)


async def stall() -> float:
    """The longest stall of the event loop while a very long document is chunked, indexed and packed.

    Of such a time as much counts as this process worked in it; the rest was taken by others.
    """
    text, longest = await asyncio.to_thread(prose, 0, MANY_CHUNKS * CHUNK_CHARS), 0.0
    gc.freeze()  # as the server does, so that the collector skips the libraries
    work = asyncio.create_task(asyncio.to_thread(_kept, text))
    while not work.done():
        started, worked = perf_counter(), process_time()
        await asyncio.sleep(TICK)
        longest = max(longest, min(perf_counter() - started - TICK, process_time() - worked))
    await work
    return longest


def _kept(text: str) -> None:
    import numpy as np

    chunked = chunk_document("manual.txt", [Block(text)])
    vectors = np.full((len(chunked.chunks), 384), 384**-0.5, dtype=np.float32)
    build_index(chunked, vectors)
    vectors.astype("<f4").tobytes()


async def streams(load: Load) -> list[float]:
    """Seconds between words beyond what the upstream left between them, of answers that stream at the same time."""
    answers = await load.ask_at_once(request(ROUTE, f"paced {WORDS} {PAUSE_MS}"), STREAMS)
    times = [answer.arrivals for answer in answers]
    assert {len(arrivals) for arrivals in times} == {WORDS}
    return [later - earlier - PAUSE_MS / 1000 for arrivals in times for earlier, later in pairwise(arrivals)]


async def live(folder: Path) -> list[Figure]:
    """How evenly answers stream from the agent while it has a new document searched: the gaps that a reader sees."""
    alone, beside = list[float](), list[float]()
    gaps = 0
    async with (
        processes.upstream(str(LIVE_CHARACTERS), core=None) as upstream,
        processes.application(upstream, folder, core=None) as app,
    ):
        await app.at_rest()
        load = Load(app.port)
        await load.ask(request(ROUTE, "search 0"), ANSWER_SECONDS)  # loads the model
        for number in range(1, ROUNDS + 1):
            alone.append(max(await streams(load)))
            searching = asyncio.create_task(load.ask(request(ROUTE, f"search {number}"), ANSWER_SECONDS))
            found = list[float]()
            while not searching.done():
                found += await streams(load)
            await searching
            beside.append(max(found))
            gaps += sum(gap > STALL for gap in found)
        load.close()
    quiet, indexing = statistics.median(alone), statistics.median(beside)
    return [
        Figure(
            "longest gap in live answers while indexing", indexing * 1e3, "ms", STALL * 1e3, judged=quiet <= STALL / 2
        ),
        Figure("the same without indexing", quiet * 1e3, "ms"),
        Figure(f"gaps over {STALL * 1e3:.0f} ms while indexing", gaps, ""),
    ]


async def cold_search(folder: Path) -> float:
    """Median seconds of the first answer of a new agent, whose model searches the attached document at once."""
    attached, taken = {"type": "text/plain", "title": "manual-0.txt", "url": "files/b1/manual-0.txt"}, list[float]()
    async with processes.upstream(core=None) as upstream:
        for _ in range(ROUNDS):
            async with processes.application(upstream, folder, core=None) as app:
                await app.at_rest()
                load = Load(app.port)
                taken.append((await load.ask(request(ROUTE, "search 0", attached=[attached]), ANSWER_SECONDS)).seconds)
                load.close()
    return statistics.median(taken)


def memory(index: DocumentIndex) -> tuple[float, float]:
    """Bytes the process grew by, and bytes the cache counts, after indexes of 200 documents went through it."""
    process, cache = psutil.Process(), DocumentCache.create(max_bytes=CACHE_BYTES)
    vectors = index.dense.reconstruct_n(0, index.dense.ntotal)
    before = 0
    for number in range(DOCUMENTS):
        chunked = document(number, CHUNKS)
        cache.set_index(str(number), build_index(chunked, vectors[: len(chunked.chunks)]))
        before = before or process.memory_info().rss
    return process.memory_info().rss - before, cache.size_bytes


async def measured(folder: Path) -> list[Figure]:
    embedder, quiet = Embedder(), quiet_machine()
    before, started = psutil.Process().memory_info().rss, perf_counter()
    await embedder.embed(["ready"])
    start = perf_counter() - started
    index = await made(embedder, document(0, CHUNKS))
    question = await warm_question(embedder, index)
    resident = psutil.Process().memory_info().rss - before
    rate, worked = await indexing(embedder)
    await embedder.close()
    grown, counted = memory(index)
    streaming = await live(folder)
    cold = await cold_search(folder)
    return [
        Figure("indexing", rate, "chunks/s"),
        Figure("indexing, of a processor", worked, "chunks/s"),
        Figure("warm question until its excerpts are there", question * 1e3, "ms", 30),
        *streaming,
        Figure(f"longest stall of the loop, {MANY_CHUNKS:,} chunks", await stall() * 1e3, "ms", 50),
        Figure(f"memory after {DOCUMENTS} documents ÷ the cache's bytes", grown / CACHE_BYTES, "", 2),
        Figure("what the cache counts ÷ its bytes", counted / CACHE_BYTES, "", 1),
        Figure("embedding model, first vectors after", start, "s"),
        Figure("first search of a new agent, document attached", cold, "s", 1.5, judged=quiet),
        Figure("embedding model, memory", resident / 2**20, "MB"),
    ]


if __name__ == "__main__":
    measure_and_report(measured, uvloop.run)
