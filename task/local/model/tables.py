"""What a small model may look up or compute in tables: a grammar of rows that it selects, and a result over them."""

from __future__ import annotations

import itertools
import re
import unicodedata
from collections.abc import Iterable, Sequence
from datetime import date
from typing import Any

from task.local.model.frames import Column, Frame

MOST_VALUES = 60  # of all columns of text; with more, or with unknown ones, any text may be compared with
AGGREGATE = r"\.(sum|mean|median|max|min)\(\)"
PARTS = {"month": "%Y-%m", "year": "%Y"}  # of a date, by which rows are selected and grouped
# Columns the user does not have: a small model copies an example that fits, including its values.
HEAD = """\
You answer questions about tables. The table is `df`; each row is one thing. Choose the next step as JSON:
- {"rows":"...","result":"..."} to look up or compute something: first the rows that the question is about, then what \
it wants of these rows
- {"rows":"...","chart":"..."} only to draw a chart or to write a file: a program over these rows
- {"reply":true} for a summary, a translation, or what has nothing to do with the table

Examples of rows and result, for a table with the columns 'fruit' (text: apple, pear, plum), 'color' (text: red, \
green), 'price' (number), 'count' (number), 'picked' (date):
Which fruit is the dearest? -> "df", "rows.nlargest(1, 'price')"
What does the dearest one cost? -> "df", "rows.nlargest(1, 'price')"
Who has the fewest pieces? -> "df", "rows.nsmallest(1, 'count')"
Which red fruit is the cheapest? -> "df[(df['color'] == 'red')]", "rows.nsmallest(1, 'price')"
Which was picked first? -> "df", "rows.nsmallest(1, 'picked')"
Which is the freshest? -> "df", "rows.nlargest(1, 'picked')"
Which is the last one in the list? -> "df", "rows.tail(1)"
Which fruit is listed fifth? -> "df", "rows.row(5)"
What color are the plums? -> "df[(df['fruit'] == 'plum')]", "rows"
Which fruits cost more than 2? -> "df[(df['price'] > 2)]", "rows"
What do the red ones cost on average? -> "df[(df['color'] == 'red')]", "rows['price'].mean()"
How many pieces are there? -> "df", "rows['count'].sum()"
How many pears are there in all? -> "df[(df['fruit'] == 'pear')]", "rows['count'].sum()"
How many fruits are red? -> "df[(df['color'] == 'red')]", "len(rows)"
What are all the pears worth? -> "df[(df['fruit'] == 'pear')]", "rows['price * count'].sum()"
Which color has most pieces? -> "df", "rows.groupby('color')['count'].sum().nlargest(1)"
How many pieces were picked in June? -> "df[(df['picked month'] == '2024-06')]", "rows['count'].sum()"
In which month were most pieces picked? -> "df", "rows.groupby('picked month')['count'].sum().nlargest(1)"
What is 8% of all prices? -> "df", "0.08 * rows['price'].sum()"
What share of the pieces is green, in percent? -> "df[(df['color'] == 'green')]", \
"100 * rows['count'].sum() / df['count'].sum()"
How much dearer is the dearest than the cheapest? -> "df", "rows['price'].max() - rows['price'].min()"
For a table with 'worker' (text: Kim, Lou), 'days' (number), 'wage per day' (number), 'paid' (date):
What did Kim earn in total? -> "df[(df['worker'] == 'Kim')]", "rows['wage per day * days'].sum()"
Which worker earned the most? -> "df", "rows.groupby('worker')['wage per day * days'].sum().nlargest(1)"
What did all the work cost? -> "df", "rows['wage per day * days'].sum()"
Who was paid last? -> "df", "rows.nlargest(1, 'paid')"
Who is second in the list? -> "df", "rows.row(2)"
Who is last in the list? -> "df", "rows.tail(1)"
Other examples:
Draw the prices of the red ones as bars -> {"rows":"df[(df['color'] == 'red')]",\
"chart":"rows.plot.bar(x='fruit', y='price')"}
Save the red ones as an Excel file -> {"rows":"df[(df['color'] == 'red')]","chart":"rows.to_excel('red.xlsx')"}
Summarise this table. -> {"reply":true}
"""
_SPECIAL = re.compile(r"[\^$.\[\]()|{}*+?]")  # llama.cpp knows no other escapes, and no classes such as \\d
_SUMS = re.compile(r"(?<!/ )rows\['([^']*)'\]\.sum\(\) \* rows\['([^']*)'\]\.sum\(\)")


