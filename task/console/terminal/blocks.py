"""Cut streamed Markdown into blocks that are finished, so that each is rendered once, and the one that is not."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

MOST_LINES, MOST_CHARS = 40, 4_000  # of a block that does not end: more of it is printed in parts
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})(.*)")
_ITEM = re.compile(r" {0,3}(?:[-*+]|\d{1,9}[.)])(?: |$)")
_DELIMITERS = re.compile(r" {0,3}\|?[ :|]*+-[ :|-]*$")
_SENTENCE = re.compile(r"[.!?…。！？]\s+|\s+")


@dataclass(frozen=True, slots=True)
class MarkdownBlock:
    """A finished part of the answer; `continues`: it goes on where the one before it stopped."""

    text: str
    continues: bool = False


@dataclass(slots=True)
class MarkdownBlocks:
    """Takes pieces of any size. `pending` is the unfinished block; its size is bounded, however the text goes on."""

    _lines: list[str] = field(default_factory=list[str])
    _open_line: str = ""
    _fence: str = ""
    _chars: int = 0
    _continues: bool = False

    @property
    def pending(self) -> str:
        return "\n".join([*self._lines, self._open_line])

    def add(self, text: str) -> list[MarkdownBlock]:
        """The blocks that this piece has finished."""
        finished: list[MarkdownBlock] = []
        *lines, rest = text.split("\n")
        for line in lines:
            finished += self._line(self._open_line + line)
            self._open_line = ""
        self._open_line += rest
        if len(self._open_line) > MOST_CHARS:
            finished += self._overlong_line()
        return finished

    def end(self) -> list[MarkdownBlock]:
        """What is left, at the end of the text or before something else is shown."""
        left, continues = self.pending, self._continues
        self._lines, self._open_line, self._fence, self._chars, self._continues = [], "", "", 0, False
        return [MarkdownBlock(left, continues)] if left.strip() else []

    def _line(self, line: str) -> list[MarkdownBlock]:
        if self._fence:
            return self._in_fence(line)
        finished: list[MarkdownBlock] = []
        if opened := _FENCE.match(line):
            if not line.startswith(" ") or not self._in_list():
                finished = self._take()
                self._fence = opened[1]
        elif self._lines and not self._lines[-1].strip() and self._starts_anew(line):
            finished = self._take()
        if line.strip() or self._lines:
            self._keep(line)
        return finished or self._overlong()

    def _in_fence(self, line: str) -> list[MarkdownBlock]:
        self._keep(line)
        closing = _FENCE.match(line)
        if closing and closing[1].startswith(self._fence) and not closing[2].strip():
            self._fence = ""
            return self._take()
        return self._overlong()

    def _starts_anew(self, line: str) -> bool:
        if not line.strip() or line.startswith(("  ", "\t")):
            return False
        return not (self._in_list() and _ITEM.match(line))

    def _in_list(self) -> bool:
        return bool(self._lines and _ITEM.match(self._lines[0]))

    def _keep(self, line: str) -> None:
        self._lines.append(line)
        self._chars += len(line) + 1

    def _take(self, count: int | None = None, carried: tuple[str, ...] = ()) -> list[MarkdownBlock]:
        taken, left = self._lines[:count], self._lines[count:] if count is not None else []
        continues, self._continues = self._continues, count is not None
        self._lines = [*carried, *left]
        self._chars = sum(len(line) + 1 for line in self._lines)
        return [MarkdownBlock("\n".join(taken), continues)] if any(line.strip() for line in taken) else []

    def _overlong(self) -> list[MarkdownBlock]:
        if len(self._lines) <= MOST_LINES and self._chars <= MOST_CHARS:
            return []
        if self._fence:
            return self._take(len(self._lines), (self._lines[0],))
        if len(self._lines) > 1 and "|" in self._lines[0] and _DELIMITERS.match(self._lines[1]):
            return self._take(len(self._lines), (self._lines[0], self._lines[1]))
        if self._in_list():
            starts = [number for number, line in enumerate(self._lines) if number and _ITEM.match(line)]
            return self._take(starts[-1] if starts else len(self._lines))
        return self._take(len(self._lines))

    def _overlong_line(self) -> list[MarkdownBlock]:
        # In one line without an end: up to its last space, so that no word is cut.
        ends = [found.end() for found in _SENTENCE.finditer(self._open_line)]
        cut = ends[-1] if ends else len(self._open_line)
        self._keep(self._open_line[:cut])
        self._open_line = self._open_line[cut:]
        return self._take(len(self._lines), (self._lines[0],) if self._fence and len(self._lines) > 1 else ())
