"""Tables that a small model is asked about: what of them may be chosen, and the programs that compute with them.

A table is what the reader returned; a program loads it from its file as the reader has read it.
"""

import calendar
import itertools
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

import orjson

from task.documents.tables import NAMES

PAGES = "**Page #"  # below a text with several pages
_MOST_VALUES = 60  # of all columns of text; with more, or with unknown ones, any text may be compared with
_AGGREGATE = r"\.(sum|mean|median|max|min)\(\)"
_MONTHS = {f"{number:02}": name for number, name in enumerate(calendar.month_name)}
_PARTS = {"month": "%Y-%m", "year": "%Y"}  # of a date, by which rows are selected and grouped
_SPECIAL = re.compile(r"[\^$.\[\]()|{}*+?]")  # llama.cpp knows no other escapes, and no classes such as \\d
_SUMS = re.compile(r"(?<!/ )rows\['([^']*)'\]\.sum\(\) \* rows\['([^']*)'\]\.sum\(\)")
_TABLE = re.compile(r"^\|.+\|\n\|[ |:-]+\|\n(?:\|.*\|(?:\n|$))+", re.MULTILINE)
_SHEET = re.compile(r"^## Sheet: (.+?)(?: \(hidden\))?$", re.MULTILINE)
# pandas reads repaired rows in another way; other quotes, escapes and tables in many places are rare
_DAMAGED = re.compile(
    r"(?:kept as they are|separated by \S+) \(line |cells (?:quoted|escaped) by |columns [A-Z:,]+\.\.\."
)
_REPORT = re.compile(
    r"cells separated by (?P<sep>[^;\n]+|;)|encoding (?P<encoding>[\w-]+)|(?<![\d,])(?P<size>[\d,]{1,20}) rows?, "
    r"|header in (?:line|row) (?P<skiprows>\d+)(?:, columns (?P<usecols>[A-Z]+(?:[:,][A-Z]+)*))?"
)
_MARKS = {name: mark for mark, name in NAMES.items()}  # others are named by themselves
_MISSING = frozenset({"NA", "N/A", "n/a", "#N/A", "NaN", "nan", "NULL", "null", "None", "-"})
# A question with words of the first two sets wants a row, or a group that it names; of the last, perhaps another one.
_WHO = {"who", "whose", "which", "when", "where"}
_SUPERLATIVES = {"most", "least", "last", "first", "worst", "best"}
_FIGURES = {"many", "much", "average", "mean", "median", "percent", "percentage", "share", "difference"}
_TOTALS = {"total", "all", "altogether", "together", "sum", "overall", "combined"}
_AMOUNT = r"[-+]?(?:\d{1,3}(?:[.,]\d{3})+(?:[.,]\d+)?|\d+(?:[.,]\d+)?|[.,]\d+)"
_KINDS = (
    # 007 is a code.
    ("number", re.compile(rf"(?![-+]?0\d)(?:[^\w\s.,+-] ?)?{_AMOUNT}(?: ?(?:%|[^\w\s.,]|[A-Z]{{3}}))?")),
    ("date", re.compile(r"\d{4}-\d\d-\d\d(?:[ T]\d\d:\d\d(?::\d\d)?)?")),
    ("date", re.compile(r"\d{1,2}\.\d{1,2}\.\d{4}")),
)
_DECIMAL_MARK = re.compile(r"(?<=(?<![\d.,])0)[.,]|[.,](?!\d{3}(?!\d))")
# Without currencies and percent signs, but with an exponent; then with a point as the decimal sign
_PLAIN = r"column.astype(str).str.replace(r'[^\d.,e+-]|e(?![-+]?\d)', '', regex=True)"
_POINTED = {True: ".str.replace('.', '').str.replace(',', '.')", False: ".str.replace(',', '')"}
_DAY_FIRST = "column.astype(str).str.contains('.', regex=False).any()"
_DATE = f"pd.to_datetime(column, format='mixed', dayfirst={_DAY_FIRST}, errors='coerce')"
_STRIPPED = r".replace(r'^\s+|\s+$', '', regex=True).dropna(how='all')"