def variable(number: int) -> str:
    """The name of the variable that holds the table of this number, from 0."""
    return f"df{number + 1}" if number else "df"


def rows_pattern(frames: Sequence[Frame], question: str) -> str:
    """All rows of a table, `df`, or those that fulfil conditions on its columns: `df[(df['a'] == 'x') & …]`.

    What is compared with stands in the question, words perhaps in another form: a small model would make up conditions
    for "the most" otherwise. Where the question names a value, rows are selected by some condition: a small model
    would forget it.
    """
    columns, tables, words = _columns(frames), _tables(frames), _words(question)
    texts = [column for column in columns if column.kind == "text"]
    is_known = all(frame.is_whole for frame in frames) and sum(len(each.values) for each in texts) <= MOST_VALUES
    numbers = [number.replace(",", "") for number in re.findall(r"\d+(?:,\d{3})*(?:\.\d+)?", question)]
    conditions: list[str] = []
    for column in columns:
        cell, compared = rf"({tables})\['{_either([column.name])}'\]", "(==|!=|<|<=|>|>=)"
        if column.kind == "text":
            named = [value for value in column.values if _is_named(value, words)]
            value = f"({_either(named)})" if is_known else r"[^'\"\\]+"
            conditions += [rf"{cell} (==|!=) '{value}'"] if named or not is_known else []
        elif column.kind == "date":
            months = {day[:7]: date.fromisoformat(f"{day[:7]}-01").strftime("%B") for day in sorted(column.days)}
            if named := [month for month, name in months.items() if _is_named(name, words)]:
                cell_of_month = rf"({tables})\['{_either([column.name])} month'\]"
                conditions.append(rf"{cell_of_month} (==|!=) '({_either(named)})'")
            if numbers:
                conditions.append(rf"{cell} {compared} '[0-9][0-9][0-9][0-9]-[0-9][0-9]-[0-9][0-9]'")
                conditions.append(rf"{cell}\.dt\.(year|month|day) {compared} ({_either(numbers)})")
        elif numbers:
            conditions.append(rf"{cell} {compared} ({_either(numbers)})")
    if not conditions:
        return rf"^({tables})$"
    is_needed = is_known and any(_is_meant(value, words) for column in texts for value in column.values)
    condition = rf"\(({'|'.join(conditions)})\)"
    return rf"^({tables})(\[{condition}( [&|] {condition})?\]){'' if is_needed else '?'}$"


def result_pattern(frames: Sequence[Frame]) -> str:
    """What is wanted of `rows`: they, some of them, their number, or something computed from their columns.

    Wherever a column of numbers may stand, two of them may, computed row by row: `'a * b'`; and rows can be grouped by
    the month or year of a date: `'a month'`. `program` makes columns of these.
    """
    columns, tables = _columns(frames), _tables(frames)
    names = {kind: [each.name for each in columns if each.kind == kind] for kind in ("number", "date", "text")}
    numbers, dates = _either(names["number"]), _either(names["date"])
    amount = rf"({numbers})( [-+*/] ({numbers}))?"
    ranked = "|".join([amount] * bool(numbers) + [dates] * bool(dates))
    groups = "|".join(filter(None, [_either(names["text"]), dates, rf"({dates}) (month|year)" if dates else ""]))
    of_groups, most = rf"rows\.groupby\('({groups})'\)", r"(\.n(largest|smallest)\([0-9]+\))?"
    term = rf"(rows\['{amount}'\]{AGGREGATE}|len\(rows\)|[0-9]+(\.[0-9]+)?)"
    of_all = rf"(({tables})\['{amount}'\]{AGGREGATE}|len\(({tables})\))"
    results = {
        r"rows(\.(head|tail)\([0-9]+\)|\.row\([1-9][0-9]*\))?|len\(rows\)": True,
        rf"rows\['({_either(each.name for each in columns)})'\]\.(unique|nunique|value_counts)\(\)": columns,
        rf"rows\.n(largest|smallest)\([0-9]+, '({ranked})'\)|rows\['({ranked})'\]\.(max|min)\(\)": ranked,
        rf"rows\['{amount}'\]\.(sum|mean|median|std)\(\)": numbers,
        rf"{term}( [-+*/] {term})+( [-/] {of_all})?|{term} [-/] {of_all}": numbers,
        rf"{of_groups}\.size\(\){most}": groups,
        rf"{of_groups}\['{amount}'\]{AGGREGATE}{most}": groups and numbers,
    }
    return rf"^({'|'.join(pattern for pattern, is_possible in results.items() if is_possible)})$"


