"""What a person typed: the word that a completion replaces, and long texts shown as a word or a line."""

from __future__ import annotations

import re

FOLDED_LINES, FOLDED_CHARS = 10, 1_000  # of an input; a longer one is shown as a line
_PARTS = re.compile(r"(?:\\.|[^\s\\])++\\?|\s++|\\")  # words, and what stands between them


def last_word(text: str) -> str:
    """The part of the text that a completion replaces; a blank after a backslash belongs to it."""
    parts = [found[0] for found in _PARTS.finditer(text)]
    return parts[-1] if parts and not parts[-1].isspace() else ""


def is_long(text: str) -> bool:
    """Whether only its size is shown."""
    return len(text) > FOLDED_CHARS or text.count("\n") >= FOLDED_LINES


def folded(text: str) -> str:
    """A long input as a line."""
    return f"{' '.join(text[:60].split())}… [{size_of(text)}]" if is_long(text) else text


def size_of(text: str) -> str:
    return f"{len(text):,} characters, {text.count(chr(10)) + 1:,} lines"
