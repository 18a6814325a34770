"""How long a key press takes to the screen while an answer streams: `python -m tests.benchmarks.bench_console`."""

import os
import pty
import select
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator

from task.console.ui_manager import UserInterfaceManager
from task.store.records import Event
from tests.benchmarks.figures import Figure, quiet_machine, report

CHUNKS_A_SECOND, KEYS, BETWEEN_KEYS = 200, 100, 0.057
GOAL_MS = 16
WAITING_SECONDS = 60
LETTERS = "QXZ"  # which no answer here contains


def answer() -> Iterator[str]:
    """An endless answer of paragraphs, lists, tables and code."""
    row = "| some words of a table | 12 | more of them |\n"
    parts = (
        "A paragraph of **some** words with `code` that goes on for a while. " * 6 + "\n\n",
        "- one point\n- another point\n  - below it\n" * 4 + "\n",
        "| a | b | c |\n|---|--:|---|\n" + row * 15 + "\n",
        "```python\n" + "def function(argument: int) -> int:\n    return argument + 1\n\n" * 6 + "```\n\n",
    )
    while True:
        for part in parts:
            yield from (part[place : place + 12] for place in range(0, len(part), 12))


def stream() -> None:
    """Show the answer at the pace of a fast model, until the process is ended."""
    ui = UserInterfaceManager()
    ui.display_system_message("ready")
    with ui.answering() as show:
        started = time.monotonic()
        for number, text in enumerate(answer(), 1):
            show(Event(number, "text", {"text": text}))
            time.sleep(max(started + number / CHUNKS_A_SECOND - time.monotonic(), 0))


def measure() -> list[Figure]:
    """Milliseconds from a key press until the terminal has received its letter."""
    quiet = quiet_machine()
    master, terminal = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "", "LINES": ""}
    command = [sys.executable, "-m", "tests.benchmarks.bench_console", "stream"]
    process = subprocess.Popen(command, stdin=terminal, stdout=terminal, stderr=terminal, env=environment)
    try:
        _wait_for(master, "Working")
        _drain(master, 2.0)  # until the answer has become longer than the screen
        took: list[float] = []
        for number in range(KEYS):
            letter = LETTERS[number % len(LETTERS)]
            pressed = time.perf_counter()
            os.write(master, letter.encode())
            _wait_for(master, letter)
            took.append((time.perf_counter() - pressed) * 1000)
            _drain(master, BETWEEN_KEYS)
    finally:
        process.kill()
        process.wait()
        os.close(master)
        os.close(terminal)
    figures = {"key press to screen while streaming": statistics.median(took)}
    figures["the same, 95th percentile"] = statistics.quantiles(took, n=20)[-1]
    return [Figure(f"console: {name}", value, "ms", GOAL_MS, judged=quiet) for name, value in figures.items()]


def _wait_for(master: int, text: str) -> None:
    seen, until = b"", time.monotonic() + WAITING_SECONDS
    while text.encode() not in seen:
        if not select.select([master], [], [], max(until - time.monotonic(), 0))[0]:
            raise TimeoutError(f"the terminal did not show {text!r}")
        seen = seen[-100:] + os.read(master, 65536)


def _drain(master: int, seconds: float) -> None:
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        if select.select([master], [], [], left)[0]:
            os.read(master, 65536)


if __name__ == "__main__":
    if sys.argv[1:] == ["stream"]:
        stream()
    else:
        report(measure())
