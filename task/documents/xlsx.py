"""Reader of Excel workbooks: sheets, shared strings, and what each cell shows."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta
from decimal import ROUND_HALF_UP, Decimal
from functools import cache
from itertools import takewhile

from task.documents.model import Block, Extraction, Piece, Repeats, blocks_of, heading, runs_of, table
from task.documents.office import Element, Package, attribute, child, each, local, open_package, whole_number
from task.documents.tables import EMPTY

MOST_ROWS = 100_000
"""Rows read of one workbook; where the rest begins is named."""
_MOST_CELLS = 5_000_000
_MOST_RANGES = 10
_COLUMNS = 16_384
_RANGE = re.compile(r"([A-Z]{1,3})(\d{1,7}):([A-Z]{1,3})(\d{1,7})")
_PLAIN_NUMBER = re.compile(r"-?\d{1,15}")
_HEX = re.compile(r"_x([0-9A-Fa-f]{4})_")  # ECMA-376 22.9.2.19: how a workbook writes control characters
Shown = Callable[[float], str]
_Token = tuple[str, str]  # its kind and its text

DATE = "yyyy-mm-dd"
BUILT_IN = {
    **dict(enumerate(("0", "0.00", "#,##0", "#,##0.00"), 1)),
    **dict(enumerate(("0%", "0.00%", "0.00E+00"), 9)),
    **dict(enumerate((DATE, "d-mmm-yy", "d-mmm", "mmm-yy"), 14)),
    **dict(enumerate(("h:mm AM/PM", "h:mm:ss AM/PM", "h:mm", "h:mm:ss", f"{DATE} h:mm"), 18)),
    **dict.fromkeys((37, 38), "#,##0;(#,##0)"),
    **dict.fromkeys((39, 40), "#,##0.00;(#,##0.00)"),
    **dict(enumerate(("#,##0", "#,##0", "#,##0.00", "#,##0.00", "mm:ss", "[h]:mm:ss", "mm:ss.0", "0.0E+00"), 41)),
    **dict.fromkeys((*range(27, 37), *range(50, 59)), DATE),
}
"""The format codes that files only refer to by number; dates in the reader's local form become ISO dates."""

_LONGEST_CODE = 255  # Excel takes no longer ones
_TOKEN = re.compile(
    r'"(?P<quoted>[^"]*)"|\\(?P<escaped>.)|[_*].|\[\$(?P<currency>[^\[\]-]*+)[^\[\]]*+\]|\[(?P<elapsed>h+|m+|s+)\]|\[[^\[\]]*+\]'
    r"|(?P<half>AM/PM|A/P)|(?P<date>y+|m+|d+|h+|s+(?:\.0+)?)|(?P<power>E[+-]0+)|(?P<digits>General|[0#?][0#?,]*(?:\.[0#?]*)?|\.[0#?]+)"
    r"|(?P<percent>%)|(?P<next>;)|(?P<other>.)",
    re.IGNORECASE,
)
_LITERALS, _TIMES = ("quoted", "escaped", "currency", "other"), ("date", "elapsed")
# Of strftime, for one or two of a letter, for three, and for more.
_DIRECTIVES = {"y": "yYY", "m": "mbB", "d": "daA", "s": "SSS"}
_EPOCHS = {False: datetime(1899, 12, 30), True: datetime(1904, 1, 1)}
_LAST_DAY = 2_958_465


