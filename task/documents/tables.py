"""Readers of CSV and TSV: every row is kept, and damage costs the row that it is in."""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import compress, pairwise

from task.documents.csv_dialect import COMMON, NAMES, Dialect, detect, lines_of
from task.documents.encoding import decode
from task.documents.markdown import as_markdown
from task.documents.model import Block, Extraction

_NAMED_LINES = 5
# Notes that programs are written by
ESCAPED, SPACED = "marks in cells escaped by backslash", "spaces in front of cells left out"
EMPTY, LEFT_OUT = "empty rows left out", "empty cells at the end left out"
_TALLEST = 500  # lines of one row
_EXCEL = re.compile(r"sep=([,;|\t:^~])\n", re.IGNORECASE)  # Excel's own first line names the delimiter


@dataclass(frozen=True, slots=True)
class _Rows:
    """The cells of each row with text, the last of its lines, and the lines that were repaired, by what was done."""

    cells: list[list[str]]
    ends: list[int]
    repairs: dict[str, list[int]]


def read_table(content: bytes, content_type: str = "", *, expected: str) -> Extraction:
    """A Markdown table whose first row is the header; text with a note where it cannot be read as a table."""
    decoded = decode(content)
    declared = _EXCEL.match(decoded.text)
    text = f"\n{decoded.text[declared.end() :]}" if declared else decoded.text  # lines keep their numbers
    dialect = replace(
        detect(text, declared[1] if declared else expected), **{"delimiter": declared[1]} if declared else {}
    )
    try:
        lines = lines_of(text)
        rows = _mended(_read(lines, dialect), lines, dialect)
    except csv.Error:
        return Extraction((Block(decoded.text),), (*decoded.notes, "not readable as a table, given as it is"))
    if not rows.cells:
        return Extraction(notes=decoded.notes)
    titles = _titles(rows)
    blocks = (*_above(rows.cells[:titles], dialect), as_markdown(_filled(rows.cells[titles:])))
    return Extraction(blocks, (*decoded.notes, *_remarks(dialect, expected), *_figures(rows, titles)))


read_csv = partial(read_table, expected=",")


read_tsv = partial(read_table, expected="\t")


def _read(lines: list[str], dialect: Dialect) -> _Rows:
    reader = dialect.rows(lines)
    cells: list[list[str]] = []
    ends: list[int] = []
    is_whole = True
    try:
        for row in reader:
            cells.append(row)
            ends.append(reader.line_num)
    except csv.Error:
        is_whole = False
    tall = {end: start for start, end in pairwise((0, *ends)) if end - start > 1}
    usual = _usual(compress(cells, [end not in tall for end in ends])) if tall else 0
    usual = usual or _usual(cells)
    # Rows of several lines, and the last one: a quote that is opened there swallows nothing.
    spans = ((tall.get(end, end - 1), end) for end in (*tall, *ends[-1:]))
    if is_whole and all(_is_sound(lines[start:end], dialect, usual) for start, end in spans):
        return _Rows(cells, ends, {})
    return _repaired(lines, dialect, usual)


def _repaired(lines: list[str], dialect: Dialect, usual: int) -> _Rows:
    # A quote that is never closed would swallow the rows below it: its line is read alone.
    rows = _Rows([], [], {"unbalanced quotes kept as they are": []})
    start = 0
    while start < len(lines):
        chunk = lines[start : start + _TALLEST]
        done, is_broken = _sound_rows(chunk, start, len(lines), dialect, usual, rows)
        start += done
        if is_broken:
            rows.cells.append(_alone(lines[start], dialect, usual))
            start += 1
            rows.ends.append(start)
            rows.repairs["unbalanced quotes kept as they are"].append(start)
    return rows


def _sound_rows(
    chunk: list[str], start: int, total: int, dialect: Dialect, usual: int, rows: _Rows
) -> tuple[int, bool]:
    """Append the rows up to the first broken one; how many lines they have, and whether a broken one follows."""
    reader, done = dialect.rows(chunk), 0
    try:
        for row in reader:
            end = reader.line_num
            if end == len(chunk) and start + end < total and done:
                return done, False  # it may go on in the next chunk
            if (end - done > 1 or start + end == total) and not _is_sound(chunk[done:end], dialect, usual):
                return done, True
            rows.cells.append(row)
            rows.ends.append(start + end)
            done = end
    except csv.Error:
        return done, True
    return done, False


def _is_sound(lines: list[str], dialect: Dialect, usual: int) -> bool:
    try:
        (row,) = dialect.rows(lines, strict=True)
    except (csv.Error, ValueError):
        return False
    return len(lines) == 1 or len(row) == usual or all(len(next(dialect.rows([line]))) != usual for line in lines[1:])


