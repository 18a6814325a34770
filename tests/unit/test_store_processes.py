"""Which processes of the store still run."""

from __future__ import annotations

import os
import subprocess
import sys

from task.store import processes


def test_a_killed_process_that_nobody_has_awaited_is_dead() -> None:
    running = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    place = processes._place(running.pid)  # pyright: ignore[reportPrivateUsage]
    assert not processes._known_dead(place)  # pyright: ignore[reportPrivateUsage]
    running.kill()
    os.waitid(os.P_PID, running.pid, os.WEXITED | os.WNOWAIT)
    assert processes._known_dead(place)  # pyright: ignore[reportPrivateUsage]
    running.communicate()
