"""Several things are closed, whatever becomes of each; synchronous calls of several threads share one loop."""

import asyncio
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from task.closing import close_all
from task.llm.scripted import says
from tests.support.http_api import http_api

BROKEN_TOOL = """
from task.tools.base import BaseTool

class Broken(BaseTool):
    name, description, parameters = "broken", "Breaks at its end.", {"type": "object", "properties": {}}

    async def _execute(self, tool_call_params):
        return "fine"

    async def close(self):
        raise OSError("already gone")

tool = Broken()
"""


async def test_what_fails_or_hangs_keeps_nothing_else_open(caplog: pytest.LogCaptureFixture) -> None:
    closed: list[str] = []

    async def hangs() -> None:
        closed.append("hangs")
        await asyncio.get_running_loop().create_future()

    async def fails() -> None:
        closed.append("fails")
        raise OSError("gone")

    async def closes() -> None:
        closed.append("closes")

    await close_all(hangs, fails, closes, seconds=0.01)
    assert closed == ["hangs", "fails", "closes"]
    assert [record.exc_info[0] for record in caplog.records if record.exc_info] == [TimeoutError, OSError]


async def test_a_tool_that_breaks_at_its_end_closes_the_store(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "broken.py").write_text(BROKEN_TOOL)
    async with http_api(says("hi"), tmp_path=tmp_path, tool_paths=[str(tmp_path / "broken.py")]) as api:
        assert (await api.complete("?")).status == 200
    assert "already gone" in caplog.text
    with closing(sqlite3.connect(tmp_path / "agent" / "store.db")) as database:
        assert database.execute("SELECT count(*) FROM processes").fetchone() == (0,)


FIRST_CALLS = """
import asyncio, sys
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from task.closing import run_blocking

async def loop():
    return id(asyncio.get_running_loop())

def call(_):
    together.wait(30)
    return run_blocking(loop)

sys.setswitchinterval(1e-6)
together = Barrier(16)
with ThreadPoolExecutor(16) as threads:
    print(len(set(threads.map(call, range(16)))))
"""


def test_first_calls_of_several_threads_share_one_loop() -> None:
    found = subprocess.run([sys.executable, "-c", FIRST_CALLS], capture_output=True, text=True, timeout=60, check=True)
    assert found.stdout == "1\n"
