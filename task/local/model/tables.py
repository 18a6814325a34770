"""A table that the reader returned: its columns with types and values, and the lines that load it from its file."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, Literal

import orjson

from task.documents.tables import NAMES

PAGES = "**Page #"  # below a text with several pages
_LOADERS = {".csv": "read_csv", ".tsv": "read_csv", ".xlsx": "read_excel", ".json": "read_json"}
_MISSING = frozenset({"NA", "N/A", "n/a", "#N/A", "NaN", "nan", "NULL", "null", "None", "-"})
_SHOWN = {"text": 8, "number": 2, "date": 2}  # values of a column in its description
_TABLE = re.compile(r"^\|.+\|\n\|[ |:-]+\|\n(?:\|.*\|(?:\n|$))+", re.MULTILINE)
_SHEET = re.compile(r"^## Sheet: (.+?)(?: \(hidden\))?$", re.MULTILINE)
_DAMAGED = re.compile(r"(?:kept as they are|separated by \S+) \(line ")  # pandas reads repaired rows in another way
_NOTED = {  # pandas' options in the reader's report
    "sep": r"cells separated by ([^;\n]+|;)",
    "quotechar": r"cells quoted by (.)",
    "escapechar": r"cells escaped by (backslash)",
    "encoding": r"encoding ([\w-]+)",
    "skiprows": r"header in (?:line|row) (\d+)",
    "usecols": r"header in row \d+, columns ([A-Z]+(?:[:,][A-Z]+)*+)(?=[,;]|$)",
}
_MARKS = {name: mark for mark, name in NAMES.items()} | {"backslash": "\\"}  # others are named by themselves
_AMOUNT = r"[-+]?(?:\d{1,3}(?:[.,]\d{3})+(?:[.,]\d+)?|\d+(?:[.,]\d+)?|[.,]\d+)"
_NUMBER = re.compile(rf"(?![-+]?0\d)(?:[^\w\s.,+-] ?)?({_AMOUNT})(?: ?(?:%|[^\w\s.,]|[A-Z]{{3}}))?")  # 007 is a code
_DECIMAL_MARK = re.compile(r"(?<![\d.,])0([.,])|([.,])(?!\d{3}(?!\d))")
_ISO, _DOTTED = re.compile(r"\d{4}-\d\d-\d\d(?:[ T]\d\d:\d\d(?::\d\d)?)?"), re.compile(r"\d{1,2}\.\d{1,2}\.\d{4}")
# Without currencies and percent signs, but with an exponent; then with a point as the decimal sign
_PLAIN = r"column.astype(str).str.replace(r'[^\d.,e+-]|e(?![-+]?\d)', '', regex=True)"
_DAY_FIRST = "column.astype(str).str.contains('.', regex=False).any()"
_POINTED = {True: ".str.replace('.', '').str.replace(',', '.')", False: ".str.replace(',', '')"}


@dataclass(frozen=True, slots=True)
class Column:
    """A column with its different values as far as the read page shows them."""

    name: str
    kind: Literal["number", "date", "text"]
    values: tuple[str, ...]

    def __str__(self) -> str:
        shown = [value[:30] for value in self.values[: _SHOWN[self.kind]]]
        return f"{self.name!r} ({self.kind}: {', '.join(shown)}{', …' if len(self.values) > len(shown) else ''})"


@dataclass(frozen=True, slots=True)
class Table:
    """The table of the file `name`: `size` rows; `loading` is the program that puts it into the variable `df`.

    `is_whole`: the columns' values are those of all rows, not only of a first page.
    """

    name: str
    columns: tuple[Column, ...]
    size: str
    loading: str
    is_whole: bool

    def names(self, kind: str) -> list[str]:
        return [column.name for column in self.columns if column.kind == kind]

    def __str__(self) -> str:
        amounts = [column.name for column in self.columns if column.kind == "number" and not _only_counts(column)]
        # Named here, a small model thinks of it where a price belongs to a quantity.
        product = f" (for sums also {' * '.join(amounts)!r})" if len(amounts) == 2 else ""
        return f"df: {self.name}, {self.size} rows{product} with the columns {', '.join(map(str, self.columns))}"


def is_table(name: str) -> bool:
    """Whether a file of this name may hold a table."""
    return PurePosixPath(name).suffix.lower() in _LOADERS


def table_of(name: str, text: str) -> Table | None:
    """The table in what the reader has made of the file `name`; None where there is none or more than one."""
    suffix = PurePosixPath(name).suffix.lower()
    report = text.partition("\n")[0] if text.startswith("**Report**") else ""
    noted = {option: match[1] for option, pattern in _NOTED.items() if (match := re.search(pattern, report))}
    is_apart = "header in row" in report and "usecols" not in noted  # in too many columns
    head, rows, sheet = _cells(suffix, text) if is_table(name) else ([], [], "")
    names = [name or f"column {place}" for place, name in enumerate(head, 1)]
    if not rows or len(set(names)) < len(names) or is_apart or _DAMAGED.search(report):
        return None
    columns = [_column(name, [row[place] for row in rows]) for place, name in enumerate(names)]
    if suffix == ".json":
        options: dict[str, Any] = {"dtype": False}
    else:
        sep = "\t" if suffix == ".tsv" else ","
        options = {"sheet_name": sheet} if sheet else {"sep": sep, "encoding": "utf-8", "skipinitialspace": True}
        # The header is skipped and named here: pandas would refuse longer rows, and change names.
        options |= {"header": None, "names": names, "usecols": range(len(names))}
        options |= {option: _MARKS.get(value, value) for option, value in noted.items()}
        options |= {"skiprows": int(noted.get("skiprows", 1)), "dtype": "str"}
        options |= {"keep_default_na": False, "na_values": [""]}
    numbers = (_NUMBER.fullmatch(value) for column in columns if column.kind == "number" for value in column.values)
    amounts = " ".join(match[1] for match in numbers if match)
    marks = {"".join(mark) for mark in _DECIMAL_MARK.findall(amounts)}
    has_comma = "," in marks or (options.get("sep") == ";" and "," in amounts)
    arguments = ", ".join([repr(name), *(f"{option}={value!r}" for option, value in options.items())])
    loading = _loading(f"pd.{_LOADERS[suffix]}({arguments})", columns, has_comma and "." not in marks)
    counted = re.search(r"(?<![\d,])([\d,]{1,20}) rows?, ", report)
    size = counted[1] if counted else str(len(rows))
    is_whole = size.replace(",", "") == str(len(rows)) and PAGES not in text
    return Table(name, tuple(columns), size, loading, is_whole)


def _cells(suffix: str, text: str) -> tuple[list[str], list[list[str]], str]:
    # Header and rows of the only table, and the name of its sheet; no rows where there is none or more than one.
    if suffix == ".json":
        with suppress(orjson.JSONDecodeError):  # one page of several, or not JSON at all
            records: Any = orjson.loads(text)
            if isinstance(records, list) and all(isinstance(record, dict) for record in records):
                fields = list(dict.fromkeys(field for record in records for field in record))
                return fields, [[_shown(record.get(field)) for field in fields] for record in records], ""
        return [], [], ""
    found = list(_TABLE.finditer(text))
    sheets = _SHEET.findall(text, 0, found[-1].start()) if suffix == ".xlsx" and found else []
    if not found or (sheets and len(found) > 1):
        return [], [], ""
    # A title above the table of a text may look like a table.
    lines = (re.split(r"(?<!\\)\|", line.strip()[1:-1]) for line in found[-1][0].splitlines())
    head, _, *rows = ([cell.strip().replace("\\|", "|") for cell in line] for line in lines)
    return head, rows, sheets[-1] if sheets else ""


def _loading(source: str, columns: Sequence[Column], has_comma: bool) -> str:
    typed = {
        "number": f"pd.to_numeric({_PLAIN}{_POINTED[has_comma]}, errors='coerce')",
        "date": f"pd.to_datetime(column, format='mixed', dayfirst={_DAY_FIRST}, errors='coerce')",
    }
    stripped = r".replace(r'^\s+|\s+$', '', regex=True).dropna(how='all')"
    lines = ["import pandas as pd", f"df = {source}{stripped}"]
    for kind, expression in typed.items():
        if names := [column.name for column in columns if column.kind == kind]:
            lines.append(f"df[{names}] = df[{names}].apply(lambda column: {expression})")
    return "\n".join(lines)


def _only_counts(column: Column) -> bool:
    numbers = [int(value) for value in column.values if re.fullmatch(r"[0-9]{1,18}", value)]
    return len(numbers) == len(column.values) > 2 and all(b - a == 1 for a, b in itertools.pairwise(numbers))


def _column(name: str, cells: Sequence[str]) -> Column:
    values = tuple(dict.fromkeys(filter(None, cells)))
    known = tuple(value for value in values if value not in _MISSING)
    if known and all(map(_NUMBER.fullmatch, known)):
        return Column(name, "number", known)
    if known and any(all(map(pattern.fullmatch, known)) for pattern in (_ISO, _DOTTED)):
        return Column(name, "date", known)
    return Column(name, "text", values)


def _shown(value: Any) -> str:
    return "" if value is None else value if isinstance(value, str) else orjson.dumps(value).decode()
