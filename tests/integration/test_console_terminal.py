"""The user interface on its own in a terminal: what it does when the rest of the console fails it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tests.support.terminal import terminal
from tests.support.up import ROOT

FAILING_STATUS = """
from task.console.ui_manager import PermissionQuestion, UserInterfaceManager

def gone():
    raise RuntimeError("the conversation is closed")

ui = UserInterfaceManager({})
assert ui.get_user_input() == "Hi"
ui.status = gone
assert ui.ask_permission(PermissionQuestion({}, {}), 1, lambda: False) is None
ui.close()
print("closed")
"""


async def test_a_line_of_status_that_fails_keeps_nobody_waiting(tmp_path: Path) -> None:
    environ = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PYTHONPATH": str(ROOT)}
    async with terminal([sys.executable, "-c", FAILING_STATUS], environ, tmp_path) as window:
        await window.wait_for(">")
        await window.send("Hi\r")
        await window.wait_for("closed")
        assert await window.ended() == 0
