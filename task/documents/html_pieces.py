"""Turn an HTML tree into headings, paragraphs, lists, code and tables, however deep or badly nested it is."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Literal

from bs4 import Tag
from bs4.element import NavigableString, PreformattedString

from task.documents.model import Piece, code, heading, item, table

Event = tuple[Literal["start", "end", "text"], "Tag", str]
HEADINGS = {f"h{level}": level for level in range(1, 7)}
_BLOCK = re.compile(
    "address|article|aside|blockquote|body|caption|center|d[dlt]|details|dialog|div|fieldset|figcaption|figure|footer|form|"
    "h[1-6]|header|hgroup|hr|html|legend|li|main|ol|p|pre|section|summary|table|tbody|td|tfoot|th|thead|tr|ul"
)
_SPACES = re.compile(r"[^\S\n]+")
_AROUND_BREAK = re.compile(r"(?<! ) *+\n *+")
_ABSOLUTE = ("http://", "https://", "mailto:")
_LANGUAGE = re.compile(r"(?:language|lang|highlight-source)-([\w+#-]+)")
_SOFT_HYPHEN = "\xad"
_LONG_CELL = 1_000  # characters; no cell of data is so long
_WIDEST_SPAN = 100
_TALLEST_SPAN = 10_000


def pieces_of(root: Tag) -> list[Piece]:
    """What the tree displays, in reading order."""
    writer = _Writer(_layout_tables(root))
    for kind, tag, text in events(root):
        if kind == "text":
            writer.write(text)
        elif kind == "start":
            writer.open(tag)
        else:
            writer.close(tag)
    writer.flush()
    return writer.pieces


def events(root: Tag) -> Iterator[Event]:
    """Starts, ends and texts below the root, without recursion: pages nest deeper than Python's stack."""
    stack = [(root, iter(root.contents))]
    while stack:
        tag, children = stack[-1]
        child = next(children, None)
        if child is None:
            stack.pop()
            if stack:
                yield "end", tag, ""
        elif isinstance(child, Tag):
            yield "start", child, ""
            stack.append((child, iter(child.contents)))
        elif isinstance(child, NavigableString) and not isinstance(child, PreformattedString):
            yield "text", tag, str(child)


def _layout_tables(root: Tag) -> set[int]:
    # Ids of the tables that hold other tables or long texts, or are marked as mere layout.
    found: set[int] = set()
    open_tables: list[int] = []
    length = 0
    for kind, tag, text in events(root):
        if kind == "text":
            length += len(text)
        elif tag.name in ("td", "th", "table"):
            if length > _LONG_CELL:
                found.update(open_tables[-1:])
            length = 0
        if tag.name != "table" or kind == "text":
            continue
        if kind == "end":
            open_tables.pop()
            continue
        if tag.get("role") == "presentation":
            found.add(id(tag))
        found.update(open_tables[-1:])
        open_tables.append(id(tag))
    return found