def program(rows: str, result: str, frames: Sequence[Frame]) -> str:
    """The lines that compute `result` over `rows`, with the columns that neither table has by itself."""
    result = re.sub(r"\.row\(([0-9]+)\)", lambda row: f".iloc[[{int(row[1]) - 1}]]", result)
    # The row that has the highest or lowest value also shows whose it is.
    result = re.sub(r"^rows\[('[^']*')\]\.max\(\)$", r"rows.nlargest(1, \1)", result)
    result = re.sub(r"^rows\[('[^']*')\]\.min\(\)$", r"rows.nsmallest(1, \1)", result)
    names = {column.name for frame in frames for column in frame.columns}
    # A sum times a sum means nothing; what is meant is the sum of what each row comes to.
    if (sums := _SUMS.search(result)) and names.issuperset(sums.groups()):
        result = result.replace(sums[0], f"rows['{sums[1]} * {sums[2]}'].sum()")
    named = dict.fromkeys(re.findall("'([^']*)'", f"{rows} {result}"))
    computed = [(variable(number), _computed(variable(number), frame)) for number, frame in enumerate(frames)]
    added = [f"{table}[{name!r}] = {of[name]}" for table, of in computed for name in named if name in of]
    return "\n".join([*added, f"rows = {rows}", result])


def _computed(table: str, frame: Frame) -> dict[str, str]:
    pairs = itertools.product(frame.names("number"), "*/+-", frame.names("number"))
    computed = {f"{a} {sign} {b}": f"{table}[{a!r}] {sign} {table}[{b!r}]" for a, sign, b in pairs}
    parts = itertools.product(frame.names("date"), PARTS)
    computed |= {f"{name} {part}": f"{table}[{name!r}].dt.strftime({PARTS[part]!r})" for name, part in parts}
    own = {column.name for column in frame.columns}
    return {name: expression for name, expression in computed.items() if name not in own}


def _words(text: str) -> list[str]:
    plain = unicodedata.normalize("NFKD", text).casefold()
    return re.findall(r"\w+", "".join(letter for letter in plain if not unicodedata.combining(letter)))


def _is_named(value: str, words: Sequence[str]) -> bool:
    # "lamps" names Lamp and "Hämmer" Hammer: two forms of a word differ in their ends. Short words have to be the same.
    def alike(word: str, part: str) -> bool:
        shared = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(word, part, strict=False)))
        return word == part or shared >= max(3, len(word) - 3, len(part) - 3)

    return any(alike(word, part) for part in _words(value) for word in words)


def _is_meant(value: str, words: Sequence[str]) -> bool:
    # For certain: each of its words, or a little longer. Shorter values are often words of the question by chance.
    def longer(part: str) -> int:
        return len(part) + min(2, len(part) // 2)

    parts = _words(value)
    meant = (any(word.startswith(part) and len(word) <= longer(part) for word in words) for part in parts)
    return any(len(part) > 2 for part in parts) and all(meant)


def _columns(frames: Sequence[Frame]) -> list[Column]:
    columns = {column.name: column for frame in frames for column in frame.columns if _fits(column.name)}
    return [Column(each.name, each.kind, tuple(filter(_fits, each.values))) for each in columns.values()]


def _fits(text: str) -> bool:
    return re.search(r"['\"\\\r\n]", text) is None


def closed_object(properties: dict[str, Any], required: Sequence[str]) -> dict[str, Any]:
    """The JSON schema of an object with these properties only, the required ones first."""
    ordered = {name: properties[name] for name in sorted(properties, key=lambda name: name not in required)}
    known = [name for name in required if name in properties]
    return {"type": "object", "properties": ordered, "required": known, "additionalProperties": False}


def _tables(frames: Sequence[Frame]) -> str:
    return _either(map(variable, range(len(frames))))


def _either(texts: Iterable[str]) -> str:
    return "|".join(_SPECIAL.sub(r"\\\g<0>", text) for text in texts)