def _alone(line: str, dialect: Dialect, usual: int) -> list[str]:
    quote = dialect.quote
    cells = next(replace(dialect, quote="").rows([line]))
    if len(cells) != usual:
        return next(dialect.rows([line]))
    ends = (quote, quote)
    return [cell[1:-1].replace(quote * 2, quote) if (cell[:1], cell[1:][-1:]) == ends else cell for cell in cells]


def _mended(rows: _Rows, lines: list[str], dialect: Dialect) -> _Rows:
    """Without rows without text and empty columns at the end; rows of another delimiter are read by that."""
    # Usually the first cell has text: asked inline, the quickest for very many rows.
    texts = [bool(row and row[0].strip()) or any(map(str.strip, row)) for row in rows.cells]
    cells, ends = list(compress(rows.cells, texts)), list(compress(rows.ends, texts))
    usual = _usual(cells)
    repairs = dict(rows.repairs)
    for place, row in enumerate(cells):
        if len(row) < usual and (mark := _other(lines[ends[place] - 1], dialect, usual)):
            cells[place] = next(replace(dialect, delimiter=mark).rows([lines[ends[place] - 1]]))
            repairs.setdefault(f"separated by {NAMES[mark]}", []).append(ends[place])
    width = widest = max(map(len, cells), default=0)
    while width and not any(row[width - 1 : width] and row[width - 1].strip() for row in cells):
        width -= 1
    if len(cells) < len(texts):
        repairs[EMPTY] = [end for row, end, text in zip(rows.cells, rows.ends, texts, strict=True) if row and not text]
    if width < widest:
        repairs[LEFT_OUT] = [end for row, end in zip(cells, ends, strict=True) if len(row) > width]
    return _Rows(cells if width == widest else [row[:width] for row in cells], ends, repairs)


def _other(line: str, dialect: Dialect, usual: int) -> str:
    # Two cells are too few to know that another delimiter was meant.
    for mark in COMMON if usual > 2 else ():
        if mark != dialect.delimiter and len(next(replace(dialect, delimiter=mark).rows([line]))) == usual:
            return mark
    return ""


def _above(rows: Sequence[list[str]], dialect: Dialect) -> Iterator[Block]:
    if any(len(row) > 1 and not row[0].startswith("#") for row in rows):
        yield as_markdown(_filled(rows))
    elif rows:
        yield Block("\n".join(dialect.delimiter.join(row).rstrip(dialect.delimiter) for row in rows))


def _filled(rows: Sequence[list[str]]) -> list[list[str]]:
    width = max(map(len, rows))
    return [row if len(row) == width else row + [""] * (width - len(row)) for row in rows]


def _titles(rows: _Rows) -> int:
    usual = _usual(rows.cells)
    count = next(place for place, row in enumerate(rows.cells) if len(row) >= usual)
    above = rows.cells[:count]
    is_apart = count and rows.ends[count] > rows.ends[count - 1] + 1
    is_title = all(len(row) == 1 or row[0].startswith("#") for row in above)
    return count if is_apart or is_title else 0


def _usual(rows: Iterable[Sequence[str]]) -> int:
    widths = Counter(map(len, rows))
    del widths[0]
    return max(widths.items(), key=lambda item: (item[1], item[0]), default=(0, 0))[0]


def _remarks(dialect: Dialect, expected: str) -> Iterator[str]:
    if dialect.delimiter != expected:
        yield f"cells separated by {NAMES.get(dialect.delimiter, dialect.delimiter)}"
    if dialect.quote not in ('"', ""):
        yield f"cells quoted by {dialect.quote}"
    if dialect.escape:
        yield ESCAPED
    if dialect.skips_spaces:
        yield SPACED


def _figures(rows: _Rows, titles: int) -> Iterator[str]:
    usual = _usual(rows.cells)
    header = rows.ends[titles] - sum(cell.count("\n") for cell in rows.cells[titles])
    if header > 1:
        yield f"header in line {header}"
    ragged = [end for row, end in zip(rows.cells[titles:], rows.ends[titles:], strict=True) if len(row) != usual]
    yield f"{_counted(len(rows.cells) - titles - 1, 'row')}, {_counted(max(map(len, rows.cells)), 'column')}"
    if ragged:
        yield f"{_counted(len(ragged), 'row')} without the usual {_counted(usual, 'cell')} kept ({_named(ragged)})"
    for repair, ends in rows.repairs.items():
        if ends:
            yield f"{repair} ({_named(ends)})"


def _named(ends: Sequence[int]) -> str:
    return f"line {', '.join(map(str, ends[:_NAMED_LINES]))}{', ...' * (len(ends) > _NAMED_LINES)}"


def _counted(number: int, thing: str) -> str:
    return f"{number:,} {thing}{'' if number == 1 else 's'}"
