"""How soon a long conversation can be read and continued on the page, in Debian's chromium.

`python -m tests.benchmarks.bench_page`; without chromium it measures nothing.
"""

from __future__ import annotations

import asyncio
import shutil
import statistics
import tempfile
from pathlib import Path
from time import perf_counter

from task.api.identity import LOCAL_OWNER
from task.conversation.messages import assistant, user
from task.store.store import open_store
from tests.benchmarks.figures import Figure, quiet_machine, report
from tests.support.browser import visit
from tests.support.http_api import http_api

MESSAGES, REPEATS = 500, 5
ANSWER = "The answer has **bold words**, a list:\n\n- one\n- two\n\nand `code`.\n\n```python\nprint('hello')\n```\n"


async def measure(folder: Path) -> list[Figure]:
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
    store = await open_store(f"sqlite:///{folder / 'agent' / 'store.db'}", chores=False)
    try:
        session = await store.sessions.start(LOCAL_OWNER, "Long", "page")
        asked = range(1, MESSAGES // 2 + 1)
        messages = [message for n in asked for message in (user(f"Question {n}."), assistant(ANSWER))]
        await store.sessions.append(LOCAL_OWNER, session.session_id, messages, session.version)
        return session.session_id
    finally:
        await store.close()


def main() -> None:
    if shutil.which("chromium") is None:
        return
    with tempfile.TemporaryDirectory() as folder:
        report(asyncio.run(measure(Path(folder))))


if __name__ == "__main__":
    main()
