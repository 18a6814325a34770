"""Show the lines of several processes in one terminal, each with its process's name."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

LOG_WIDTH = 120
COLOURS = ("cyan", "magenta", "yellow", "green", "blue")


class LogConsole(Console):
    """A terminal or a log; when nobody reads it any more, the process is told to end as by Ctrl-C."""

    def __init__(self) -> None:
        super().__init__(highlight=False, width=None if sys.stdout.isatty() else LOG_WIDTH)

    def on_broken_pipe(self) -> None:
        self.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        os.kill(os.getpid(), signal.SIGTERM)


class PrefixedLines:
    """Writes `name │ line`; the name keeps its colour and its width, and a pipe gets the same without colour."""

    def __init__(self, console: Console, names: Sequence[str]) -> None:
        self._console = console
        self._width = max(map(len, names), default=0)
        self._colours = {name: COLOURS[position % len(COLOURS)] for position, name in enumerate(names)}

    def __call__(self, name: str, line: str) -> None:
        prefix = (f"{name:<{self._width}} │ ", self._colours.get(name, "bold"))
        self._console.print(Text.assemble(prefix, Text.from_ansi(line)), soft_wrap=True)