@dataclass(frozen=True, slots=True)
class Column:
    """A column of numbers, dates or text (its `kind`), with its different values as far as the read page shows them."""

    name: str
    kind: str
    values: tuple[str, ...]

    @property
    def only_counts(self) -> bool:
        """Whether it numbers the rows."""
        first, count = self.values[0], len(self.values)
        is_counted = count > 2 and re.fullmatch("[0-9]{1,18}", first) is not None
        return is_counted and self.values == tuple(str(int(first) + n) for n in range(count))

    def __str__(self) -> str:
        most = 8 if self.kind == "text" else 2
        shown = ", ".join(value[:30] for value in self.values[:most])
        return f"{self.name!r} ({self.kind}: {shown}{', …' if len(self.values) > most else ''})"


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
        amounts = [column.name for column in self.columns if column.kind == "number" and not column.only_counts]
        # Named here, a small model thinks of it where a price belongs to a quantity.
        product = f" (for sums also {' * '.join(amounts)!r})" if len(amounts) == 2 else ""
        return f"df: {self.name}, {self.size} rows{product} with the columns {', '.join(map(str, self.columns))}"

    def rows_pattern(self, question: str) -> str:
        """What a selection of rows for the question may look like, as a regular expression."""
        # All rows, or those that fulfil one or two conditions on columns. What is compared with stands in the question,
        # words perhaps in another form: a small model would make up conditions for "the most" otherwise. Where the
        # question names a value, rows are selected by some condition: a small model would forget it.
        words, conditions = _words(question), list[str]()
        numbers = [number.replace(",", "") for number in re.findall(r"\d+(?:,\d{3})*(?:\.\d+)?", question)]
        of_numbers = rf"(==|!=|<|<=|>|>=) ({_either(numbers)})"
        texts = [value for column in self.columns if column.kind == "text" for value in column.values if _fits(value)]
        is_known = self.is_whole and len(texts) <= _MOST_VALUES
        for column in filter(lambda column: _fits(column.name), self.columns):
            cell = _either([column.name])
            if column.kind == "text":
                named = _either(value for value in column.values if _is_named(value, words))
                value = f"({named})" if is_known else r"[^'\"\\]+"
                conditions += [rf"df\['{cell}'\] (==|!=) '{value}'"] if named or not is_known else []
            if column.kind == "date":
                days = ("-".join(f"{part:0>2}" for part in reversed(value.split("."))) for value in column.values)
                months = sorted({day[:7] for day in days})
                named = _either(month for month in months if _is_named(_MONTHS.get(month[5:], ""), words))
                conditions += [rf"df\['{cell} month'\] (==|!=) '({named})'"] if named else []
            if column.kind == "date" and numbers:
                conditions.append(rf"df\['{cell}'\] (==|!=|<|<=|>|>=) '[0-9][0-9][0-9][0-9]-[0-9][0-9]-[0-9][0-9]'")
                conditions.append(rf"df\['{cell}'\]\.dt\.(year|month|day) {of_numbers}")
            if column.kind == "number" and numbers:
                conditions.append(rf"df\['{cell}'\] {of_numbers}")
        if not conditions:
            return "^df$"
        is_needed = is_known and any(_is_meant(value, words) for value in texts)
        condition = rf"\(({'|'.join(conditions)})\)"
        return rf"^df(\[{condition}( [&|] {condition})?\]){'' if is_needed else '?'}$"

    def result_pattern(self, question: str) -> str:
        """What the question may want of the rows, as a regular expression.

        Wherever a column of numbers may stand, two of them may, computed row by row: 'a * b'; and rows can be grouped
        by the month or year of a date: 'a month'. `program` makes columns of these.
        """
        numbers, dates, texts = (_either(self.names(kind)) for kind in ("number", "date", "text"))
        columns = "|".join(filter(None, [numbers, dates, texts]))
        amount = rf"({numbers})( [-+*/] ({numbers}))?"
        ranked = "|".join([amount] * bool(numbers) + [dates] * bool(dates))
        is_row = self.wants_row(question)
        most = rf"(\.n(largest|smallest)\([0-9]+\)){'' if is_row else '?'}"
        groups, summed = self._groups(is_row, ()), self._groups(is_row, _words(question))
        term = rf"(rows\['{amount}'\]{_AGGREGATE}|len\(rows\)|[0-9]+(\.[0-9]+)?)"
        of_all = rf"(df\['{amount}'\]{_AGGREGATE}|len\(df\))"
        results = {
            r"rows(\.(head|tail)\([0-9]+\)|\.row\([1-9][0-9]*\))?": True,
            rf"rows\.n(largest|smallest)\([0-9]+, '({ranked})'\)|rows\['({ranked})'\]\.(max|min)\(\)": ranked,
            rf"rows\.groupby\('({groups})'\)\.size\(\){most}": groups,
            rf"rows\.groupby\('({summed})'\)\['{amount}'\]{_AGGREGATE}{most}": summed and numbers,
            r"len\(rows\)": not is_row,
            rf"rows\['({columns})'\]\.(unique|nunique|value_counts)\(\)": not is_row and columns,
            rf"rows\['{amount}'\]\.(sum|mean|median|std)\(\)": not is_row and numbers,
            rf"{term}( [-+*/] {term})+( [-/] {of_all})?|{term} [-/] {of_all}": not is_row and numbers,
        }
        return rf"^({'|'.join(pattern for pattern, is_possible in results.items() if is_possible)})$"

    def wants_row(self, question: str) -> bool:
        """Whether it asks for who or which with a superlative, and not for a figure."""
        words, own = set(_words(question)), (word for column in self.columns for word in (column.name, *column.values))
        ranks = {word for word in words if word in _SUPERLATIVES or re.fullmatch(r"\w{2,}est", word)}
        return bool(words & _WHO and ranks - set(_words(" ".join(own))) and not words & _FIGURES)

    def _groups(self, is_row: bool, words: Sequence[str]) -> str:
        # By what rows may be grouped: for a question that wants one not by what names each row, and to sum up only by
        # what its words name.
        columns = [column for column in self.columns if column.kind != "number"]
        size = self.size.replace(",", "") if self.is_whole else "0"
        # Values with digits may be codes.
        labels = [one for one in columns if len(one.values) == int(size) and re.fullmatch(r"\D+", "".join(one.values))]
        if labels and is_row and words and not _TOTALS.intersection(words):
            dated = {"day", "date", *_PARTS}.intersection(words)
            columns = [one for one in columns if (one.kind == "date" and dated) or _is_named(one.name, words)]
        columns = [one for one in columns if not is_row or one not in labels]
        texts, dates = (_either(one.name for one in columns if one.kind == kind) for kind in ("text", "date"))
        return "|".join(filter(None, [texts, dates, rf"({dates}) (month|year)" if dates else ""]))

    def program(self, rows: str, result: str) -> str:
        """The program that loads the table, selects the rows and computes the result of them."""
        result = re.sub(r"\.row\(([0-9]+)\)", lambda row: f".iloc[[{int(row[1]) - 1}]]", result)
        # The row that has the highest or lowest value also shows whose it is.
        result = re.sub(r"^rows\[('[^']*')\]\.max\(\)$", r"rows.nlargest(1, \1)", result)
        result = re.sub(r"^rows\[('[^']*')\]\.min\(\)$", r"rows.nsmallest(1, \1)", result)
        own = {column.name for column in self.columns}
        # A sum times a sum means nothing; what is meant is the sum of what each row comes to.
        if (sums := _SUMS.search(result)) and own.issuperset(sums.groups()):
            result = result.replace(sums[0], f"rows['{sums[1]} * {sums[2]}'].sum()")
        pairs = itertools.product(self.names("number"), "*/+-", self.names("number"))
        computed = {f"{a} {sign} {b}": f"df[{a!r}] {sign} df[{b!r}]" for a, sign, b in pairs}
        parts = itertools.product(self.names("date"), _PARTS)
        computed |= {f"{name} {part}": f"df[{name!r}].dt.strftime({_PARTS[part]!r})" for name, part in parts}
        quoted = dict.fromkeys(re.findall("'([^']*)'", f"{rows} {result}"))
        added = [f"df[{name!r}] = {computed[name]}" for name in quoted if name in computed and name not in own]
        return "\n".join([self.loading, *added, f"rows = {rows}", result])