def read_xlsx(content: bytes, content_type: str = "") -> Extraction:
    """Every sheet under its name as a Markdown table: numbers, dates and percentages as Excel shows them.

    Merged cells repeat their text, formulas give the value saved with them.
    """
    package = open_package(content)
    workbook = package.xml(package.main)
    cells = _CellTexts(package, workbook)
    blocks, notes, hidden = list[Block](), list[str](), list[str]()
    room, number, relations = MOST_ROWS, 0, package.relations(package.main)
    for element in workbook.iterfind("{*}sheets/{*}sheet"):
        relation = relations.get(attribute(element, "id"))
        if relation is None or relation.kind != "worksheet" or relation.target not in package:
            continue
        number += 1
        name = title = attribute(element, "name")
        if attribute(element, "state") in ("hidden", "veryHidden"):
            hidden.append(name)
            title += " (hidden)"
        sheet = _Sheet(package, relation.target, cells, room)
        room -= len(sheet.rows)
        blocks += blocks_of([heading(f"Sheet: {title}", 2), *sheet.pieces()], number)
        if places := ", ".join(sheet.places()):
            notes.append(f"sheet {name}: {places}")
        if sheet.is_cut:
            notes.append(f"sheet {name}: cut off after {len(sheet.rows):,} rows")
    if cells.uncalculated:
        notes.append(f"formulas without a saved value, shown as they are: {cells.uncalculated}")
    if hidden:
        notes.append(f"hidden sheets: {', '.join(hidden)}")
    return Extraction(tuple(blocks), (*package.notes(), *notes))


class _Sheet:
    """The rows of one sheet, merged cells filled; `is_cut` after `room` rows, or where cells are too many."""

    def __init__(self, package: Package, part: str, cells: _CellTexts, room: int) -> None:
        self.rows, self.is_cut = list[list[str]](), False
        self._numbers, merged, places = list[int](), list[str](), 0
        with package.leaving_out(part):
            for element in package.elements(part, ("row", "mergeCell")):
                if local(element) == "mergeCell":
                    merged.append(attribute(element, "ref"))
                elif any(row := cells.row(element)):
                    places += len(row)
                    if len(self.rows) == room or places > _MOST_CELLS:
                        self.is_cut = True
                        break
                    self.rows.append(row)
                    self._numbers.append(whole_number(element.get("r", ""), len(self._numbers) + 1))
        widths = [sum(map(bool, row)) for row in self.rows[:20]]
        is_table = max(widths, default=0) > 1
        self._title_rows = len(list(takewhile(lambda width: width == 1, widths))) if is_table else 0
        self._fill(merged, package.repeats)
        self._table = self.rows[self._title_rows :]
        self._columns = sorted({column for row in self._table for column, cell in enumerate(row) if cell})
        if self._columns != list(range(max(map(len, self._table), default=0))):  # without empty columns
            used = self._columns
            self._table = [[row[column] for column in used[: bisect_left(used, len(row))]] for row in self._table]
        # All rows become as wide as the widest: a single wide row must not make the table too large.
        most = _MOST_CELLS // max(map(len, self._table), default=1)
        self.is_cut = self.is_cut or len(self._table) > most
        del self._table[most:]
        del self.rows[self._title_rows + most :]

    def pieces(self) -> list[Piece]:
        if not self.rows:
            return [Piece("text", "(left out)" if self.is_cut else "(empty)")]
        titles = [Piece("text", " ".join(filter(None, row))) for row in self.rows[: self._title_rows]]
        return [*titles, *filter(None, [table(self._table)])]

    def places(self) -> Iterator[str]:
        """Where the table is, if it does not begin at A1, and whether it has gaps."""
        numbers = self._numbers[self._title_rows : len(self.rows)]
        if len(numbers) < 2:
            return
        if numbers[0] > 1 or len(self._columns) <= self._columns[-1]:
            runs = runs_of(self._columns)
            ends = [(_letters_of(first), _letters_of(last)) for first, last in runs[:_MOST_RANGES]]
            ranges = ",".join(first if first == last else f"{first}:{last}" for first, last in ends)
            # The packaged model loads tables by this note.
            yield f"header in row {numbers[0]}, columns {ranges}{'...' * (len(runs) > _MOST_RANGES)}"
        if numbers[-1] - numbers[0] >= len(numbers):
            yield EMPTY

    def _fill(self, merged: Sequence[str], repeats: Repeats) -> None:
        width = max(map(len, self.rows), default=0)
        for match in filter(None, map(_RANGE.fullmatch, merged)):
            left, right = _column_of(match[1]), min(_column_of(match[3]), width - 1)
            top, bottom = bisect_left(self._numbers, int(match[2])), bisect_right(self._numbers, int(match[4]))
            if left <= right and self._title_rows <= top < bottom and self._numbers[top] == int(match[2]):
                first = self.rows[top]
                text = first[left] if left < len(first) else ""
                for row in self.rows[top:bottom]:
                    if not (again := repeats.of(text, right + 1 - left)):
                        return
                    row += [""] * (right + 1 - len(row))
                    row[left : right + 1] = again


