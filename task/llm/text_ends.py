"""Find where brackets are closed, or where a word ends, in a text that arrives in pieces."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

# `cut`: the next character decides what this is.
_JSON_TOKEN = re.compile(r'\\.|(?P<cut>\\\Z)|"|[()\[\]{}]', re.DOTALL)
_PYTHON_TOKEN = re.compile(r"""\\.|(?P<cut>\\\Z|"{1,2}\Z|'{1,2}\Z)|"{3}|'{3}|"|'|[()\[\]{}]""", re.DOTALL)


@dataclass(slots=True)
class Brackets:
    """Finds in a text that arrives in pieces where the bracket that it begins with is closed."""

    python: bool = False
    _depth: int = field(init=False, default=0)
    _quote: str = field(init=False, default="")
    _carried: str = field(init=False, default="")

    def feed(self, piece: str) -> int | None:
        """Where in this piece the text ends."""
        text, before = self._carried + piece, len(self._carried)
        self._carried = ""
        for token in (_PYTHON_TOKEN if self.python else _JSON_TOKEN).finditer(text):
            mark = token[0]
            if token["cut"]:
                self._carried = mark
            elif mark[0] in "\"'":
                self._toggle(mark)
            elif mark[0] != "\\" and not self._quote:
                self._depth += 1 if mark in "([{" else -1
                if self._depth <= 0:
                    return token.end() - before
        return None

    def _toggle(self, mark: str) -> None:
        if not self._quote:
            self._quote = mark
        elif self._quote == mark:
            self._quote = ""


class Until:
    """Finds in a text that arrives in pieces where one of the `ends` ends."""

    def __init__(self, *ends: str) -> None:
        self._ends = re.compile("|".join(map(re.escape, ends)))
        self._overlap = max(map(len, ends)) - 1
        self._tail = ""

    def feed(self, piece: str) -> int | None:
        """Where in this piece the text ends."""
        text = self._tail + piece
        if found := self._ends.search(text):
            return found.end() - len(self._tail)
        self._tail = text[-self._overlap :]
        return None