class _Writer:
    def __init__(self, layout: set[int]) -> None:
        self.pieces: list[Piece] = []
        self._layout = layout
        self._line: list[str] = []
        self._links: list[tuple[int, int, str]] = []
        self._flushes = 0
        self._lists: list[int | None] = []  # the next number; None in a list without numbers
        self._marker: str | None = None
        self._heading = 0
        self._listing: list[str] | None = None
        self._grid: _TableGrid | None = None

    def write(self, text: str) -> None:
        if self._listing is not None:
            self._listing.append(text)
        else:
            self._line.append(text.replace("\n", " ").replace(_SOFT_HYPHEN, ""))

    def open(self, tag: Tag) -> None:
        name = tag.name
        if self._listing is not None:
            if name == "br":
                self._listing.append("\n")
        elif name == "br":
            self._line.append("\n")
        elif name == "a":
            self._links.append((self._flushes, len(self._line), str(tag.get("href") or "")))
        elif name == "img" and (label := str(tag.get("alt") or "").strip()):
            self._line.append(f" [image: {label}] ")
        elif name == "code":
            self._line.append("`")
        elif name == "table" and id(tag) not in self._layout:
            self.flush()
            self._grid = _TableGrid()
        elif self._grid is not None and name in ("tr", "td", "th"):
            self.flush()
            self._grid.open(tag)
        elif _BLOCK.fullmatch(name):
            self.flush()
            if name in HEADINGS:
                self._heading = HEADINGS[name]
            elif name == "pre":
                self._listing = []
            elif name in ("ul", "ol"):
                self._lists.append(_number(tag, "start") if name == "ol" else None)
            elif name == "li":
                number = self._lists[-1] if self._lists else None
                self._marker = "-" if number is None else f"{number}."
                if number is not None:
                    self._lists[-1] = number + 1

    def close(self, tag: Tag) -> None:
        name = tag.name
        if self._listing is not None:
            if name == "pre":
                text, self._listing = "".join(self._listing), None
                if text.strip() and self._grid is not None and self._grid.in_cell:
                    self._grid.write(text.strip("\n"))
                elif text.strip():
                    named = tag if tag.get("class") else tag.find("code")
                    classes = " ".join(named.get_attribute_list("class")) if named and named.get("class") else ""
                    match = _LANGUAGE.search(classes)
                    self.pieces.append(code(text, match.group(1) if match else ""))
        elif name == "a" and self._links:
            flushes, start, target = self._links.pop()
            text = " ".join("".join(self._line[start:]).split())
            if flushes == self._flushes and target.startswith(_ABSOLUTE) and text not in ("", target):
                self._line[start:] = [f"[{text}]({target})"]
        elif name == "code":
            self._line.append("`")
        elif name == "table" and self._grid is not None:  # a data table holds no other
            self.flush()
            grid, self._grid = self._grid, None
            if made := table(grid.rows()):
                self.pieces.append(made)
        elif name in ("ul", "ol"):
            self.flush()
            if self._lists:
                self._lists.pop()
        elif name in HEADINGS:
            self.flush()
            self._heading = 0
        elif _BLOCK.fullmatch(name) and name not in ("pre", "table"):
            self.flush()
            self._marker = None

    def flush(self) -> None:
        """End the current paragraph, item or heading."""
        text = _AROUND_BREAK.sub("\n", _SPACES.sub(" ", "".join(self._line)).replace("``", "")).strip()
        self._line.clear()
        self._flushes += 1
        if not text:
            return
        marker, self._marker = self._marker, None
        if self._grid is not None and self._grid.in_cell:
            self._grid.write(f"{marker} {text}" if marker else text)
        elif self._heading:
            self.pieces.append(heading(text, self._heading))
        elif marker or self._lists:
            self.pieces.append(item(text, max(len(self._lists) - 1, 0), marker or " "))
        else:
            self.pieces.append(Piece("text", text))


class _TableGrid:
    """The cells of one table while it is read; a spanning cell's text is repeated in every place it covers."""

    def __init__(self) -> None:
        self._rows: list[list[str]] = []
        self._hanging: dict[int, tuple[int, str]] = {}  # column -> rows still covered, text
        self._cell: list[str] = []
        self._span: tuple[int, int] | None = None

    @property
    def in_cell(self) -> bool:
        return self._span is not None

    def open(self, tag: Tag) -> None:
        """Start a row or a cell, whether or not the one before was ended."""
        self._end_cell()
        if tag.name == "tr":
            self._fill()
            self._rows.append([])
        else:
            width, height = max(_number(tag, "colspan"), 1), max(_number(tag, "rowspan"), 1)
            self._span = (min(width, _WIDEST_SPAN), min(height, _TALLEST_SPAN))

    def write(self, text: str) -> None:
        self._cell.append(text)

    def rows(self) -> list[list[str]]:
        self._end_cell()
        self._fill()
        return self._rows

    def _end_cell(self) -> None:
        text = "\n".join(self._cell)
        self._cell.clear()
        if self._span is None:
            return
        (width, height), self._span = self._span, None
        if not self._rows:
            self._rows.append([])
        self._fill()
        row = self._rows[-1]
        if height > 1:
            self._hanging.update(dict.fromkeys(range(len(row), len(row) + width), (height - 1, text)))
        row += [text] * width

    def _fill(self) -> None:
        row = self._rows[-1] if self._rows else []
        while (covered := self._hanging.pop(len(row), None)) is not None:
            left, text = covered
            if left > 1:
                self._hanging[len(row)] = (left - 1, text)
            row.append(text)


def _number(tag: Tag, name: str) -> int:
    value = str(tag.get(name) or "")
    return int(value) if value.isascii() and value.isdigit() and len(value) < 9 else 1