class _CellTexts:
    """Renders cells as Excel shows them; counts the formulas that were never calculated."""

    def __init__(self, package: Package, workbook: Element) -> None:
        part = next(iter(package.parts("sharedStrings")), None)
        self._strings = [] if part is None else [_string_of(element) for element in package.elements(part, ("si",))]
        is_1904 = attribute(child(workbook, "workbookPr"), "date1904") in ("1", "true")
        styles = package.first("styles")
        numbered = each(styles, "{*}numFmts/{*}numFmt")
        codes = {attribute(element, "numFmtId"): attribute(element, "formatCode") for element in numbered}

        @cache
        def shown(number: str) -> Shown:
            code = codes.get(number) or BUILT_IN.get(whole_number(number, 0), "General")
            return general if code in ("General", "@") else shown_as(code, from_1904=is_1904)

        self._formats = [shown(attribute(style, "numFmtId") or "0") for style in each(styles, "{*}cellXfs/{*}xf")]
        self.uncalculated = 0

    def row(self, element: Element) -> list[str]:
        """The row's cells from column A on, as text."""
        texts: list[str] = []
        for cell in element:
            if (reference := cell.get("r")) is not None:
                column = _column_of(reference.rstrip("0123456789"))
                if column > len(texts):
                    texts += [""] * (column - len(texts))
            texts.append(self._text(cell))
        return texts

    def _text(self, cell: Element) -> str:
        kind, raw, formula = cell.get("t", "n"), None, None
        for part in cell:
            name = local(part)
            if name == "v":
                raw = part.text
            elif name == "f":
                formula = part
            elif name == "is":
                return _string_of(part)
        if raw is None:
            self.uncalculated += formula is not None
            return "" if formula is None else f"={formula.text or ''}"
        if kind == "s":
            index = whole_number(raw, len(self._strings))
            return self._strings[index] if index < len(self._strings) else ""
        if kind == "b":
            return "TRUE" if raw == "1" else "FALSE"
        if kind != "n":
            return _unescaped(raw)
        index = whole_number(cell.get("s", "0"), 0)
        shown = self._formats[index] if index < len(self._formats) else general
        if shown is general and _PLAIN_NUMBER.fullmatch(raw):
            return raw
        try:
            return shown(float(raw))
        except (ValueError, OverflowError):
            return raw


def _string_of(element: Element) -> str:
    # The runs joined, without the reading aids of East Asian scripts.
    texts = [
        part.text or "" if local(part) == "t" else "".join(run.text or "" for run in part.iterfind("{*}t"))
        for part in element
        if local(part) in ("t", "r")
    ]
    return _unescaped("".join(texts))


def _unescaped(text: str) -> str:
    def character(match: re.Match[str]) -> str:
        letter = chr(int(match.group(1), 16))
        return letter if letter.isprintable() or letter in "\t\r\n" else ""

    return _HEX.sub(character, text).replace("\r\n", "\n") if "_x" in text else text


def _letters_of(column: int) -> str:
    before, last = divmod(column, 26)
    return (_letters_of(before - 1) if before else "") + chr(ord("A") + last)


@cache
def _column_of(letters: str) -> int:
    # Counted from 0, and at most the last one that Excel has.
    column = 0
    for letter in letters[:3]:
        column = column * 26 + ord(letter) % 32
    return min(max(column, 1), _COLUMNS) - 1


def shown_as(code: str, *, from_1904: bool = False) -> Shown:
    """The function that renders a number with the format code, as English Excel does."""
    sections = [list[_Token]()]
    for match in _TOKEN.finditer(code[:_LONGEST_CODE]):
        kind = match.lastgroup
        if kind == "next":
            sections.append([])
        elif kind:
            sections[-1].append(("literal" if kind in _LITERALS else kind, match[kind]))
    if any(kind in _TIMES for kind, _ in sections[0]):
        return lambda number: _date(number, sections[0], from_1904)
    if not any(kind == "digits" for tokens in sections for kind, _ in tokens):
        return general
    return lambda number: _number(number, sections)


