"""Tables that were read, as programs find them: loaded with the place, columns and types that the reader has found."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, Literal

import orjson

from task.documents.tables import ESCAPED, NAMES, SPACED

LOADERS = {".csv": "read_csv", ".tsv": "read_csv", ".xlsx": "read_excel", ".xls": "read_excel"}
PAGES = "**Page #"  # below a text with several pages
MISSING = frozenset({"NA", "N/A", "n/a", "#N/A", "NaN", "nan", "NULL", "null", "None", "-"})
SHOWN = {"text": 8, "number": 2, "date": 2}  # values of a column in its description
_DELIMITERS = {name: mark for mark, name in NAMES.items()}  # others are named by themselves
_TABLE = re.compile(r"^\|(.+)\|\n\|[ |:-]+\|\n((?:\|.*\|(?:\n|$))+)", re.MULTILINE)
_AMOUNT = r"[-+]?(?:\d{1,3}(?:[.,]\d{3})+(?:[.,]\d+)?|\d+(?:[.,]\d+)?|[.,]\d+)"
_NUMBER = re.compile(rf"(?![-+]?0\d)(?:[^\w\s.,+-] ?)?({_AMOUNT})(?: ?(?:%|[^\w\s.,]|[A-Z]{{3}}))?")  # 007 is a code
_ISO = re.compile(r"\d{4}-\d\d-\d\d(?:[ T]\d\d:\d\d(?::\d\d)?)?")
_DOTTED = re.compile(r"\d{1,2}\.\d{1,2}\.\d{4}")
_COMMA_DECIMALS = re.compile(r"\.\d{3},\d|^[-+]?\d+,(?:\d{1,2}|\d{4,})$|^[-+]?0,\d")
_POINT_DECIMALS = re.compile(r",\d{3}\.\d|^[-+]?\d*\.(?:\d{1,2}|\d{4,})$|^[-+]?0\.\d")
# Without currencies and percent signs, but with an exponent; then with a decimal point, where commas are decimal signs
_BARE = r"column.astype(str).str.replace(r'[^\d.,e+-]|e(?![-+]?\d)', '', regex=True)"
_POINTED = {True: ".str.replace('.', '').str.replace(',', '.')", False: ".str.replace(',', '')"}


@dataclass(frozen=True, slots=True)
class Column:
    """A column with its different values as far as the read page shows them."""

    name: str
    kind: Literal["number", "date", "text"]
    values: tuple[str, ...]

    @property
    def days(self) -> list[str]:
        """The values of a column of dates as ISO dates."""
        return ["-".join(f"{part:0>2}" for part in reversed(value.split(".")))[:10] for value in self.values]

    def __str__(self) -> str:
        shown = [value[:30] for value in self.values[: SHOWN[self.kind]]]
        return f"{self.name!r} ({self.kind}: {', '.join(shown)}{', …' if len(self.values) > len(shown) else ''})"


@dataclass(frozen=True, slots=True)
class Frame:
    """One table: its title, columns, and number of rows, and the expression that loads its cells as text.

    `comma`: it is the decimal sign. `is_whole`: the columns' values are those of all rows, not only of a first page.
    """

    title: str
    columns: tuple[Column, ...]
    rows: str
    loaded: str
    comma: bool = False
    is_whole: bool = True

    def names(self, kind: str) -> list[str]:
        return [column.name for column in self.columns if column.kind == kind]

    def __str__(self) -> str:
        amounts = [column.name for column in self.columns if column.kind == "number" and not _only_counts(column)]
        # Named here, a small model thinks of it where a price belongs to a quantity.
        product = f" (for sums also {' * '.join(amounts)!r})" if len(amounts) == 2 else ""
        return f"{self.title}, {self.rows} rows{product} with the columns {', '.join(map(str, self.columns))}"

    def program(self, table: str) -> str:
        """The lines that put the table, with numbers and dates as such, into a variable of this name."""
        day_first = any(_DOTTED.fullmatch(value) for column in self.columns for value in column.values)
        kinds = {
            "number": f"pd.to_numeric({_BARE}{_POINTED[self.comma]}, errors='coerce')",
            "date": f"pd.to_datetime(column, format='mixed', dayfirst={day_first}, errors='coerce')",
        }
        named = [(self.names(kind), typed) for kind, typed in kinds.items()]
        lines = [
            f"{table}[{names}] = {table}[{names}].apply(lambda column: {typed})" for names, typed in named if names
        ]
        return "\n".join([f"{table} = {self.loaded}", *lines])


def _only_counts(column: Column) -> bool:
    numbers = [int(value) for value in column.values if re.fullmatch(r"[0-9]{1,18}", value)]
    return len(numbers) == len(column.values) > 2 and all(b - a == 1 for a, b in itertools.pairwise(numbers))


def is_table(name: str) -> bool:
    """Whether a file of this name may hold a table."""
    return PurePosixPath(name).suffix.lower() in (*LOADERS, ".json")


def frames_of(name: str, text: str) -> list[Frame]:
    """The tables in what the reader has made of the file `name`: one, or one for each sheet or list of records."""
    if not is_table(name) or name.lower().endswith(".json"):
        return list(_json_frames(name, text)) if is_table(name) else []
    before, *parts = re.split(r"^## Sheet: (.+)$", text, flags=re.MULTILINE)
    if not parts:
        return list(_text_frame(name, text))
    sheets = list(zip(parts[::2], parts[1::2], strict=True))
    return [frame for sheet, part in sheets for frame in _sheet_frame(name, before, sheet, part, len(sheets) == 1)]


def _text_frame(name: str, text: str) -> Iterator[Frame]:
    tables = list(_TABLE.finditer(text))
    if not tables:
        return
    found = tables[-1]  # a title above a table may look like a table
    above = text[: found.start()].strip()
    report = above.partition("\n")[0] if above.startswith("**Report**") else ""
    if re.search(r"(?:kept as they are|separated by \S+) \(line ", report):
        return  # pandas reads damaged rows in another way

    def noted(pattern: str, otherwise: str) -> str:
        match = re.search(pattern, report)
        return match[1] if match else otherwise

    delimiter = noted(r"cells separated by ([^;\n]+|;)", "\t" if name.lower().endswith(".tsv") else ",")
    options = {
        "sep": _DELIMITERS.get(delimiter, delimiter),
        "skiprows": int(noted(r"header in line (\d+)", "1")),
        "encoding": noted(r"\*\*Report\*\*: (?:[^\n]*; )?encoding ([\w-]+)", "utf-8"),
        "quotechar": noted("cells quoted by (.)", '"'),
        "escapechar": "\\" if ESCAPED in report else None,
        "skipinitialspace": SPACED in report,
    }
    yield from _frame(name, name, found, report, options, PAGES in text)


def _sheet_frame(name: str, before: str, sheet: str, text: str, is_single: bool) -> Iterator[Frame]:
    own = sheet.removesuffix(" (hidden)") if "hidden sheets: " in before else sheet
    noted, found = re.search(rf"(?:: |; )sheet {re.escape(own)}: ([^;\n]*)", before), _TABLE.search(text)
    report = noted[1] if noted else ""
    place = re.match(r"header in row (\d+), columns ([A-Z:,]+)(?=, |$)", report)
    if found and (place or not report.startswith("header")):  # otherwise in too many columns that are apart
        options = {"skiprows": int(place[1]), "usecols": place[2]} if place else {"skiprows": 1}
        title = name if is_single else f"{name}, sheet {sheet}"
        yield from _frame(title, name, found, report, {"sheet_name": own, **options}, PAGES in text)


def _frame(
    title: str, name: str, table: re.Match[str], report: str, options: Mapping[str, Any], has_pages: bool
) -> Iterator[Frame]:
    lines = (re.split(r"(?<!\\)\|", line.strip()[1:-1]) for line in table[0].splitlines())
    head, _, *rows = ([cell.strip().replace("\\|", "|") for cell in line] for line in lines)
    columns = [
        _column(name or f"column {place}", [row[place - 1] for row in rows]) for place, name in enumerate(head, 1)
    ]
    names = [column.name for column in columns]
    if len(set(names)) < len(names):
        return
    numbers = (_NUMBER.fullmatch(value) for column in columns if column.kind == "number" for value in column.values)
    amounts = [match[1] for match in numbers if match]
    comma = any(map(_COMMA_DECIMALS.search, amounts)) or (options.get("sep") == ";" and "," in "".join(amounts))
    # The header is skipped and named here: pandas would refuse longer rows, and change names.
    given = {"header": None, "names": names, "usecols": range(len(names)), **options}
    given |= {"dtype": "str", "keep_default_na": False, "na_values": [""]}
    arguments = ", ".join([repr(name), *(f"{option}={value!r}" for option, value in given.items())])
    loaded = f"pd.{LOADERS[PurePosixPath(name).suffix.lower()]}({arguments})"
    loaded += r".replace(r'\s+$', '', regex=True)" if SPACED in report else ""
    counted = re.search(r"(?<![\d,])([\d,]{1,20}) rows?, ", report)
    size = counted[1] if counted else str(len(rows))
    is_whole = size.replace(",", "") == str(len(rows)) and not has_pages
    comma = comma and not any(map(_POINT_DECIMALS.search, amounts))
    yield Frame(title, tuple(columns), size, f"{loaded}.dropna(how='all')", comma, is_whole)


def _column(name: str, cells: Sequence[str]) -> Column:
    values = tuple(dict.fromkeys(filter(None, cells)))
    known = tuple(value for value in values if value not in MISSING)
    if known and all(map(_NUMBER.fullmatch, known)):
        return Column(name, "number", known)
    if known and any(all(map(pattern.fullmatch, known)) for pattern in (_ISO, _DOTTED)):
        return Column(name, "date", known)
    return Column(name, "text", values)


def _json_frames(name: str, text: str) -> Iterator[Frame]:
    try:
        content: Any = orjson.loads(text)
    except orjson.JSONDecodeError:  # one page of several, or not JSON at all
        return
    for key, records in [(None, content), *(content.items() if isinstance(content, dict) else ())]:
        if isinstance(records, list) and records and all(isinstance(record, dict) for record in records):
            fields = dict.fromkeys(field for record in records for field in record)
            columns = tuple(_column(field, [_shown(record.get(field)) for record in records]) for field in fields)
            opened = f"json.loads(Path({name!r}).read_bytes())" + (f"[{key!r}]" if key is not None else "")
            title = name if key is None else f"{name}, {key}"
            yield Frame(title, columns, str(len(records)), f"pd.DataFrame({opened})")


def _shown(value: Any) -> str:
    return "" if value is None else value if isinstance(value, str) else orjson.dumps(value).decode()
