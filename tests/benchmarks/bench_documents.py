"""The cost of reading documents: pages of PDF, rows of CSV, and how long it stalls the server's streams.

Reading is measured in CPU seconds of this process, so that a busy machine changes little, and as a multiple of what
pdfium and Python's reader of CSV take for the same file alone; the stall in seconds on the clock of an event loop that
does nothing else. Figures are medians.
"""

import asyncio
import csv
import gc
import statistics
from collections.abc import Callable
from time import perf_counter, process_time

import psutil
import uvloop

from task.documents.extract import extract
from task.documents.model import pages_of
from task.documents.pool import ReaderPool
from task.documents.worker import YOUNG_OBJECTS
from tests.benchmarks.figures import Figure, quiet_machine, report
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


def cells(rows: int) -> bytes:
    return "\n".join(",".join(f"value {row}-{cell}" for cell in range(8)) for row in range(rows)).encode()


def seconds(work: Callable[[], object]) -> float:
    """The median of its CPU seconds."""

    def once() -> float:
        started = process_time()
        work()
        return process_time() - started

    once()
    return statistics.median(once() for _ in range(ROUNDS))


def read(name: str, content: bytes) -> float:
    """CPU seconds from the file to its pages."""
    return seconds(lambda: pages_of(extract(name, content)))


def of_pdf(name: str, content: bytes, bare_goal: float) -> list[Figure]:
    """Pages per second, and what a page costs beside pdfium's own loading of it and its text."""
    pages = int(extract("a.pdf", content).notes[0].split()[0].replace(",", ""))
    taken, bare = read("a.pdf", content) / pages, seconds(lambda: _by_pdfium(content)) / pages
    return [
        Figure(name, 1 / taken, "pages/s"),
        Figure(f"{name}: a page", taken * 1e3, "ms", bare=bare * 1e3, bare_goal=bare_goal),
    ]


def _by_pdfium(content: bytes) -> None:
    import pypdfium2 as pdfium

    with pdfium.PdfDocument(content) as document:
        for page in document:
            page.get_textpage().get_text_range()


async def stall() -> float:
    """The longest stall of the event loop while two processes read a large CSV and a long PDF."""
    readers, files = ReaderPool(), {"a.csv": cells(ROWS), "a.pdf": pdfs.many_pages_pdf(2_000)}
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


async def of_second_user() -> tuple[float, float]:
    """Seconds to the text of a user's document when the last one was the same user's, and when it was another's."""
    readers, content = ReaderPool(), prose(100)
    seconds: dict[bool, list[float]] = {True: [], False: []}
    await readers.extraction("a.pdf", content, owner="first")
    for number in range(2 * ROUNDS):
        await _until_idle()
        is_same = number % 2 == 0
        started = perf_counter()
        await readers.extraction("a.pdf", content, owner="first" if is_same else f"user {number}")
        seconds[is_same].append(perf_counter() - started)
    await readers.close()
    return statistics.median(seconds[True]), statistics.median(seconds[False])


async def _until_idle() -> None:
    # The next reader is started ahead of need; here need comes at once.
    last: list[float] = []
    while len(last) < 4 or len(set(last[-4:])) > 1:
        await asyncio.sleep(0.3)
        last.append(sum(sum(child.cpu_times()[:2]) for child in psutil.Process().children(recursive=True)))


def main() -> None:
    gc.set_threshold(YOUNG_OBJECTS)  # as in a reader's process
    quiet, table_rows = quiet_machine(), cells(ROWS)
    plain = seconds(lambda: list(csv.reader(table_rows.decode().splitlines())))
    same, other = uvloop.run(of_second_user())
    report([
        *of_pdf("PDF, prose, table detection on", prose(100), 1.25),
        *of_pdf("PDF, plain lines", pdfs.text_pdf(200), 1.6),
        *of_pdf("PDF, a ruled table on every page", table(1_000), 9),
        Figure(f"CSV, {ROWS:,} rows of 8 to pages", read("a.csv", table_rows), "s", bare=plain, bare_goal=3),
        Figure("longest stall while documents are read", uvloop.run(stall()) * 1e3, "ms", 50, judged=quiet),
        Figure("a second user's PDF of 100 pages, beside the same user's", other * 1e3, "ms", bare=same * 1e3,
               bare_goal=1.2, judged=quiet),
    ])  # fmt: skip


if __name__ == "__main__":
    main()