def general(number: float) -> str:
    """A number with the fifteen digits that Excel keeps, without trailing zeros."""
    return f"{number or 0:.15g}"  # never "-0"


def _number(number: float, sections: Sequence[list[_Token]]) -> str:
    tokens, size = sections[0], number
    if number < 0 and len(sections) > 1:
        tokens, size = sections[1], -number
    elif number == 0 and len(sections) > 2:
        tokens = sections[2]
    kinds = [kind for kind, _ in tokens]
    if kinds.count("digits") > 1:  # fractions, telephone numbers
        return general(number)
    size *= 100 ** kinds.count("percent")
    texts: list[str] = []
    for kind, text in tokens:
        if kind == "digits" and "power" in kinds:
            decimals = len(text.partition(".")[2])
            digits, _, exponent = f"{abs(size):.{decimals}E}".partition("E")
            texts.append(f"{digits}E{exponent[0]}{exponent[1:]:0>2}")
        elif kind == "digits":
            texts.append(_digits(abs(size), text))
        elif kind != "power":
            texts.append(text)
    return "-" * (size < 0) + "".join(texts).strip()


def _digits(size: float, mask: str) -> str:
    if mask.lower() == "general":
        return general(size)
    whole, point, decimals = mask.partition(".")
    thousands = "," in whole.rstrip(",")
    scaled = Decimal(repr(size)).scaleb(-3 * (len(whole) - len(whole.rstrip(","))))
    try:
        rounded = scaled.quantize(Decimal(1).scaleb(-len(decimals)), ROUND_HALF_UP)
    except ArithmeticError:  # more digits than a decimal keeps
        return general(size)
    left, _, right = f"{rounded:,f}".partition(".") if thousands else f"{rounded:f}".partition(".")
    least = sum(mark in "0?" for mark in whole)
    left = "" if left == "0" and not least else left.zfill(least)
    kept = len(decimals.rstrip("#"))
    right = right[:kept] + right[kept:].rstrip("0")
    return f"{left}{point}{right}" if right else left


def _date(number: float, tokens: Sequence[_Token], from_1904: bool) -> str:
    if not 0 <= number <= _LAST_DAY:
        return general(number)
    early = not from_1904 and number < 60  # Excel counts a 29 February 1900
    moment = _EPOCHS[from_1904] + timedelta(days=number + early, milliseconds=0.5)
    halves = any(kind == "half" for kind, _ in tokens)
    texts, before = list[str](), ""
    for index, (kind, text) in enumerate(tokens):
        letter = text[0].lower() if kind in _TIMES else ""
        if kind == "elapsed":
            units = {"h": 24, "m": 24 * 60, "s": 24 * 3600}[letter]
            texts.append(str(int(number * units + 1e-6)).zfill(len(text)))
        elif kind == "half":
            texts.append("AM" if moment.hour < 12 else "PM")
        elif kind == "date":
            # An "m" is minutes after hours and before seconds, else months.
            after = next((later[0].lower() for kind, later in tokens[index + 1 :] if kind in _TIMES), "")
            texts.append(_moment(moment, text.lower(), halves, before == "h" or after == "s"))
        else:
            texts.append(text)
        before = letter or before
    return "".join(texts).strip()


def _moment(moment: datetime, text: str, halves: bool, is_minute: bool) -> str:
    letters, _, fraction = text.partition(".")
    letter, length = letters[0], len(letters)
    if letter == "h":
        directive = "I" if halves else "H"
    elif letter == "m" and is_minute:
        directive = "M"
    else:
        directive = _DIRECTIVES[letter][min(max(length, 2), 4) - 2]
    shown = moment.strftime(f"%{directive}")
    if length == 1 and letter != "y":
        shown = shown.lstrip("0") or "0"
    elif length == 5 and directive == "B":  # the initial of the month
        shown = shown[0]
    return shown + (f".{moment.microsecond:06d}"[: len(fraction) + 1] if fraction else "")
