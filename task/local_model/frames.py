"""Tables that were read, as programs find them: loaded with the reader's delimiter, decimal sign, columns and types."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, Literal, cast

import orjson

from task.documents.csv_dialect import NAMES
from task.documents.tables import EMPTY, ESCAPED, LEFT_OUT, SPACED

LOADERS = {".csv": "read_csv", ".tsv": "read_csv", ".xlsx": "read_excel", ".xls": "read_excel"}
DELIMITERS = {name: mark for mark, name in NAMES.items()}  # others are named by themselves
TABLES = frozenset({*LOADERS, ".json"})
PAGES = "**Page #"  # below a text with several pages
SHOWN_VALUES = 8  # of a column of words: enough to see what a filter compares with
SAMPLES = 2
VALUE_CHARS = 30
_SHEET = re.compile(r"^## Sheet: (.+)$", re.MULTILINE)
_TABLE = re.compile(r"^\|(.+)\|\n\|[ |:-]+\|\n((?:\|.*\|(?:\n|$))*)", re.MULTILINE)
_CELLS = re.compile(r"(?<!\\)\|")
_SEPARATED = re.compile(r"cells separated by ([^;\n]+|;)")
_ENCODED = re.compile(r"\*\*Report\*\*: (?:[^\n]*; )?encoding ([\w-]+)")
_QUOTED = re.compile(r"cells quoted by (.)")
_HEADER = re.compile(r"header in line (\d+)")
_REPAIRED = re.compile(r"(?:kept as they are|separated by \S+) \(line ")
_ROWS = re.compile(r"(?<![\d,])([\d,]{1,20}) rows?, ")
_AMOUNT = r"[-+]?(?:\d{1,3}(?:[.,]\d{3})+(?:[.,]\d+)?|\d+(?:[.,]\d+)?|[.,]\d+)"
_NUMBER = re.compile(rf"([^\w\s.,+-] ?)?({_AMOUNT})( ?(?:%|[^\w\s.,]|[A-Z]{{3}}))?")
_ISO = re.compile(r"\d{4}-\d\d-\d\d(?:[ T]\d\d:\d\d(?::\d\d)?)?")
_DOTTED = re.compile(r"\d{1,2}\.\d{1,2}\.\d{4}")
_COMMA_DECIMALS = re.compile(r"\.\d{3},\d|^[-+]?\d+,(?:\d{1,2}|\d{4,})$|^[-+]?0,\d")
_POINT_DECIMALS = re.compile(r",\d{3}\.\d|^[-+]?\d*\.(?:\d{1,2}|\d{4,})$|^[-+]?0\.\d")
Kind = Literal["number", "date", "text"]


@dataclass(frozen=True, slots=True)
class Column:
    """A column's name and type, with its different values as far as the read page shows them."""

    name: str
    kind: Kind
    values: tuple[str, ...]

    def __str__(self) -> str:
        count = SHOWN_VALUES if self.kind == "text" else SAMPLES
        shown = ", ".join(value[:VALUE_CHARS] for value in self.values[:count])
        return f"{self.name!r} ({self.kind}: {shown}{', …' if len(self.values) > count else ''})"


@dataclass(frozen=True, slots=True)
class Frame:
    """One table: its title, its columns, how many rows it has, and the expression that loads it.

    `is_whole`: the columns' values are those of all rows, not only a first page. `amounts` are the columns of numbers
    with a currency or a percent sign, which pandas leaves as text; `comma`: it is their decimal sign.
    """

    title: str
    columns: tuple[Column, ...]
    rows: str
    loaded: str
    is_whole: bool = True
    amounts: tuple[str, ...] = ()
    comma: bool = False

    def __str__(self) -> str:
        return f"{self.title}, {self.rows} rows with the columns {', '.join(map(str, self.columns))}"

    def program(self, variable: str) -> str:
        """The lines that put the table into a variable."""
        repairs = (_without_signs(f"{variable}[{name!r}]", self.comma) for name in self.amounts)
        return "\n".join([f"{variable} = {self.loaded}", *repairs])


def is_table(name: str) -> bool:
    """Whether a file of this name may hold a table."""
    return PurePosixPath(name).suffix.lower() in TABLES


def frames_of(name: str, text: str) -> tuple[Frame, ...]:
    """The tables in what the reader has made of the file `name`: one, or one for each sheet."""
    if not is_table(name):
        return ()
    if name.lower().endswith(".json"):
        return tuple(_json_frame(name, text))
    sheets = _SHEET.split(text)
    if len(sheets) <= 3:
        return tuple(_frame(name, text))
    pairs = zip(sheets[1::2], sheets[2::2], strict=True)
    return tuple(frame for sheet, part in pairs for frame in _frame(name, part, sheet))


