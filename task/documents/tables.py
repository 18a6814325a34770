"""Readers of CSV and TSV: the dialect is detected, every row is kept, and damage costs the row that it is in."""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import compress, islice, pairwise, product
from operator import eq
from typing import TYPE_CHECKING, NamedTuple

from task.documents.model import Block, Extraction, as_markdown, counted
from task.documents.text import decode

if TYPE_CHECKING:
    from _csv import Reader

COMMON = (",", ";", "\t", "|")
_RARE = (":", " ", "^", "~")
NAMES = {",": "comma", ";": "semicolon", "\t": "tab", "|": "pipe", ":": "colon", " ": "space"}
_QUOTES = ('"', "'", "`")
_SAMPLE = 65_536
_ROWS, _CELLS = 200, 2_000
_RARELY, _ENOUGH, _VALUES, _SOME = 0.9, 0.6, 0.95, 0.25
_ESCAPED = re.compile(r"\\[\"'`,;\t|:^~\\]")
_VALUE = re.compile(
    r"""\s*+(?:
    [-+]?+[$€£]?+[\d.,']*+(?<=\d)(?>(?:e[-+]?\d+)?)\s*+[%€$£]?+        # a number
    |\d{1,4}[-./]\d{1,2}[-./]\d{1,4}(?>(?:[T ]\d{1,2}:\d\d(?>(?::\d\d)?)\S{0,8})?)  # a date, with a time
    |\d{1,2}:\d\d(?>(?::\d\d)?)(?>(?:\s?[ap]m)?)
    |(?:https?|ftp)://\S*+|[\w.+-]++@[\w-]++\.[\w.-]++
    |(?:n/a|null|none|nan|true|false|yes|no|-)
    )?\s*+""",
    re.IGNORECASE | re.VERBOSE,
)
_LEFT = re.compile(r"\\[\"'`,;|]|\\\s*+\Z")
_TEXT = re.compile(r"[^,;\t|]*+")
_NAMED_LINES = 5
# Notes by which programs recognise what was done
ESCAPED, SPACED = "marks in cells escaped by backslash", "spaces in front of cells left out"
EMPTY, LEFT_OUT = "empty rows left out", "empty cells at the end left out"
_TALLEST = 500  # lines of one row
_EXCEL = re.compile(r"sep=([,;|\t:^~])\n", re.IGNORECASE)  # Excel's own first line names the delimiter


@dataclass(frozen=True, slots=True)
class _TableRows:
    """The cells of each row with text, the last of its lines, and the lines that were repaired, by what was done."""

    cells: list[list[str]]
    ends: list[int]
    repairs: dict[str, list[int]]


def read_table(content: bytes, content_type: str = "", *, expected: str) -> Extraction:
    """A Markdown table whose first row is the header; text with a note where it cannot be read as a table."""
    decoded = decode(content)
    declared = _EXCEL.match(decoded.text)
    text = f"\n{decoded.text[declared.end() :]}" if declared else decoded.text  # lines keep their numbers
    dialect = detect(text, declared[1] if declared else expected)
    if declared:
        dialect = dialect._replace(delimiter=declared[1])
    try:
        lines = _lines_of(text)
        rows = _mended(_read(lines, dialect), lines, dialect)
    except csv.Error:
        return replace(decoded, notes=(*decoded.notes, "not readable as a table, given as it is"))
    if not rows.cells:
        return Extraction(notes=decoded.notes)
    usual, _ = _usual(rows.cells)
    titles = next(place for place, row in enumerate(rows.cells) if len(row) >= usual)
    above = rows.cells[:titles]
    is_table = any(len(row) > 1 and not row[0].startswith("#") for row in above)
    if is_table and rows.ends[titles] == rows.ends[titles - 1] + 1:  # no empty line between them: it is one table
        titles, above = 0, []
    blocks = [as_markdown(rows.cells[titles:])]
    if above and is_table:
        blocks.insert(0, as_markdown(above))
    elif above:
        lead = (dialect.delimiter.join(row).rstrip(dialect.delimiter) for row in above)
        blocks.insert(0, Block("\n".join(lead)))
    return Extraction(tuple(blocks), (*decoded.notes, *_notes(dialect, expected, rows, titles)))


read_csv, read_tsv = partial(read_table, expected=","), partial(read_table, expected="\t")


def _read(lines: list[str], dialect: Dialect) -> _TableRows:
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
    usual = _usual(compress(cells, [end not in tall for end in ends]))[0] or _usual(cells)[0]
    # Rows of several lines, and the last one: a quote that is opened there swallows nothing.
    spans = ((tall.get(end, end - 1), end) for end in (*tall, *ends[-1:]))
    if is_whole and all(_is_sound(lines[start:end], dialect, usual) for start, end in spans):
        return _TableRows(cells, ends, {})
    return _repaired(lines, dialect, usual)


