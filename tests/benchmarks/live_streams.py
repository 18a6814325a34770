"""How evenly answers stream from the agent while it indexes a document: the gaps that a reader sees."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from time import perf_counter

from tests.benchmarks import processes
from tests.benchmarks.load import request
from tests.benchmarks.upstream import WORD

ROUTE = "/openai/deployments/general-purpose-agent/chat/completions"
STREAMS, WORDS, PAUSE_MS = 4, 150, 20
STALL = 0.05
SECONDS = 300  # for one answer, indexing included
_WORD, _END = WORD.encode(), b"0\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Gaps:
    """Seconds between words beyond what the upstream left between them, of all answers that were read."""

    seconds: Sequence[float]

    @property
    def longest(self) -> float:
        return max(self.seconds)

    @property
    def stalls(self) -> int:
        return sum(gap > STALL for gap in self.seconds)


async def quiet_and_indexing(folder: Path, characters: int, rounds: int) -> list[tuple[Gaps, Gaps]]:
    """In each round the gaps of streams alone, and of streams beside one that has a new document searched."""
    async with (
        processes.upstream(str(characters), core=None) as upstream,
        processes.application(upstream, folder, core=None, AGENT_RAG__PROCESS_DIR=str(folder / "embedder")) as app,
    ):
        await app.at_rest()
        await _words(app.port, "search 0")  # loads the model
        return [await _round(app.port, number) for number in range(1, rounds + 1)]


async def _round(port: int, number: int) -> tuple[Gaps, Gaps]:
    alone = await _streams(port)
    searching = asyncio.create_task(_words(port, f"search {number}"))
    beside: list[float] = []
    while not searching.done():
        beside += await _streams(port)
    await searching
    return Gaps(alone), Gaps(beside)


async def _streams(port: int) -> list[float]:
    answers = await asyncio.gather(*(_words(port, f"paced {WORDS} {PAUSE_MS}") for _ in range(STREAMS)))
    assert {len(times) for times in answers} == {WORDS}
    return [later - earlier - PAUSE_MS / 1000 for times in answers for earlier, later in pairwise(times)]


async def cold_searches(folder: Path, rounds: int) -> tuple[float, float]:
    """Median seconds of the first answer of a new agent, whose model decides to search: document attached, or not."""
    url = "files/b1/manual-0.txt"
    document = {"type": "text/plain", "title": "manual-0.txt", "url": url}
    taken: dict[bool, list[float]] = {True: [], False: []}
    place = str(folder / "cold")
    async with processes.upstream(core=None) as upstream:
        for attached in (True, False) * rounds:
            async with processes.application(upstream, folder, core=None, AGENT_RAG__PROCESS_DIR=place) as app:
                await app.at_rest()
                started = perf_counter()
                await _words(app.port, "consider 0", [document] if attached else [])
                taken[attached].append(perf_counter() - started)
    return median(taken[True]), median(taken[False])


async def _words(port: int, script: str, attached: Sequence[object] = ()) -> list[float]:
    """The times at which the words of an answer arrived."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request(ROUTE, script, attached=attached))
    times: list[float] = []
    data = b""
    async with asyncio.timeout(SECONDS):
        while not data.endswith(_END):
            data = await reader.read(65_536)
            times += [perf_counter()] * data.count(_WORD)
    writer.close()
    return times
