"""Lines of several processes in one terminal, pipe or file."""

import io
import subprocess
import sys

from rich.console import Console

from task.commands.up_output import PrefixedLines


def test_lines_are_distinguished_without_colour_and_without_being_cut() -> None:
    out = io.StringIO()
    lines = PrefixedLines(Console(file=out, width=40), ["core", "agent"])
    lines("core", "[bold]not markup[/bold] " + "x" * 60)
    lines("agent", "\x1b[31mred\x1b[0m")
    assert out.getvalue().splitlines() == [f"core  │ [bold]not markup[/bold] {'x' * 60}", "agent │ red"]


def test_when_nobody_reads_the_lines_the_process_ends_quietly() -> None:
    code = (
        "import signal, sys\n"
        "from task.commands.up_output import LogConsole\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))\n"
        "console = LogConsole()\n"
        "while True: console.print('line')\n"
    )
    writer = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert writer.stdout is not None
    assert writer.stdout.readline() == b"line\n"
    writer.stdout.close()
    assert writer.stderr is not None
    assert writer.stderr.read() == b""
    writer.stderr.close()
    assert writer.wait(10) == 7