def _repaired(lines: list[str], dialect: Dialect, usual: int) -> _TableRows:
    # A quote that is never closed would swallow the rows below it: its line is read alone.
    rows = _TableRows([], [], {"unbalanced quotes kept as they are": []})
    start = 0
    while start < len(lines):
        chunk = lines[start : start + _TALLEST]
        reader, done, is_broken = dialect.rows(chunk), 0, False
        try:
            for row in reader:
                end = reader.line_num
                is_last = start + end == len(lines)
                if end == len(chunk) and done and not is_last:
                    break  # it may go on in the next chunk
                is_broken = (end - done > 1 or is_last) and not _is_sound(chunk[done:end], dialect, usual)
                if is_broken:
                    break
                rows.cells.append(row)
                rows.ends.append(start + end)
                done = end
        except csv.Error:
            is_broken = True
        start += done
        if is_broken:
            rows.cells.append(_alone(lines[start], dialect, usual))
            start += 1
            rows.ends.append(start)
            rows.repairs["unbalanced quotes kept as they are"].append(start)
    return rows


def _is_sound(lines: list[str], dialect: Dialect, usual: int) -> bool:
    try:
        (row,) = dialect.rows(lines, strict=True)
    except (csv.Error, ValueError):
        return False
    return len(lines) == 1 or len(row) == usual or all(len(next(dialect.rows([line]))) != usual for line in lines[1:])


def _alone(line: str, dialect: Dialect, usual: int) -> list[str]:
    quote = dialect.quote
    cells = next(dialect._replace(quote="").rows([line]))
    if len(cells) != usual:
        return next(dialect.rows([line]))
    ends = (quote, quote)
    return [cell[1:-1].replace(quote * 2, quote) if (cell[:1], cell[1:][-1:]) == ends else cell for cell in cells]


def _mended(rows: _TableRows, lines: list[str], dialect: Dialect) -> _TableRows:
    # Without rows without text and empty columns at the end; rows of another delimiter are read by that.
    # Usually the first cell has text: asked inline, the quickest for very many rows.
    texts = [bool(row and row[0].strip()) or any(map(str.strip, row)) for row in rows.cells]
    cells, ends = list(compress(rows.cells, texts)), list(compress(rows.ends, texts))
    usual, _ = _usual(cells)
    repairs = dict(rows.repairs)
    for place, row in enumerate(cells):
        # Two cells are too few to know that another delimiter was meant.
        for mark in COMMON if len(row) < usual > 2 else ():
            other = next(dialect._replace(delimiter=mark).rows([lines[ends[place] - 1]]))
            if len(other) == usual:
                cells[place] = other
                repairs.setdefault(f"separated by {NAMES[mark]}", []).append(ends[place])
                break
    width = widest = max(map(len, cells), default=0)
    while width and not any(row[width - 1 : width] and row[width - 1].strip() for row in cells):
        width -= 1
    if len(cells) < len(texts):
        repairs[EMPTY] = [end for row, end, text in zip(rows.cells, rows.ends, texts, strict=True) if row and not text]
    if width < widest:
        repairs[LEFT_OUT] = [end for row, end in zip(cells, ends, strict=True) if len(row) > width]
    return _TableRows(cells if width == widest else [row[:width] for row in cells], ends, repairs)


def _usual(rows: Iterable[Sequence[str]]) -> tuple[int, int]:
    # The commonest number of cells, of equally common ones the largest, and how many rows have it.
    widths = Counter(map(len, rows))
    del widths[0]
    return max(widths.items(), key=lambda item: (item[1], item[0]), default=(0, 0))


def _notes(dialect: Dialect, expected: str, rows: _TableRows, titles: int) -> Iterator[str]:
    if dialect.delimiter != expected:
        yield f"cells separated by {NAMES.get(dialect.delimiter, dialect.delimiter)}"
    if dialect.quote not in ('"', ""):
        yield f"cells quoted by {dialect.quote}"
    if dialect.escape:
        yield ESCAPED
    if dialect.skips_spaces:
        yield SPACED
    header = rows.ends[titles] - sum(cell.count("\n") for cell in rows.cells[titles])
    if header > 1:
        yield f"header in line {header}"
    yield f"{counted(len(rows.cells) - titles - 1, 'row')}, {counted(max(map(len, rows.cells)), 'column')}"
    usual, _ = _usual(rows.cells)
    ragged = [end for row, end in zip(rows.cells[titles:], rows.ends[titles:], strict=True) if len(row) != usual]
    odd = f"{counted(len(ragged), 'row')} without the usual {counted(usual, 'cell')} kept"
    for repair, ends in ((odd, ragged), *rows.repairs.items()):
        if ends:
            more = ", ..." * (len(ends) > _NAMED_LINES)
            yield f"{repair} (line {', '.join(map(str, ends[:_NAMED_LINES]))}{more})"


