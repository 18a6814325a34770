"""How soon the web page is painted and what it loads, and whether a technical answer holds it up: with chromium."""

from __future__ import annotations

import asyncio
import shutil
import statistics
import sys
import tempfile
from pathlib import Path

from playwright.async_api import expect

from task.llm.scripted import says
from tests.benchmarks.figures import Figure, quiet_machine, report
from tests.support.web import TECHNICAL, WATCHED, person

LOADS, PARTS, PIECE = 7, 30, 6
PAINTED = """() => new Promise((done) => new PerformanceObserver((list) => {
    const [paint] = list.getEntriesByName("first-contentful-paint");
    if (paint) done(paint.startTime);
}).observe({ type: "paint", buffered: true }))"""
LOADED = """performance.getEntries().filter((entry) => entry.transferSize !== undefined && !entry.name.includes("/v1/"))
    .reduce((sum, entry) => sum + entry.encodedBodySize, 0)"""


async def measured(folder: Path) -> list[Figure]:
    text = TECHNICAL * PARTS
    chunks = [text[place : place + PIECE] for place in range(0, len(text), PIECE)]
    async with person(says(*chunks, pause=0.005), tmp_path=folder) as p:
        await expect(p.field).to_be_visible()
        size = await p.page.evaluate(LOADED)
        await p.page.context.unroute_all()  # the check that nothing leaves this machine takes longer than the page
        paints: list[float] = []
        for _ in range(LOADS):
            await p.page.reload()
            paints.append(await p.page.evaluate(PAINTED))
        await p.page.evaluate(WATCHED)
        await p.asks("Explain")
        await expect(p.prose.locator(".katex-display")).to_have_count(PARTS)
        tasks = await p.page.evaluate("window.longTasks")
    judged = quiet_machine()
    return [
        Figure("page: loaded before the first answer", size / 1000, "kB", 120),
        Figure("page: first paint", statistics.median(paints), "ms", 150, judged=judged),
        Figure(f"page: tasks over 50 ms, {len(chunks)} chunks", len(tasks), "tasks", 0.8, judged=judged),
        Figure("page: the longest of them", max(tasks, default=0), "ms", judged=judged),
    ]


def main() -> None:
    if shutil.which("chromium") is None:
        print("there is no chromium: the page was not measured", file=sys.stderr)
        return
    with tempfile.TemporaryDirectory() as folder:
        report(asyncio.run(measured(Path(folder))))


if __name__ == "__main__":
    main()
