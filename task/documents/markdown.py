"""Render a document as Markdown: headings, paragraphs, lists, code and tables in reading order."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

from task.documents.model import Block

Kind = Literal["heading", "text", "item", "code", "table"]
_DEEPEST = 8
_FENCES = re.compile("`{3,}")


@dataclass(frozen=True, slots=True)
class Piece:
    """One heading, paragraph, list item, code listing or table; `level` is a heading's, `rows` are a table's."""

    kind: Kind
    text: str = ""
    level: int = 0
    rows: tuple[tuple[str, ...], ...] = ()


def heading(text: str, level: int) -> Piece:
    return Piece("heading", f"{'#' * min(max(level, 1), 6)} {' '.join(text.split())}", level)


def item(text: str, depth: int, marker: str = "-") -> Piece:
    """An entry of a list; `depth` counts from 0. Very deep lists are not indented any further."""
    indent = "  " * min(depth, _DEEPEST)
    continued = text.strip().replace("\n", f"\n{indent}{' ' * (len(marker) + 1)}")
    return Piece("item", f"{indent}{marker} {continued}")


def code(text: str, language: str = "") -> Piece:
    fence = "`" * max(3, 1 + max(map(len, _FENCES.findall(text)), default=0))
    return Piece("code", f"{fence}{language}\n{text.strip(chr(10))}\n{fence}")


def table(rows: Iterable[Sequence[str]]) -> Piece | None:
    """A table as wide as its widest row; None where no cell holds text."""
    kept = [tuple(cell.strip() for cell in row) for row in rows]
    kept = [row for row in kept if any(row)]
    width = max(map(len, kept), default=0)
    return Piece("table", rows=tuple(row + ("",) * (width - len(row)) for row in kept)) if kept else None


def as_markdown(rows: Sequence[Sequence[str]], page: int | None = None) -> Block:
    """The rows as a Markdown table, the first as its header; `|` and line ends in cells are escaped."""
    header, *body = rows
    heading = f"{_row(header)}\n|{' --- |' * len(header)}"
    return Block("\n".join(map(_row, body)), heading, page)


def _row(cells: Iterable[str]) -> str:
    line = "\0".join(cells)
    if "|" in line or "\n" in line:
        line = line.replace("|", "\\|").replace("\n", "<br>")
    return f"| {line.replace(chr(0), ' | ')} |"


def blocks_of(pieces: Iterable[Piece], page: int | None = None) -> tuple[Block, ...]:
    """The blocks of a document or of one of its pages: one per table, and one for everything between two tables."""
    blocks: list[Block] = []
    for is_table, group in groupby(pieces, key=lambda piece: piece.kind == "table"):
        if is_table:
            blocks += (as_markdown(piece.rows, page) for piece in group)
        else:
            blocks.append(Block(_joined(group), page=page))
    return tuple(blocks)


def _joined(pieces: Iterable[Piece]) -> str:
    return "\n\n".join(
        ("\n" if kind == "item" else "\n\n").join(piece.text for piece in group)
        for kind, group in groupby(pieces, key=lambda piece: piece.kind)
    )