def parsed(text: str) -> Any:
    """The value of the JSON; None where it was cut off, or is not JSON at all."""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return None


def is_table(name: str) -> bool:
    """Whether a file of this name may hold a table."""
    return name.lower().endswith((".csv", ".tsv", ".xlsx", ".json"))


def table_of(name: str, text: str) -> Table | None:
    """The table in what the reader has made of the file `name`; None where there is none or more than one."""
    if not is_table(name):
        return None
    report = text.partition("\n")[0] if text.startswith("**Report**") else ""
    suffix = PurePosixPath(name).suffix.lower()
    head, rows, sheet = _cells(suffix, text)
    names = [name or f"column {place}" for place, name in enumerate(head, 1)]
    if not rows or len(set(names)) < len(names) or _DAMAGED.search(report):
        return None
    noted = {key: text for match in _REPORT.finditer(report) for key, text in match.groupdict().items() if text}
    columns = tuple(_column(name, [row[place] for row in rows]) for place, name in enumerate(names))
    size = noted.get("size", str(len(rows)))
    is_whole = size.replace(",", "") == str(len(rows)) and PAGES not in text
    return Table(name, columns, size, _loading(name, suffix, sheet, columns, noted), is_whole)


def _cells(suffix: str, text: str) -> tuple[list[str], list[list[str]], str]:
    # Header and rows of the only table, and the name of its sheet; no rows where there is none or more than one.
    if suffix == ".json":
        records = parsed(text)
        if not isinstance(records, list) or not all(isinstance(record, dict) for record in records):
            return [], [], ""
        fields = list(dict.fromkeys(field for record in records for field in record))
        return fields, [[_shown(record.get(field)) for field in fields] for record in records], ""
    found = list(_TABLE.finditer(text))
    sheets = _SHEET.findall(text, 0, found[-1].start()) if suffix == ".xlsx" and found else []
    if not found or (sheets and len(found) > 1):
        return [], [], ""
    # A title above the table of a text may look like a table.
    lines = (re.split(r"(?<!\\)\|", line.strip()[1:-1]) for line in found[-1][0].splitlines())
    head, _, *rows = ([cell.strip().replace("\\|", "|") for cell in line] for line in lines)
    return head, rows, sheets[-1] if sheets else ""


