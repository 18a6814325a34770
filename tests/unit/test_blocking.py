"""Synchronous calls of several threads run in one background loop."""

from __future__ import annotations

import subprocess
import sys

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
