"""Control sequences of a text are recognised on the screen of the tests' terminal."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.support.terminal import Terminal, terminal


@asynccontextmanager
async def program(text: str, folder: Path, columns: int = 70) -> AsyncGenerator[Terminal]:
    async with terminal([sys.executable, "-c", text], {"PATH": os.environ["PATH"]}, folder, columns=columns) as window:
        yield window


async def test_sequences_of_a_text_are_told_from_a_line_editors_own(tmp_path: Path) -> None:
    own = ["\x1b[1;31m", "\x1b[2K", "\x1b[?25l", "\x1b[?2004h", "\x1b[6n"]
    foreign = [
        *("\x1b]0;title\x07", "\x1b]52;c;aGk=\x07", "\x1b[?1049h", "\x1bc", "\x9b", "\x1bP1$r0m\x1b\\", "\x07"),
        "\u202e",
    ]
    async with program(f"print(*{own + foreign!r}, 'done', sep='|')", tmp_path) as window:
        await window.ended()
    assert window.foreign_sequences() == foreign
