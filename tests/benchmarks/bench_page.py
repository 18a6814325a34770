"""The web page in Debian's chromium: how soon it is painted, what it loads, whether a technical answer holds it up, and
how soon a long conversation can be read and continued. Without chromium nothing is measured.
"""

import shutil
import statistics
import sys
from pathlib import Path
from time import perf_counter

from playwright.async_api import expect

from task.api.identity import LOCAL_OWNER
from task.conversation.messages import assistant, user
from task.llm.scripted import says
from task.store.access import StoreOptions
from task.store.store import open_store
from tests.benchmarks.figures import Figure, measure_and_report, quiet_machine
from tests.support.browser import visit
from tests.support.http_api import http_api
from tests.support.web import TECHNICAL, WATCHED, person

LOADS, PARTS, PIECE = 7, 30, 6
PAINTED = """() => new Promise((done) => new PerformanceObserver((list) => {
    const [paint] = list.getEntriesByName("first-contentful-paint");
    if (paint) done(paint.startTime);
}).observe({ type: "paint", buffered: true }))"""
LOADED = """performance.getEntries().filter((entry) => entry.transferSize !== undefined && !entry.name.includes("/v1/"))
    .reduce((sum, entry) => sum + entry.encodedBodySize, 0)"""
MESSAGES, REPEATS = 500, 5
ANSWER = "The answer has **bold words**, a list:\n\n- one\n- two\n\nand `code`.\n\n```python\nprint('hello')\n```\n"


async def rendering(folder: Path) -> list[Figure]:
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
        Figure("page: first paint", statistics.median(paints), "ms", 120, judged=judged),
        Figure(f"page: tasks over 50 ms, {len(chunks)} chunks", len(tasks), "tasks", 0.8, judged=judged),
        Figure("page: the longest of them", max(tasks, default=0), "ms", judged=judged),
    ]


async def long_conversation(folder: Path) -> list[Figure]:
    async with http_api(tmp_path=folder) as api:
        session_id = await _kept(folder)
        async with visit(api.url) as visited:
            seconds = list[float]()
            for _ in range(REPEATS):
                await visited.page.goto(f"{api.url}/#/")
                await visited.page.wait_for_selector(".welcome:not([hidden])")
                started = perf_counter()
                await visited.page.evaluate("id => { location.hash = `#/c/${id}`; }", session_id)
                await visited.page.wait_for_selector(f"text=Question {MESSAGES // 2}.")
                await visited.page.wait_for_selector(".answer:last-child strong")
                seconds.append(perf_counter() - started)
    name = f"page: a conversation of {MESSAGES} messages opened"
    return [Figure(name, statistics.median(seconds) * 1e3, "ms", 500, judged=quiet_machine())]


async def _kept(folder: Path) -> str:
    store = await open_store(StoreOptions(f"sqlite:///{folder / 'agent' / 'store.db'}", chores=False))
    try:
        session = await store.sessions.start(LOCAL_OWNER, "Long", "page")
        asked = range(1, MESSAGES // 2 + 1)
        messages = [message for n in asked for message in (user(f"Question {n}."), assistant(ANSWER))]
        await store.sessions.append(LOCAL_OWNER, session.session_id, messages, session.version)
        return session.session_id
    finally:
        await store.close()


async def measured(folder: Path) -> list[Figure]:
    (long := folder / "long").mkdir()
    (short := folder / "short").mkdir()
    return [*await long_conversation(long), *await rendering(short)]


if __name__ == "__main__":
    if shutil.which("chromium") is None:
        print("there is no chromium: the page was not measured", file=sys.stderr)
    else:
        measure_and_report(measured)
