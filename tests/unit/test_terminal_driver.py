"""The tests' own terminal: what is drawn in it, what is typed into it, and its end."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.support.terminal import KEYS, Terminal, terminal

ECHO = """
import os, signal, sys
signal.signal(signal.SIGWINCH, lambda *_: os.write(1, "now {} {} ".format(*os.get_terminal_size()).encode()))
print("ready", *os.get_terminal_size(), sys.stdin.isatty(), flush=True)
for line in sys.stdin:
    print("got", len(line), line[:20].strip()[::-1], flush=True)
sys.exit(7)
"""
HUNG_UP = """
import pathlib, signal, sys
def hung_up(*_):
    pathlib.Path("hung-up").touch()
    sys.exit(5)
signal.signal(signal.SIGHUP, hung_up)
print("ready", flush=True)
while True:
    signal.pause()
"""
RAW = """
import sys, tty
tty.setraw(0)
print("ready", end="", flush=True)
taken = 0
while taken < 300_000:
    taken += len(sys.stdin.buffer.read1(65_536))
print("taken", taken, end="", flush=True)
"""


@asynccontextmanager
async def program(text: str, folder: Path, columns: int = 70) -> AsyncGenerator[Terminal]:
    async with terminal([sys.executable, "-c", text], {"PATH": os.environ["PATH"]}, folder, columns=columns) as window:
        yield window


async def test_a_program_has_a_terminal_of_a_size_that_takes_keys_and_changes(tmp_path: Path) -> None:
    async with program(ECHO, tmp_path) as window:
        await window.wait_for("ready 70 30 True")
        await window.send("abc\r")
        await window.wait_for("got 4 cba")
        await window.resize(33, 12)
        await window.wait_for("now 33 12")
        assert len(window.screen()) == 12
        await window.send(KEYS["ctrl-d"])
        assert await window.ended() == 7


async def test_lines_that_scroll_away_are_kept_and_matched_across_their_breaks(tmp_path: Path) -> None:
    async with program("print('first', 'long ' * 30, *range(200), sep='\\n')", tmp_path) as window:
        assert await window.ended() == 0
        assert window.shows("first " + "long " * 30)
        assert "first" not in "\n".join(window.screen())
        assert "199" in window.screen()


async def test_a_long_paste_arrives_whole(tmp_path: Path) -> None:
    async with program(RAW, tmp_path) as window:
        await window.wait_for("ready")
        await window.paste("x" * 299_988)
        await window.wait_for("taken 300000")


async def test_closing_the_window_hangs_the_program_up(tmp_path: Path) -> None:
    async with program(HUNG_UP, tmp_path) as window:
        await window.wait_for("ready")
        window.hang_up()
        assert await window.ended() == 5
    assert (tmp_path / "hung-up").exists()


async def test_a_program_that_ignores_signals_is_killed_with_its_window(tmp_path: Path) -> None:
    stubborn = "import signal; [signal.signal(n, signal.SIG_IGN) for n in (1, 2, 15)]; print('ready'); signal.pause()"
    async with program(stubborn, tmp_path) as window:
        await window.wait_for("ready")
    assert await window.ended() == -signal.SIGKILL


async def test_sequences_of_a_text_are_told_from_a_line_editors_own(tmp_path: Path) -> None:
    own = ["\x1b[1;31m", "\x1b[2K", "\x1b[?25l", "\x1b[?2004h", "\x1b[6n"]
    foreign = [
        "\x1b]0;title\x07",
        "\x1b]52;c;aGk=\x07",
        "\x1b[?1049h",
        "\x1bc",
        "\x9b",
        "\x1bP1$r0m\x1b\\",
        "\x07",
        "\u202e",
    ]
    async with program(f"print(*{own + foreign!r}, 'done', sep='|')", tmp_path) as window:
        await window.ended()
    assert window.foreign_sequences() == foreign