def _shown(value: Any) -> str:
    return "" if value is None else value if isinstance(value, str) else orjson.dumps(value).decode()


def _column(name: str, cells: Sequence[str]) -> Column:
    values = tuple(dict.fromkeys(filter(None, cells)))
    known = tuple(value for value in values if value not in _MISSING)
    for kind, pattern in _KINDS:
        if known and all(map(pattern.fullmatch, known)):
            return Column(name, kind, known)
    return Column(name, "text", values)


def _loading(name: str, suffix: str, sheet: str, columns: Sequence[Column], noted: Mapping[str, str]) -> str:
    sep = noted.get("sep", "tab" if suffix == ".tsv" else "comma")
    dialect = {"sep": _MARKS.get(sep, sep), "encoding": noted.get("encoding", "utf-8"), "skipinitialspace": True}
    # The header is skipped and named here: pandas would refuse longer rows, and change names.
    cells: dict[str, Any] = {"header": None, "names": [column.name for column in columns]}
    cells |= {"usecols": noted.get("usecols", range(len(columns))), "skiprows": int(noted.get("skiprows", 1))}
    cells |= {"dtype": "str", "keep_default_na": False, "na_values": [""]}
    readers = {".json": ("json", {"dtype": False}), ".xlsx": ("excel", {"sheet_name": sheet} | cells)}
    reader, options = readers.get(suffix, ("csv", dialect | cells))
    amounts = " ".join(value for column in columns if column.kind == "number" for value in column.values)
    marks = set(_DECIMAL_MARK.findall(amounts))
    has_comma = "," in marks or (sep == "semicolon" and "," in amounts)
    arguments = ", ".join([repr(name), *(f"{option}={value!r}" for option, value in options.items())])
    lines = ["import pandas as pd", f"df = pd.read_{reader}({arguments}){_STRIPPED}"]
    number = f"pd.to_numeric({_PLAIN}{_POINTED[has_comma and '.' not in marks]}, errors='coerce')"
    for kind, converted in (("number", number), ("date", _DATE)):
        if named := [column.name for column in columns if column.kind == kind]:
            lines.append(f"df[{named}] = df[{named}].apply(lambda column: {converted})")
    return "\n".join(lines)


def _words(text: str) -> list[str]:
    plain = unicodedata.normalize("NFKD", text).casefold()
    return re.findall(r"\w+", "".join(letter for letter in plain if not unicodedata.combining(letter)))


def _is_named(value: str, words: Sequence[str]) -> bool:
    # "lamps" names Lamp and "Hämmer" Hammer: two forms of a word differ in their ends. Short words have to be the same.
    pairs = ((word, part, max(3, len(word) - 3, len(part) - 3)) for part in _words(value) for word in words)
    return any(word[:shared] == part[:shared] for word, part, shared in pairs)


def _is_meant(value: str, words: Sequence[str]) -> bool:
    # For certain: each of its words, or a little longer. Shorter values are often words of the question by chance.
    parts, said = _words(value), " ".join(words)
    is_named = all(re.search(rf"\b{part}\w{{0,{min(2, len(part) // 2)}}}\b", said) for part in parts)
    return is_named and any(len(part) > 2 for part in parts)


def _fits(text: str) -> bool:
    return re.search(r"['\"\\\r\n]", text) is None


def _either(texts: Iterable[str]) -> str:
    return "|".join(_SPECIAL.sub(r"\\\g<0>", text) for text in filter(_fits, texts))
