"""The cost of reading documents: pages of PDF, rows of CSV, and how long it stalls the server's streams.

Reading is measured in CPU seconds of this process, so that a busy machine changes little; the stall in seconds on the
clock of an event loop that does nothing else. Figures are medians.
"""

from __future__ import annotations

import asyncio
import gc
import statistics
from collections.abc import Callable
from time import perf_counter, process_time

import uvloop

from task.documents.extract import extract
from task.documents.model import pages_of
from task.documents.pool import ReaderPool
from task.documents.worker import YOUNG_OBJECTS
from tests.benchmarks.figures import Figure, report
from tests.support import pdfs

ROUNDS = 5
TICK = 0.001
ROWS = 100_000
SENTENCE = "The quick brown fox jumps over <b>the lazy dog</b> in the morning. "


def prose(pages: int) -> bytes:
    """Justified text with words in bold, about 45 lines a page, as office programs write it."""
    return pdfs.flowing_pdf(*[pdfs.paragraph(SENTENCE * 12) for _ in range(pages * 6)])


def table(rows: int) -> bytes:
    return pdfs.flowing_pdf(pdfs.ruled([[f"row {row} cell {cell}" for cell in range(5)] for row in range(rows)]))


def csv(rows: int) -> bytes:
    return "\n".join(",".join(f"value {row}-{cell}" for cell in range(8)) for row in range(rows)).encode()


def seconds(name: str, content: bytes) -> float:
    """CPU seconds from the file to its pages."""

    def once() -> float:
        started = process_time()
        pages_of(extract(name, content))
        return process_time() - started

    return median(once)


def median(measure: Callable[[], float]) -> float:
    measure()
    return statistics.median(measure() for _ in range(ROUNDS))


def pages_per_second(content: bytes) -> float:
    pages = int(extract("a.pdf", content).notes[0].split()[0].replace(",", ""))
    return pages / seconds("a.pdf", content)


async def stall() -> float:
    """The longest stall of the event loop while two processes read a large CSV and a long PDF."""
    readers, files = ReaderPool(), {"a.csv": csv(ROWS), "a.pdf": pdfs.many_pages_pdf(2_000)}
    longest: list[float] = []
    for _ in range(ROUNDS):
        reading = asyncio.gather(*(readers.extraction(name, content) for name, content in files.items()))
        longest.append(0.0)
        while not reading.done():
            started = perf_counter()
            await asyncio.sleep(TICK)
            longest[-1] = max(longest[-1], perf_counter() - started - TICK)
        await reading
    await readers.close()
    return statistics.median(longest)


def main() -> None:
    gc.set_threshold(YOUNG_OBJECTS)  # as in a reader's process
    report([
        Figure("PDF, prose, table detection on", pages_per_second(prose(100)), "pages/s", 300, at_least=True),
        Figure("PDF, plain lines", pages_per_second(pdfs.text_pdf(200)), "pages/s", 300, at_least=True),
        Figure("PDF, a ruled table on every page", pages_per_second(table(1_000)), "pages/s"),
        Figure(f"CSV, {ROWS:,} rows of 8 to pages", seconds("a.csv", csv(ROWS)), "s", 1.0),
        Figure("longest stall while documents are read", uvloop.run(stall()) * 1e3, "ms", 50),
    ])  # fmt: skip


if __name__ == "__main__":
    main()
