"""The console's input line, answers and cards in a real terminal, and without one."""

import asyncio
import json
import re
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.terminal import KEYS, SECONDS, Terminal, terminal
from tests.support.up import ROOT, environment

COMMAND = [sys.executable, "-m", "tests.support.console_screen"]
COLOR = re.compile(rb"\x1b\[[0-9;]*m")
ALT_ENTER = "\x1b\r"
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


@asynccontextmanager
async def screen(
    folder: Path, settings: dict[str, Any] | None = None, *, columns: int = 60, rows: int = 30, **environ: str
) -> AsyncGenerator[Terminal]:
    variables = environment(folder, PYTHONPATH=str(ROOT), **environ)
    command = [*COMMAND, json.dumps(settings or {})]
    async with terminal(command, variables, folder, columns=columns, rows=rows) as window:
        await window.wait_for("ready")
        await window.wait_for("the line of status" if environ.get("TERM") != "dumb" else "> ")
        yield window


async def enter(window: Terminal, text: str, shown: str, times: int = 1) -> None:
    await window.send(text + KEYS["enter"])
    await window.wait_for(shown, times)


async def asked(window: Terminal, times: int) -> None:
    """Wait for a card and the line below it."""

    def shown() -> bool:
        before, found, below = window.text().rpartition("May I run bash?")
        return bool(found) and before.count(found) + 1 == times and "[y/n/a/e]" in below

    await window.wait_until(shown, f"card {times}")


@pytest.mark.fault("console terminal: a window that is resized while an answer streams")
async def test_what_is_typed_while_an_answer_streams_waits_and_commands_run_at_once(tmp_path: Path) -> None:
    async with screen(tmp_path) as window:
        await enter(window, "stream", "w60")
        for columns, rows in ((40, 12), (120, 50), (60, 24)):
            await window.resize(columns, rows)
        await window.send("half ")
        await enter(window, "a thought", "next: half a thought")
        await enter(window, "/help", "at once /help")
        await window.wait_for("w150")
        assert "got 'half a thought'" not in window.text()
        await window.send(KEYS["ctrl-c"])
        await window.wait_for("interrupted")
        await window.wait_for("got 'half a thought'")
        await window.send(KEYS["ctrl-c"])
        await window.wait_for("Ctrl-C again")
        await enter(window, "still here", "got 'still here'")
        await window.send(KEYS["ctrl-c"] * 2)
        await window.wait_for("left by KeyboardInterrupt")
        assert await window.ended() == 0
        assert window.foreign_sequences() == []


async def test_lines_are_edited_completed_and_remembered(tmp_path: Path) -> None:
    async with screen(tmp_path) as window:
        await window.send(f"first{ALT_ENTER}second\\{KEYS['enter']}third")
        await enter(window, "", r"got 'first\nsecond\nthird'")
        await window.send("/qu" + KEYS["tab"])
        await window.wait_for("> /quit")
        await enter(window, "", "got '/quit'")
    async with screen(tmp_path) as window:
        await window.send(KEYS["up"])
        await enter(window, "!", "got '/quit!'")
    assert (tmp_path / "history").stat().st_mode & 0o077 == 0


@pytest.mark.fault("console terminal: words typed before a card, and a reply that is neither yes nor no")
async def test_a_card_is_answered_in_words_and_never_by_what_was_typed_before(tmp_path: Path) -> None:
    async with screen(tmp_path, rows=40) as window:
        await window.send("ask\r")
        await asked(window, 1)
        await enter(window, "perhaps", "y yes · n no", 2)
        await enter(window, "n not now", "answer Answer(allowed=False, reason='not now'")
        await window.send("ask\r")
        await asked(window, 2)
        await enter(window, "e", '"command": "rm -rf build"')
        await enter(window, "}", "This is not JSON")
        await window.send("\x7f\x1b[A" + "\x05" + "\x7f" * 7 + 'dist"')
        await enter(window, "", "arguments={'command': 'rm -rf dist'}")
        await window.send("stream 200\r")
        await window.wait_for("w20")
        await window.send("ask\rdraft")
        await asked(window, 3)
        await enter(window, "a", "always=True")
        await window.wait_until(lambda: "> draft" in window.text().splitlines()[-2:][0], "the draft is back")


