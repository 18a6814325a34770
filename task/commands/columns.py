"""Plain columns for terminals and pipes."""

from __future__ import annotations

from collections.abc import Sequence

WIDEST = 60


def columns(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """The rows under their headings, each column as wide as its widest entry; the last one is not cut."""
    lines = [headings, *([*map(_short, row[:-1]), row[-1]] for row in rows)]
    widths = [max(len(line[place]) for line in lines) for place in range(len(headings))]
    told = ("  ".join(entry.ljust(width) for entry, width in zip(line, widths, strict=True)) for line in lines)
    return "\n".join(line.rstrip() for line in told)


def one_line(value: object, most: int = 160) -> str:
    """The value as one printable line of at most that many characters."""
    text = harmless(" ".join(str(value).split()))
    return text if len(text) <= most else f"{text[: most - 1]}…"


def harmless(line: str) -> str:
    """The line without what a terminal would obey."""
    return "".join(letter if letter.isprintable() else "?" for letter in line)


def _short(text: str) -> str:
    return one_line(text, WIDEST)
