"""The grammar of what a small model may look up or compute in tables: rows that it selects, and a result over them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from task.local_model.frames import Column, Frame

MOST_VALUES = 60  # of all columns of text; with more, or with unknown ones, any text may be compared with
AGGREGATES = "sum|mean|median|max|min"
_SPECIAL = re.compile(r"[\^$.\[\]()|{}*+?]")  # llama.cpp knows no other escapes, and no classes such as \\d
_UNFIT = re.compile(r"['\"\\\n]")
_ANY = r"[^'\"\\]+"


def rows_pattern(frames: Sequence[Frame]) -> str:
    """All rows of a table, `df`, or those that fulfil conditions on its columns: `df[(df['a'] == 'x') & …]`."""
    columns = _fitting(frames)
    tables = _variables(frames)
    conditions = [condition for column in columns for condition in _conditions(column, _known(frames), tables)]
    condition = rf"\(({'|'.join(conditions)})\)"
    return rf"^({tables})(\[{condition}( [&|] {condition})?\])?$"


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
    if numbers:
        results += _computed(numbers, _variables(frames))
    if texts:
        results.append(rf"rows\.groupby\('({texts})'\)\.size\(\)(\.n(largest|smallest)\([0-9]+\))?")
    if texts and numbers:
        of_groups = rf"rows\.groupby\('({texts})'\)\['({numbers})'\]\.({AGGREGATES})\(\)"
        results.append(rf"{of_groups}(\.n(largest|smallest)\([0-9]+\))?")
    return rf"^({'|'.join(results)})$"


def _computed(numbers: str, tables: str) -> list[str]:
    # A highest or lowest value alone is no result: the row that has it also shows whose it is.
    column = rf"(rows|{tables})\['({numbers})'\]"
    aggregate = rf"\.({AGGREGATES})\(\)"
    product = rf"\({column} [-+*/] {column}\){aggregate}"
    term = rf"({column}({aggregate})?|{product}|len\((rows|{tables})\)|[0-9]+(\.[0-9]+)?)"
    return [
        rf"rows\['({numbers})'\]\.(sum|mean|median|std)\(\)",
        product,
        rf"{term}( [-+*/] {term})+",
    ]


def _conditions(column: Column, known: bool, tables: str) -> Iterable[str]:
    cell = rf"({tables})\['{_literal(column.name)}'\]"
    if column.kind == "number":
        yield rf"{cell} (==|!=|<|<=|>|>=) -?[0-9]+(\.[0-9]+)?"
    elif column.kind == "date":
        yield rf"{cell} (==|!=|<|<=|>|>=) '[0-9][0-9][0-9][0-9]-[0-9][0-9]-[0-9][0-9]'"
        yield rf"{cell}\.dt\.(year|month|day) (==|!=|<|<=|>|>=) [0-9]+"
    else:
        values = [_literal(value) for value in column.values if not _UNFIT.search(value)] if known else []
        yield rf"{cell} (==|!=) '({'|'.join(values) or _ANY})'"


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
