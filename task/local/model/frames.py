"""Tables that were read, as programs find them: loaded with the reader's delimiter, decimal sign, columns and types."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, cast

import orjson

from task.documents.tables import EMPTY, ESCAPED, LEFT_OUT, NAMES, SPACED
from task.local.model.columns import Column, column_of, has_signs, sign_options, type_options, without_signs

LOADERS = {".csv": "read_csv", ".tsv": "read_csv", ".xlsx": "read_excel", ".xls": "read_excel"}
DELIMITERS = {name: mark for mark, name in NAMES.items()}  # others are named by themselves
TABLES = frozenset({*LOADERS, ".json"})
PAGES = "**Page #"  # below a text with several pages
_SHEET = re.compile(r"^## Sheet: (.+)$", re.MULTILINE)
_TABLE = re.compile(r"^\|(.+)\|\n\|[ |:-]+\|\n((?:\|.*\|(?:\n|$))*)", re.MULTILINE)
_CELLS = re.compile(r"(?<!\\)\|")
_SEPARATED = re.compile(r"cells separated by ([^;\n]+|;)")
_ENCODED = re.compile(r"\*\*Report\*\*: (?:[^\n]*; )?encoding ([\w-]+)")
_QUOTED = re.compile(r"cells quoted by (.)")
_HEADER = re.compile(r"header in line (\d+)")
_PLACED = re.compile(r"header in row (\d+), columns ([A-Z:,]+)(?=, |;|$)", re.MULTILINE)
_REPAIRED = re.compile(r"(?:kept as they are|separated by \S+) \(line ")
_ROWS = re.compile(r"(?<![\d,])([\d,]{1,20}) rows?, ")


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
        listed = ", ".join(map(str, self.columns))
        amounts = [each.name for each in self.columns if each.kind == "number" and not each.is_numbering]
        # Named here, a small model thinks of it where a price belongs to a quantity.
        product = f" (for sums also {' * '.join(amounts)!r})" if len(amounts) == 2 else ""
        return f"{self.title}, {self.rows} rows{product} with the columns {listed}"

    def program(self, variable: str) -> str:
        """The lines that put the table into a variable."""
        repairs = (without_signs(f"{variable}[{name!r}]", self.comma) for name in self.amounts)
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
    before, *sheets = _SHEET.split(text)
    if not sheets:
        return tuple(_text_frame(name, text))
    is_single = len(sheets) == 2
    pairs = zip(sheets[::2], sheets[1::2], strict=True)
    return tuple(frame for sheet, part in pairs for frame in _sheet_frame(name, before, sheet, part, is_single))


def _text_frame(name: str, text: str) -> Iterator[Frame]:
    for found in _tables(text)[-1:]:  # what stands above a table may be one as well
        above = text[: found.start()].strip()
        report = above.partition("\n")[0] if above.startswith("**Report**") else ""
        if _REPAIRED.search(report):  # pandas reads damaged rows in another way
            return
        columns = _columns(found)
        yield from _frame(name, text, found, columns, _text_options(name, report, columns, _cells(found[1])), report)


def _sheet_frame(name: str, before: str, sheet: str, text: str, is_single: bool) -> Iterator[Frame]:
    own = sheet.removesuffix(" (hidden)") if "hidden sheets: " in before else sheet
    noted = re.search(rf"(?:: |; )sheet {re.escape(own)}: ([^;\n]*)", before)
    report = noted[1] if noted else ""
    place = _PLACED.match(report)
    for found in _tables(text)[:1]:
        if report.startswith("header") and place is None:  # in too many columns that are apart
            return
        columns, options = _columns(found), [] if is_single else [f"sheet_name={own!r}"]
        if place:
            names = [column.name for column in columns]
            options.append(f"skiprows={place[1]}, header=None, names={names!r}, usecols={place[2]!r}")
        yield from _frame(name, text, found, columns, options, report, "" if is_single else f", sheet {sheet}")


def _tables(text: str) -> list[re.Match[str]]:
    return [each for each in _TABLE.finditer(text) if each[2]]


def _columns(table: re.Match[str]) -> tuple[Column, ...]:
    rows = [_cells(line[1:-1]) for line in table[2].splitlines()]
    names = [cell or f"column {place}" for place, cell in enumerate(_cells(table[1]), 1)]
    return tuple(column_of(name, [row[place] for row in rows]) for place, name in enumerate(names))


def _frame(
    name: str,
    text: str,
    table: re.Match[str],
    columns: tuple[Column, ...],
    options: Sequence[str],
    report: str,
    part: str = "",
) -> Iterator[Frame]:
    if len({column.name for column in columns}) < len(columns):
        return
    given = [repr(name), *options, *type_options(columns)]
    loaded = f"pd.{LOADERS[PurePosixPath(name).suffix.lower()]}({', '.join(given)})"
    if "skipinitialspace=True" in options:
        loaded += r".replace(r'\s+$', '', regex=True)"
    if EMPTY in report:
        loaded += ".dropna(how='all')"
    amounts = tuple(column.name for column in columns if has_signs(column))
    counted, shown = _ROWS.search(report), len(table[2].splitlines())
    size = counted[1] if counted else str(shown)
    is_whole = size.replace(",", "") == str(shown) and PAGES not in text
    yield Frame(f"{name}{part}", columns, size, loaded, is_whole, amounts, "decimal=','" in options)


def _text_options(name: str, report: str, columns: Sequence[Column], head: Sequence[str]) -> list[str]:
    # How pandas reads what our reader has read: its report names whatever differs from plain UTF-8 with commas
    options: list[str] = []
    separated = _SEPARATED.search(report)
    usual = "\t" if name.lower().endswith(".tsv") else ","
    delimiter = DELIMITERS.get(separated[1], separated[1]) if separated else usual
    if delimiter != ",":
        options.append(f"sep={delimiter!r}")
    options += sign_options(
        [value for column in columns if column.kind == "number" for value in column.values], delimiter
    )
    if quoted := _QUOTED.search(report):
        options.append(f"quotechar={quoted[1]!r}")
    options += ["escapechar='\\\\'"] if ESCAPED in report else []
    options += ["skipinitialspace=True"] if SPACED in report else []
    header, names = _HEADER.search(report), [column.name for column in columns]
    # Rows may be longer than the header, which pandas would refuse; and it keeps line ends and spaces in names
    if names != head or header or SPACED in report or LEFT_OUT in report or any("<br>" in each for each in names):
        options.append(f"skiprows={header[1] if header else 1}, names={names!r}, usecols=range({len(names)})")
    encoded = _ENCODED.search(report)
    if encoded and (codec := _codec(encoded[1])):
        options.append(f"encoding={codec!r}")
    return options


def _codec(name: str) -> str:
    try:
        return codecs.lookup(name).name
    except LookupError:
        return ""


def _cells(line: str) -> list[str]:
    return [cell.strip().replace("\\|", "|") for cell in _CELLS.split(line)]


def _json_frame(name: str, text: str) -> Iterator[Frame]:
    try:
        content: Any = orjson.loads(text)
    except orjson.JSONDecodeError:  # one page of several, or not JSON at all
        return
    for key, value in ((None, content), *(content.items() if isinstance(content, dict) else ())):
        if _is_records(value):
            records = cast("list[dict[str, Any]]", value)
            names = list(dict.fromkeys(field for record in records for field in record))
            columns = tuple(column_of(field, [_shown(record.get(field)) for record in records]) for field in names)
            opened = f"json.loads(Path({name!r}).read_bytes())" + (f"[{key!r}]" if key is not None else "")
            title = name if key is None else f"{name}, {key}"
            yield Frame(title, columns, str(len(records)), f"pd.DataFrame({opened})")


def _is_records(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(each, dict) for each in cast("list[Any]", value))


def _shown(value: Any) -> str:
    return "" if value is None else value if isinstance(value, str) else orjson.dumps(value).decode()
