"""The grammar of what a small model may look up or compute in tables: rows that it selects, and a result over them."""

from __future__ import annotations

import itertools
import re
import unicodedata
from collections import defaultdict
from collections.abc import Container, Iterable, Mapping, Sequence
from functools import cache
from itertools import takewhile

from task.local.model.columns import Column
from task.local.model.frames import Frame

MOST_VALUES = 60  # of all columns of text; with more, or with unknown ones, any text may be compared with
STEM, ENDING = 3, 3  # letters that two forms of a word share at least, and in which they differ at most
ENDINGS = ("", "s", "es", "n", "en")  # of a value that the question means for certain
LANGUAGES = ("en", "de", "fr", "es", "it", "pt", "nl", "pl", "sv", "da", "nb", "fi", "cs", "hu", "ro", "tr", "uk", "ru")
AGGREGATES = "sum|mean|median|max|min"
_SPECIAL = re.compile(r"[\^$.\[\]()|{}*+?]")  # llama.cpp knows no other escapes, and no classes such as \\d
_UNFIT = re.compile(r"['\"\\\r\n]")
_WRITTEN = re.compile(r"\d+(?:,\d{3})*(?:\.\d+)?")
_ANY = r"[^'\"\\]+"
_PARTS = {"month": "%Y-%m", "year": "%Y"}
_QUOTED = re.compile(r"'([^']*)'")
_ROW = re.compile(r"\.row\(([0-9]+)\)")
_SUMS = re.compile(r"(?<!/ )rows\['([^']*)'\]\.sum\(\) \* rows\['([^']*)'\]\.sum\(\)")
_EXTREME = re.compile(r"^rows\[('[^']*')\]\.(max|min)\(\)$")


def rows_pattern(frames: Sequence[Frame], question: str) -> str:
    """All rows of a table, `df`, or those that fulfil conditions on its columns: `df[(df['a'] == 'x') & …]`.

    What is compared with stands in the question, words perhaps in another form: a small model would make up conditions
    for "the most" otherwise. Where the question names a value, rows are selected by some condition: a small model
    would forget it.
    """
    tables, numbers = _variables(frames), _numbers_in(question)
    known, words = _known(frames), _words(question)
    conditions = [
        condition for column in _fitting(frames) for condition in _conditions(column, known, tables, numbers, words)
    ]
    if not conditions:
        return rf"^({tables})$"
    condition = rf"\(({'|'.join(conditions)})\)"
    needed = "" if known and any(_are_meant(column, words) for column in _fitting(frames)) else "?"
    return rf"^({tables})(\[{condition}( [&|] {condition})?\]){needed}$"


def result_pattern(frames: Sequence[Frame]) -> str:
    """What is wanted of `rows`: they, some of them, their number, or something computed from their columns.

    Wherever a column of numbers may stand, two of them may, computed row by row: `'a * b'`; and rows can be grouped by
    the month or year of a date: `'a month'`. `program` makes columns of these.
    """
    columns = _fitting(frames)
    numbers, dates, texts = (
        _names(column for column in columns if column.kind == kind) for kind in ("number", "date", "text")
    )
    amount = rf"({numbers})( [-+*/] ({numbers}))?" if numbers else ""
    ranked = "|".join(filter(None, [amount, dates]))
    groups = "|".join(filter(None, [texts, dates, rf"({dates}) (month|year)" if dates else ""]))
    results = ["rows", r"rows\.(head|tail)\([0-9]+\)", r"rows\.row\([1-9][0-9]*\)", r"len\(rows\)"]
    results.append(rf"rows\['({_names(columns)})'\]\.(unique|nunique|value_counts)\(\)")
    if ranked:
        results.append(rf"rows\.n(largest|smallest)\([0-9]+, '({ranked})'\)")
        results.append(rf"rows\['({ranked})'\]\.(max|min)\(\)")
    if numbers:
        results += _computed(amount, _variables(frames))
    if groups:
        results.append(rf"rows\.groupby\('({groups})'\)\.size\(\)(\.n(largest|smallest)\([0-9]+\))?")
    if groups and numbers:
        of_groups = rf"rows\.groupby\('({groups})'\)\['{amount}'\]\.({AGGREGATES})\(\)"
        results.append(rf"{of_groups}(\.n(largest|smallest)\([0-9]+\))?")
    return rf"^({'|'.join(results)})$"


def program(rows: str, result: str, frames: Sequence[Frame]) -> str:
    """The lines that compute `result` over `rows`, with the columns that neither table has by itself."""
    result = _EXTREME.sub(_row_of, _ROW.sub(lambda row: f".iloc[[{int(row[1]) - 1}]]", result))
    names = {column.name for frame in frames for column in frame.columns}
    result = _SUMS.sub(lambda sums: _sum_of_products(sums, names), result)
    named = dict.fromkeys(_QUOTED.findall(f"{rows} {result}"))
    added = [line for number, frame in enumerate(frames) for name in named for line in _column(number, frame, name)]
    return "\n".join([*added, f"rows = {rows}", result])


def _row_of(extreme: re.Match[str]) -> str:
    # The row that has the highest or lowest value also shows whose it is.
    return f"rows.n{'largest' if extreme[2] == 'max' else 'smallest'}(1, {extreme[1]})"