def _frame(name: str, text: str, sheet: str = "") -> Iterator[Frame]:
    tables = [each for each in _TABLE.finditer(text) if each[2]]
    if not tables:
        return
    found = tables[-1 if _is_text(name) else 0]  # what stands above a table of a text file may be one as well
    head, rows = _cells(f"|{found[1]}|"), [_cells(line) for line in found[2].splitlines()]
    names = [cell or f"column {place}" for place, cell in enumerate(head, 1)]
    report, titles = _report(text[: found.start()])
    # Pandas would take a title for the header, and reads damaged rows in another way.
    if len(set(names)) < len(names) or (titles and not _is_text(name)) or _REPAIRED.search(report):
        return
    columns = tuple(_column(column, [row[place] for row in rows]) for place, column in enumerate(names))
    counted = _ROWS.search(report)
    options = _text_options(name, report, columns, names != head) if _is_text(name) else []
    if sheet:
        options.append(f"sheet_name={sheet!r}")
    if dates := [column.name for column in columns if column.kind == "date"]:
        options.append(f"parse_dates={dates!r}")
        if any(_DOTTED.fullmatch(value) for column in columns if column.kind == "date" for value in column.values):
            options.append("dayfirst=True")
    loader = LOADERS[PurePosixPath(name).suffix.lower()]
    loaded = f"pd.{loader}({', '.join([repr(name), *options])})"
    if "skipinitialspace=True" in options:
        loaded += r".replace(r'\s+$', '', regex=True)"
    if EMPTY in report:
        loaded += ".dropna(how='all')"
    amounts = tuple(column.name for column in columns if _has_signs(column))
    size = counted[1] if counted else str(len(rows))
    is_whole = size.replace(",", "") == str(len(rows)) and PAGES not in text
    yield Frame(
        f"{name}, sheet {sheet}" if sheet else name, columns, size, loaded, is_whole, amounts, "decimal=','" in options
    )


def _is_text(name: str) -> bool:
    return LOADERS[PurePosixPath(name).suffix.lower()] == "read_csv"


def _text_options(name: str, report: str, columns: Sequence[Column], unnamed: bool) -> list[str]:
    # How pandas reads what our reader has read: its report names whatever differs from plain UTF-8 with commas
    options: list[str] = []
    separated = _SEPARATED.search(report)
    usual = "\t" if name.lower().endswith(".tsv") else ","
    delimiter = DELIMITERS.get(separated[1], separated[1]) if separated else usual
    if delimiter != ",":
        options.append(f"sep={delimiter!r}")
    options += _signs([value for column in columns if column.kind == "number" for value in column.values], delimiter)
    if quoted := _QUOTED.search(report):
        options.append(f"quotechar={quoted[1]!r}")
    options += ["escapechar='\\\\'"] if ESCAPED in report else []
    options += ["skipinitialspace=True"] if SPACED in report else []
    header, names = _HEADER.search(report), [column.name for column in columns]
    # Rows may be longer than the header, which pandas would refuse; and it keeps line ends and spaces in names
    if unnamed or header or SPACED in report or LEFT_OUT in report or any("<br>" in each for each in names):
        options.append(f"skiprows={header[1] if header else 1}, names={names!r}, usecols=range({len(names)})")
    encoded = _ENCODED.search(report)
    if encoded and (codec := _codec(encoded[1])):
        options.append(f"encoding={codec!r}")
    return options


def _report(before: str) -> tuple[str, bool]:
    # The reader's notes, and whether there is more than they and a sheet's name
    first, _, others = before.strip().partition("\n")
    report, others = (first, others) if first.startswith("**Report**") else ("", before)
    return report, any(line.strip() and not line.startswith("## Sheet: ") for line in others.splitlines())


def _signs(values: Sequence[str], delimiter: str) -> list[str]:
    bare = [match[2] for value in values if (match := _NUMBER.fullmatch(value))]
    commas, points = (any(sign in value for value in bare) for sign in ",.")
    by_comma = any(map(_COMMA_DECIMALS.search, bare)) and not any(map(_POINT_DECIMALS.search, bare))
    if by_comma or (delimiter == ";" and commas and not any(map(_POINT_DECIMALS.search, bare))):
        return ["decimal=','", *(["thousands='.'"] if points else [])]
    return ["thousands=','"] if commas else []


def _codec(name: str) -> str:
    try:
        return codecs.lookup(name).name
    except LookupError:
        return ""


def _has_signs(column: Column) -> bool:
    numbers = (_NUMBER.fullmatch(value) for value in column.values) if column.kind == "number" else ()
    return any(match and (match[1] or match[3]) for match in numbers)


def _without_signs(column: str, comma: bool) -> str:
    plain = r""".str.replace(r"[^\d.,+-]", "", regex=True)"""
    points = """.str.replace(".", "").str.replace(",", ".")""" if comma else """.str.replace(",", "")"""
    return f"{column} = {column}.astype(str){plain}{points}.astype(float)"


def _column(name: str, cells: Sequence[str]) -> Column:
    values = tuple(dict.fromkeys(filter(None, cells)))
    kinds: tuple[tuple[Kind, Sequence[re.Pattern[str]]], ...] = (("number", (_NUMBER,)), ("date", (_ISO, _DOTTED)))
    for kind, patterns in kinds:
        if values and any(all(pattern.fullmatch(value) for value in values) for pattern in patterns):
            return Column(name, kind, values)
    return Column(name, "text", values)


def _cells(line: str) -> list[str]:
    return [cell.strip().replace("\\|", "|") for cell in _CELLS.split(line.strip()[1:-1])]


def _json_frame(name: str, text: str) -> Iterator[Frame]:
    try:
        content: Any = orjson.loads(text)
    except orjson.JSONDecodeError:  # one page of several, or not JSON at all
        return
    for key, value in ((None, content), *(content.items() if isinstance(content, dict) else ())):
        if _is_records(value):
            records = cast("list[dict[str, Any]]", value)
            names = list(dict.fromkeys(field for record in records for field in record))
            columns = tuple(_column(field, [_shown(record.get(field)) for record in records]) for field in names)
            opened = f"json.loads(Path({name!r}).read_bytes())" + (f"[{key!r}]" if key is not None else "")
            title = name if key is None else f"{name}, {key}"
            yield Frame(title, columns, str(len(records)), f"pd.DataFrame({opened})")


def _is_records(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(each, dict) for each in cast("list[Any]", value))


def _shown(value: Any) -> str:
    return "" if value is None else value if isinstance(value, str) else orjson.dumps(value).decode()
