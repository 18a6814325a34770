"""The grammar of what a small model may look up or compute in tables: rows that it selects, and a result over them."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from itertools import takewhile

from task.local_model.columns import Column
from task.local_model.frames import Frame

MOST_VALUES = 60  # of all columns of text; with more, or with unknown ones, any text may be compared with
STEM, ENDING = 3, 3  # letters that two forms of a word share at least, and in which they differ at most
ENDINGS = ("", "s", "es", "n", "en")  # of a value that the question means for certain
AGGREGATES = "sum|mean|median|max|min"
_SPECIAL = re.compile(r"[\^$.\[\]()|{}*+?]")  # llama.cpp knows no other escapes, and no classes such as \\d
_UNFIT = re.compile(r"['\"\\\r\n]")
_WRITTEN = re.compile(r"\d+(?:,\d{3})*(?:\.\d+)?")
_ANY = r"[^'\"\\]+"


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
    """What is wanted of `rows`: they, some of them, their number, or something computed from their columns."""
    columns = _fitting(frames)
    ranked, numbers, texts = (
        _names(column for column in columns if column.kind in kinds)
        for kinds in (("number", "date"), ("number",), ("text", "date"))
    )
    results = ["rows", r"rows\.(head|tail)\([0-9]+\)", r"rows\.iloc\[\[[0-9]+\]\]", r"len\(rows\)"]
    results.append(rf"rows\['({_names(columns)})'\]\.(unique|nunique|value_counts)\(\)")
    if ranked:
        results.append(rf"rows\.n(largest|smallest)\([0-9]+, '({ranked})'\)")
        results.append(rf"rows\['({ranked})'\]\.(max|min)\(\)")
    if numbers:
        results += _computed(numbers, _variables(frames))
    if texts:
        results.append(rf"rows\.groupby\('({texts})'\)\.size\(\)(\.n(largest|smallest)\([0-9]+\))?")
    if texts and numbers:
        of_groups = rf"rows\.groupby\('({texts})'\)\['({numbers})'\]\.({AGGREGATES})\(\)"
        results.append(rf"{of_groups}(\.n(largest|smallest)\([0-9]+\))?")
    return rf"^({'|'.join(results)})$"


def _computed(numbers: str, tables: str) -> list[str]:
    aggregate = rf"\.({AGGREGATES})\(\)"
    product = rf"\(rows\['({numbers})'\] [-+*/] rows\['({numbers})'\]\){aggregate}"
    term = rf"(rows\['({numbers})'\]{aggregate}|{product}|len\(rows\)|[0-9]+(\.[0-9]+)?)"
    of_all = rf"(({tables})\['({numbers})'\]{aggregate}|len\(({tables})\))"
    return [
        rf"rows\['({numbers})'\]\.(sum|mean|median|std)\(\)",
        product,
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
    elif numbers:
        yield rf"{cell} {compared} '[0-9][0-9][0-9][0-9]-[0-9][0-9]-[0-9][0-9]'"
        yield rf"{cell}\.dt\.(year|month|day) {compared} ({'|'.join(numbers)})"


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
