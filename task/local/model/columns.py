"""The columns of a table that was read: their types, and how pandas reads them as such."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

MISSING = frozenset({"NA", "N/A", "n/a", "#N/A", "NaN", "nan", "NULL", "null", "None", "-"})
SHOWN_VALUES = 8  # of a column of words: enough to see what a filter compares with
SAMPLES = 2
VALUE_CHARS = 30
LONGEST_NUMBER = 18  # digits of what may count rows
FEWEST_COUNTED = 3  # of two rows, the second may have one more by chance
_AMOUNT = r"[-+]?(?:\d{1,3}(?:[.,]\d{3})+(?:[.,]\d+)?|\d+(?:[.,]\d+)?|[.,]\d+)"
_NUMBER = re.compile(rf"([^\w\s.,+-] ?)?({_AMOUNT})( ?(?:%|[^\w\s.,]|[A-Z]{{3}}))?")
_PADDED = re.compile(r"[-+]?0\d")  # a code, of which the zeros are a part
_CONVERTED = re.compile(r"[-+]?[.,]*+\d[\d.,]*+(?:e[-+]?\d+)?|[-+]?inf(?:inity)?|true|false", re.IGNORECASE)
_ISO = re.compile(r"\d{4}-\d\d-\d\d(?:[ T]\d\d:\d\d(?::\d\d)?)?")
_DOTTED = re.compile(r"\d{1,2}\.\d{1,2}\.\d{4}")
_COMMA_DECIMALS = re.compile(r"\.\d{3},\d|^[-+]?\d+,(?:\d{1,2}|\d{4,})$|^[-+]?0,\d")
_POINT_DECIMALS = re.compile(r",\d{3}\.\d|^[-+]?\d*\.(?:\d{1,2}|\d{4,})$|^[-+]?0\.\d")
Kind = Literal["number", "date", "text"]


@dataclass(frozen=True, slots=True)
class Column:
    """A column's name and type, with its different values as far as the read page shows them.

    `missing` are the words that stand for an empty cell in a column of numbers or dates.
    """

    name: str
    kind: Kind
    values: tuple[str, ...]
    missing: tuple[str, ...] = ()

    @property
    def is_numbering(self) -> bool:
        """Whether its values only count the rows: 501, 502, 503."""
        whole = [int(value) for value in self.values if value.isdecimal() and len(value) <= LONGEST_NUMBER]
        counted = all(after - one == 1 for one, after in itertools.pairwise(whole))
        return counted and len(whole) == len(self.values) >= FEWEST_COUNTED

    @property
    def months(self) -> tuple[str, ...]:
        """Of a column of dates, in their order: 2025-03."""
        dotted = (value.split(".") for value in self.values if _DOTTED.fullmatch(value))
        iso = (value[:7] for value in self.values if _ISO.fullmatch(value))
        return tuple(sorted({*iso, *(f"{year}-{month:0>2}" for _, month, year in dotted)}))

    def __str__(self) -> str:
        count = SHOWN_VALUES if self.kind == "text" else SAMPLES
        shown = ", ".join(value[:VALUE_CHARS] for value in self.values[:count])
        return f"{self.name!r} ({self.kind}: {shown}{', …' if len(self.values) > count else ''})"


def column_of(name: str, cells: Sequence[str]) -> Column:
    """The column of these cells: numbers or dates only where all of them are."""
    values = tuple(dict.fromkeys(filter(None, cells)))
    missing = tuple(value for value in values if value in MISSING)
    known = [value for value in values if value not in MISSING]
    if known and all(map(_NUMBER.fullmatch, known)) and not any(map(_PADDED.match, known)):
        return Column(name, "number", tuple(known), missing)
    if known and any(all(map(pattern.fullmatch, known)) for pattern in (_ISO, _DOTTED)):
        return Column(name, "date", tuple(known), missing)
    return Column(name, "text", values)


def type_options(columns: Sequence[Column]) -> Iterator[str]:
    """The arguments by which pandas keeps the types; it would take "NA" for an empty cell and 00123 for a number."""
    marks = {column.name: column.missing for column in columns if column.missing}
    absent: object = {column.name: ["", *marks.get(column.name, ())] for column in columns} if marks else [""]
    yield f"keep_default_na=False, na_values={absent!r}"
    texts = [column for column in columns if column.kind == "text" and column.values]
    if kept := [f"{each.name!r}: str" for each in texts if all(map(_CONVERTED.fullmatch, each.values))]:
        yield f"dtype={{{', '.join(kept)}}}"
    if dates := [column.name for column in columns if column.kind == "date"]:
        yield f"parse_dates={dates!r}"
        if any(_DOTTED.fullmatch(value) for column in columns if column.kind == "date" for value in column.values):
            yield "dayfirst=True"


def sign_options(values: Sequence[str], delimiter: str) -> list[str]:
    """The arguments that name the signs of decimals and thousands in these numbers."""
    bare = [match[2] for value in values if (match := _NUMBER.fullmatch(value))]
    commas, points = (any(sign in value for value in bare) for sign in ",.")
    by_comma = any(map(_COMMA_DECIMALS.search, bare)) and not any(map(_POINT_DECIMALS.search, bare))
    if by_comma or (delimiter == ";" and commas and not any(map(_POINT_DECIMALS.search, bare))):
        return ["decimal=','", *(["thousands='.'"] if points else [])]
    return ["thousands=','"] if commas else []


def has_signs(column: Column) -> bool:
    """Whether numbers of the column have a currency or a percent sign, which pandas leaves as text."""
    numbers = (_NUMBER.fullmatch(value) for value in column.values) if column.kind == "number" else ()
    return any(match and (match[1] or match[3]) for match in numbers)


def without_signs(column: str, comma: bool) -> str:
    """The line that turns such a column into numbers."""
    plain = r""".str.replace(r"[^\d.,+-]", "", regex=True)"""
    points = """.str.replace(".", "").str.replace(",", ".")""" if comma else """.str.replace(",", "")"""
    return f"{column} = pd.to_numeric({column}.astype(str){plain}{points})"