def _sum_of_products(sums: re.Match[str], names: Container[str]) -> str:
    # A sum times a sum means nothing; what is meant is the sum of what each row comes to.
    is_known = sums[1] in names and sums[2] in names
    return f"rows['{sums[1]} * {sums[2]}'].sum()" if is_known else sums[0]


def _column(number: int, frame: Frame, name: str) -> Iterable[str]:
    kinds, table = {column.name: column.kind for column in frame.columns}, variable(number)
    if name in kinds:
        return
    for one, operator, other in itertools.product(kinds, "*/+-", kinds):
        if kinds[one] == kinds[other] == "number" and name == f"{one} {operator} {other}":
            yield f"{table}[{name!r}] = {table}[{one!r}] {operator} {table}[{other!r}]"
    of, _, part = name.rpartition(" ")
    if kinds.get(of) == "date" and part in _PARTS:
        yield f"{table}[{name!r}] = {table}[{of!r}].dt.strftime({_PARTS[part]!r})"


def _computed(amount: str, tables: str) -> list[str]:
    aggregate = rf"\.({AGGREGATES})\(\)"
    term = rf"(rows\['{amount}'\]{aggregate}|len\(rows\)|[0-9]+(\.[0-9]+)?)"
    of_all = rf"(({tables})\['{amount}'\]{aggregate}|len\(({tables})\))"
    return [
        rf"rows\['{amount}'\]\.(sum|mean|median|std)\(\)",
        rf"{term}( [-+*/] {term})+( [-/] {of_all})?",
        rf"{term} [-/] {of_all}",
    ]


def _conditions(
    column: Column, known: bool, tables: str, numbers: Sequence[str], words: Sequence[str]
) -> Iterable[str]:
    cell, compared = rf"({tables})\['{_literal(column.name)}'\]", "(==|!=|<|<=|>|>=)"
    if column.kind == "text" and not known:
        yield rf"{cell} (==|!=) '{_ANY}'"
    elif column.kind == "text":
        named = [value for value in column.values if not _UNFIT.search(value) and _is_named(value, words)]
        if named:
            yield rf"{cell} (==|!=) '({'|'.join(map(_literal, named))})'"
    elif numbers and column.kind == "number":
        yield rf"{cell} {compared} ({'|'.join(numbers)})"
    elif column.kind == "date":
        if months := [month for month in column.months if int(month[-2:]) in _months_in(words)]:
            yield rf"({tables})\['{_literal(column.name)} month'\] (==|!=) '({'|'.join(months)})'"
        if numbers:
            yield rf"{cell} {compared} '[0-9][0-9][0-9][0-9]-[0-9][0-9]-[0-9][0-9]'"
            yield rf"{cell}\.dt\.(year|month|day) {compared} ({'|'.join(numbers)})"


def _months_in(words: Sequence[str]) -> set[int]:
    return {month for word in words if word in _months() for month in _months()[word]}


@cache
def _months() -> Mapping[str, set[int]]:
    """The numbers of the months that each word may be."""
    from babel import Locale

    numbers: defaultdict[str, set[int]] = defaultdict(set)
    for language in LANGUAGES:
        for form in ("format", "stand-alone"):
            for number, name in Locale(language).months[form]["wide"].items():
                numbers[" ".join(_words(name))].add(number)
    return numbers


def _words(text: str) -> list[str]:
    plain = unicodedata.normalize("NFKD", text).casefold()
    return re.findall(r"\w+", "".join(letter for letter in plain if not unicodedata.combining(letter)))


def _is_named(value: str, words: Sequence[str]) -> bool:
    # "lamps" names Lamp and "Hämmer" Hammer; short words have to be the same
    return any(word == part or _is_form(word, part) for part in _words(value) for word in words)


def _are_meant(column: Column, words: Sequence[str]) -> bool:
    inflected = {word.removesuffix(ending) for word in words for ending in ENDINGS}
    texts = (_words(value) for value in column.values if not _UNFIT.search(value))
    # Shorter values are often words of the question by chance.
    return column.kind == "text" and any(
        inflected.issuperset(parts) for parts in texts if max(map(len, parts), default=0) >= STEM
    )


def _is_form(word: str, part: str) -> bool:
    shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(word, part, strict=False)))
    return shared >= STEM and shared >= max(len(word), len(part)) - ENDING


def _numbers_in(question: str) -> list[str]:
    written = [number.replace(",", "") for number in _WRITTEN.findall(question)]
    return [_literal(number) for number in dict.fromkeys(written)]


def _known(frames: Sequence[Frame]) -> bool:
    counts = [len(column.values) for frame in frames for column in frame.columns if column.kind == "text"]
    return all(frame.is_whole for frame in frames) and sum(counts) <= MOST_VALUES


def _fitting(frames: Sequence[Frame]) -> list[Column]:
    columns = {column.name: column for frame in frames for column in frame.columns if not _UNFIT.search(column.name)}
    return list(columns.values())


def _variables(frames: Sequence[Frame]) -> str:
    return "|".join(variable(number) for number in range(len(frames)))


def variable(number: int) -> str:
    """The name of the variable that holds the table of this number, from 0."""
    return f"df{number + 1}" if number else "df"


def _names(columns: Iterable[Column]) -> str:
    return "|".join(_literal(column.name) for column in columns)


def _literal(text: str) -> str:
    return _SPECIAL.sub(r"\\\g<0>", text)
