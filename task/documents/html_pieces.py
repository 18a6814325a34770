"""What a tree of HTML displays, as headings, paragraphs, items, listings and tables in reading order."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from bs4 import Tag
from bs4.element import NavigableString, PreformattedString

from task.documents.model import Piece, Repeats, code, heading, item, table

Event = tuple[Literal["start", "end", "text"], Tag, str]
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
_WIDEST_SPAN, _TALLEST_SPAN = 100, 10_000


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


@dataclass(slots=True)
class _Cell:
    width: int
    height: int
    texts: list[str] = field(default_factory=list[str])


class _Writer:
    def __init__(self, layout: set[int]) -> None:
        self.pieces: list[Piece] = []
        self._layout = layout
        self._repeats = Repeats()
        self._line: list[str] = []
        self._links: list[tuple[int, int, str]] = []
        self._flushes = 0
        self._lists: list[int | None] = []  # the next number; None in a list without numbers
        self._marker: str | None = None
        self._heading = 0
        self._listing: list[str] | None = None
        self._rows: list[list[_Cell]] | None = None  # of the table that is open
        self._cell: _Cell | None = None

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
            self._rows = []
        elif self._rows is not None and name in ("tr", "td", "th"):  # whether or not the one before was ended
            self.flush()
            self._cell = None
            if name == "tr" or not self._rows:
                self._rows.append([])
            if name != "tr":
                width, height = _number(tag, "colspan"), _number(tag, "rowspan")
                self._cell = _Cell(min(max(width, 1), _WIDEST_SPAN), min(max(height, 1), _TALLEST_SPAN))
                self._rows[-1].append(self._cell)
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
                if text.strip() and self._cell is not None:
                    self._cell.texts.append(text.strip("\n"))
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
        elif name == "table" and self._rows is not None:  # a data table holds no other
            self.flush()
            if made := table(_spread(self._rows, self._repeats)):
                self.pieces.append(made)
            self._rows = self._cell = None
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
        if self._cell is not None:
            self._cell.texts.append(f"{marker} {text}" if marker else text)
        elif self._heading:
            self.pieces.append(heading(text, self._heading))
        elif marker or self._lists:
            self.pieces.append(item(text, max(len(self._lists) - 1, 0), marker or " "))
        else:
            self.pieces.append(Piece("text", text))


def _spread(rows: list[list[_Cell]], repeats: Repeats) -> Iterator[list[str]]:
    # The text of a spanning cell is repeated in every place that it covers.
    hanging: dict[int, tuple[int, str]] = {}  # by column: rows still covered, text
    for cells in rows:
        row: list[str] = []
        for cell in (*cells, None):
            while (covered := hanging.pop(len(row), None)) is not None:
                left, text = covered
                if not (again := repeats.of(text)):
                    hanging.clear()
                    break
                if left > 1:
                    hanging[len(row)] = (left - 1, text)
                row += again
            if cell is not None:
                text = "\n".join(cell.texts)
                if cell.height > 1:
                    hanging.update(dict.fromkeys(range(len(row), len(row) + cell.width), (cell.height - 1, text)))
                row += [text, *repeats.of(text, cell.width - 1)]
        yield row


def _number(tag: Tag, name: str) -> int:
    value = str(tag.get(name) or "")
    return int(value) if value.isascii() and value.isdigit() and len(value) < 9 else 1