class Dialect(NamedTuple):
    """The marks of a table; no `quote` or `escape` where it is empty, doubled quotes count always."""

    delimiter: str
    quote: str = '"'
    escape: str = ""
    skips_spaces: bool = False

    def rows(self, lines: Iterable[str], *, strict: bool = False) -> Reader:
        """A reader of the lines, which end with a line feed.

        Raises:
            csv.Error: while reading, for a cell of more than 131,072 characters, or a misplaced quote if `strict`.
        """
        if self.escape:
            # The reader drops every backslash: those in front of ordinary letters are doubled.
            ordinary = re.compile(rf"\\(?![{re.escape(self.delimiter + self.quote)}\\\n])|\\\\")
            lines = (ordinary.sub(r"\\\\", line) for line in lines)
        return csv.reader(
            lines,
            delimiter=self.delimiter,
            quotechar=self.quote or None,
            quoting=csv.QUOTE_MINIMAL if self.quote else csv.QUOTE_NONE,
            escapechar=self.escape or None,
            skipinitialspace=self.skips_spaces,
            strict=strict,
        )


def _lines_of(text: str) -> list[str]:
    # With their line feeds; other characters that end lines elsewhere belong to cells.
    lines = text.splitlines(keepends=True)  # three times as fast, and the same where there are no such characters
    is_same = len(lines) == text.count("\n") + (not text.endswith("\n") and bool(text))
    return lines if is_same else list(io.StringIO(text))


def detect(text: str, expected: str) -> Dialect:
    """The dialect under which the first rows agree in width and their cells look like values."""
    sample = text if len(text) <= _SAMPLE else text[:_SAMPLE].rpartition("\n")[0] or text[:_SAMPLE]
    lines, usual = _lines_of(sample), Dialect(expected)
    scores = {dialect: _score(lines, dialect) for dialect in _candidates(sample, expected)}
    # Of equally good ones that which differs least from what is usual.
    best = max(scores, key=lambda dialect: (scores[dialect], sum(map(eq, dialect, usual))), default=usual)
    return best if scores.get(best) else usual


def _candidates(sample: str, expected: str) -> Iterator[Dialect]:
    escapes = ("", "\\") if _ESCAPED.search(sample) else ("",)
    for delimiter in dict.fromkeys((expected, *COMMON, *_RARE)):
        if delimiter not in sample:
            continue
        starts = (delimiter, f"{delimiter} ", "\n")
        others = (mark for mark in _QUOTES[1:] if any(start + mark in f"\n{sample}" for start in starts))
        is_spaced = delimiter == " " or 2 * sample.count(f"{delimiter} ") > sample.count(delimiter)
        quotes = ('"', *others, "")
        for escape, quote, skips in product(escapes, quotes, (False, True) if is_spaced else (False,)):
            if quote or escape:
                yield Dialect(delimiter, quote, escape, skips)


def _score(lines: Sequence[str], dialect: Dialect) -> float:
    try:
        rows = [row for row in islice(dialect.rows(lines), _ROWS) if any(map(str.strip, row))]
    except csv.Error:
        return 0
    width, agreeing = _usual(rows)
    if width <= 1:
        return 0
    cells = list(islice((cell for row in rows if len(row) == width for cell in row), _CELLS))
    score = agreeing / len(rows) * sum(map(_value, cells)) / len(cells)
    if dialect.delimiter in COMMON:
        return score
    # "10:30" below "9:15", or "Hall 9" below "Hall 8", is rather one column of times or names.
    texts = [line for line in lines[:_ROWS] if line.strip()]
    texts = texts[1:] or texts
    alone = sum(map(_value, texts)) / len(texts)
    is_likely = score >= _ENOUGH and alone < _VALUES
    aligned = sum((dialect.quote or _QUOTES[0]) in text or "  " in text for text in texts) > _SOME * len(texts)
    if (dialect.delimiter == " " and not aligned) or (dialect.delimiter == ":" and width == 2):
        is_likely = is_likely and _RARELY * score > alone and (width > 2 or dialect.delimiter == ":")
    return _RARELY * score * is_likely


def _value(cell: str) -> float:
    # A value is as it was meant; marks of another dialect in a cell show that this is not the right one.
    if _VALUE.fullmatch(cell):
        return 0.99 if cell.startswith(" ") else 1
    text = cell.strip()
    is_open = text[-1:] in _QUOTES and text.count(text[-1]) % 2 == 1
    if is_open or text.startswith(_QUOTES) or _LEFT.search(text):
        return 0.1
    return 0.8 if _TEXT.fullmatch(cell) else 0.5
