"""Show the lines of several processes in one terminal, each with its process's name."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

COLOURS = ("cyan", "magenta", "yellow", "green", "blue")


class PrefixedLines:
    """Writes `name │ line`; the name keeps its colour and its width, and a pipe gets the same without colour."""

    def __init__(self, console: Console, names: Sequence[str]) -> None:
        self._console = console
        self._width = max(map(len, names), default=0)
        self._colours = {name: COLOURS[position % len(COLOURS)] for position, name in enumerate(names)}

    def __call__(self, name: str, line: str) -> None:
        prefix = (f"{name:<{self._width}} │ ", self._colours.get(name, "bold"))
        self._console.print(Text.assemble(prefix, Text.from_ansi(line)), soft_wrap=True)