@pytest.mark.fault("console terminal: a pasted megabyte")
async def test_a_pasted_megabyte_is_one_message_whose_words_are_just_words_in_other_texts(tmp_path: Path) -> None:
    word = "[pasted text #2: 1,100 characters, 1 lines]"
    async with screen(tmp_path, columns=120, rows=40) as window:
        await window.paste(1_048_576 * "x")
        await enter(window, "", "got 1048576 characters")
        await window.send("stream 200\r")
        await window.wait_for("w20")
        await window.send("ask\r")
        await window.paste("secret" + 1_094 * "x")
        await asked(window, 1)
        await enter(window, "e", '"command": "rm -rf build"')
        await enter(window, f'\x7f, "note": "{word}"}}', f"'note': '{word}'")
        await window.wait_until(lambda: word in window.text().splitlines()[-2], "the draft is back")
        await enter(window, "", "got 1100 characters")
        await enter(window, word, f"got '{word}'")


async def test_a_card_ends_when_its_time_is_over_or_it_was_answered_elsewhere(tmp_path: Path) -> None:
    async with screen(tmp_path) as window:
        await enter(window, "ask 1", "No answer in time")
        await window.wait_for("answer None")
        await window.send("ask\r")
        await asked(window, 2)
        (tmp_path / "elsewhere").touch()
        await window.wait_for("Answered elsewhere")
        await window.wait_for("answer None", 2)
        (tmp_path / "elsewhere").unlink()
        await window.send("ask\r")
        await asked(window, 3)
        await window.send(KEYS["ctrl-c"])
        await window.wait_for("interrupted")


@pytest.mark.fault("console terminal: a terminal that cannot be drawn on, or none")
async def test_a_terminal_that_cannot_be_drawn_on_gets_lines(tmp_path: Path) -> None:
    async with screen(tmp_path, TERM="dumb") as window:
        await enter(window, "stream 50", "complete")
        await enter(window, "ask", "[y/n/a/e]")
        await enter(window, "y", "answer Answer(allowed=True")
        await window.send("ask\ry\r")  # the second line was typed before there was a question
        await window.wait_for("[y/n/a/e]", 2)
        await enter(window, "n seen", "answer Answer(allowed=False, reason='seen'")
        await window.send(KEYS["ctrl-d"])
        await window.wait_for("left by EOFError")
        assert b"\x1b" not in window.transcript


@pytest.mark.fault("console terminal: a terminal that cannot be drawn on, or none")
async def test_without_a_terminal_lines_are_messages_and_nothing_is_asked(tmp_path: Path) -> None:
    process = await asyncio.create_subprocess_exec(
        *COMMAND, cwd=tmp_path, env=environment(tmp_path, PYTHONPATH=str(ROOT), PYTHONIOENCODING="ascii"),
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, err = await asyncio.wait_for(process.communicate(b"hello\nstream 3\nask\n"), SECONDS)
    assert out.decode().splitlines() == [
        "System: ready", "System: got 'hello'", "w0 w1 w2 ", "System: complete ?", "System: answer None",
        "left by EOFError",
    ]  # fmt: skip
    assert (err, process.returncode) == (b"", 0)


@pytest.mark.fault("console terminal: a line of status that fails")
async def test_a_line_of_status_that_fails_keeps_nobody_waiting(tmp_path: Path) -> None:
    environ = environment(tmp_path, PYTHONPATH=str(ROOT))
    async with terminal([sys.executable, "-c", FAILING_STATUS], environ, tmp_path) as window:
        await window.wait_for(">")
        await window.send("Hi\r")
        await window.wait_for("closed")
        assert await window.ended() == 0


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
    command = [sys.executable, "-c", f"print(*{own + foreign!r}, 'done', sep='|')"]
    async with terminal(command, environment(tmp_path), tmp_path) as window:
        await window.ended()
    assert window.foreign_sequences() == foreign
