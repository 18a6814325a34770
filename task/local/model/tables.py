"""Questions about a table: a small model selects rows and a result, a program computes, prose describes what it gives.

The table is what the reader returned; the program loads it from its file as the reader has read it.
"""

from __future__ import annotations

import itertools
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import date
from pathlib import PurePosixPath
from typing import Any, Literal

import orjson

from task.conversation.messages import Message, Role
from task.documents.tables import NAMES
from task.local.model.decision import PAGES, arguments_of, closed_object, is_table, names_of, readings, without_note
from task.local.model.prompt import READER, RUNNER

CHART = "chart"
ASK = "Next step as JSON."
CORRECT = "The call failed. Next step as JSON: the call without that mistake."
DESCRIBE = "Now answer the question with this result, in one short sentence in the user's language."
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
_MOST_VALUES = 60  # of all columns of text; with more, or with unknown ones, any text may be compared with
_AGGREGATE = r"\.(sum|mean|median|max|min)\(\)"
_PARTS = {"month": "%Y-%m", "year": "%Y"}  # of a date, by which rows are selected and grouped
_SPECIAL = re.compile(r"[\^$.\[\]()|{}*+?]")  # llama.cpp knows no other escapes, and no classes such as \\d
_SUMS = re.compile(r"(?<!/ )rows\['([^']*)'\]\.sum\(\) \* rows\['([^']*)'\]\.sum\(\)")
_PRINTED_NOTHING = "**Output:**\n```\n(nothing was printed)\n```"  # before a table that is the result
_FAILED = re.compile(r"^(?:\w+\.)*\w*(?:Error|Exception)(?::|$)", re.MULTILINE)
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
_STRIPPED = r".replace(r'^\s+|\s+$', '', regex=True).dropna(how='all')"
_DAY_FIRST = "column.astype(str).str.contains('.', regex=False).any()"
_POINTED = {True: ".str.replace('.', '').str.replace(',', '.')", False: ".str.replace(',', '')"}


@dataclass(frozen=True, slots=True)
class TableStep:
    """The step about a `table`: the conversation, which ends with its description and the question, and the last
    sentence, `ask`.

    `computed` is whether a program over it has already run without an error; the conversation then ends with its
    result.
    """

    table: Table
    messages: tuple[Message, ...]
    question: str
    computed: bool
    ask: str

    def schema(self) -> dict[str, Any]:
        """The JSON schema of this step: a selection, a program, or a reply."""
        # A program that is written freely over all rows would forget the filter as well.
        rows = {"rows": {"type": "string", "pattern": _rows_pattern(self.table, self.question)}}
        result = {"type": "string", "pattern": _result_pattern(self.table)}
        steps = ({**rows, "result": result}, {**rows, CHART: {"type": "string"}}, {"reply": {"const": True}})
        return {"anyOf": [closed_object(step, list(step)) for step in steps]}

    def calls(self, text: str) -> list[tuple[str, dict[str, Any]]]:
        """The call in the JSON that the schema allows; none for a reply, or for JSON that was cut off."""
        try:
            step: dict[str, str] = orjson.loads(text)
        except orjson.JSONDecodeError:
            return []
        if "rows" not in step:
            return []
        program = _program(self.table, step["rows"], step.get(CHART) or step["result"])
        return [(RUNNER, {"code": f"{self.table.loading}\n{program}"})]


def table_step(messages: Sequence[Message]) -> TableStep | None:
    """The next step when the last result is the only table that was read, or a program over it; None otherwise."""
    calls = {call.id: call for message in messages for call in message.tool_calls}
    call = calls.get(messages[-1].tool_call_id or "")
    if call is None or call.name not in (READER, RUNNER):
        return None
    has_run = call.name == RUNNER
    texts = [n for n, message in enumerate(messages) if message.role is not Role.TOOL and not message.tool_calls]
    asked, result = texts[-1], messages[-1].text()
    read = {url: text for place, url, text in reversed(readings(messages)) if place > asked}
    names = names_of(read, messages)
    tables = [table for url, text in read.items() if (table := table_of(names[url], text))]
    code = str(arguments_of(call).get("code", ""))
    if len(tables) != 1 or (has_run and not code.startswith(tables[0].loading)):
        return None
    table, question = tables[0], without_note(messages[asked].text())
    failed = has_run and _FAILED.search(result) is not None
    computed = has_run and not failed
    parts = [question] if computed else [str(table), question]
    if has_run:
        # What the model has chosen, and what came of it, without the loading and the columns computed for the choice
        chosen = code[max(code.find("\nrows = "), len(table.loading)) :].strip()
        output = result.rpartition(code)[2].lstrip("`\n").removeprefix(_PRINTED_NOTHING).strip()
        parts.append(f"{chosen}\n\nResult:\n{output}")
    # What an earlier question's tools returned would only take time to read.
    said = (replace(messages[n], content=without_note(messages[n].text())) for n in texts[:-1])
    shown = (*said, replace(messages[asked], content="\n\n".join(parts)))
    return TableStep(table, shown, question, computed, DESCRIBE if computed else CORRECT if failed else ASK)


def _rows_pattern(table: Table, question: str) -> str:
    # All rows, or those that fulfil one or two conditions on columns. What is compared with stands in the question,
    # words perhaps in another form: a small model would make up conditions for "the most" otherwise. Where the
    # question names a value, rows are selected by some condition: a small model would forget it.
    words, conditions = _words(question), list[str]()
    numbers = [number.replace(",", "") for number in re.findall(r"\d+(?:,\d{3})*(?:\.\d+)?", question)]
    of_numbers = rf"(==|!=|<|<=|>|>=) ({_either(numbers)})"
    texts = [value for column in table.columns if column.kind == "text" for value in column.values if _fits(value)]
    is_known = table.is_whole and len(texts) <= _MOST_VALUES
    for column in filter(lambda column: _fits(column.name), table.columns):
        cell, named = _either([column.name]), [value for value in column.values if _fits(value)]
        if column.kind == "text":
            named = [value for value in named if _is_named(value, words)]
            value = f"({_either(named)})" if is_known else r"[^'\"\\]+"
            conditions += [rf"df\['{cell}'\] (==|!=) '{value}'"] if named or not is_known else []
        if column.kind == "date":
            days = ["-".join(f"{part:0>2}" for part in reversed(value.split("."))) for value in named]
            months = {day[:7]: date.fromisoformat(f"{day[:7]}-01").strftime("%B") for day in sorted(days)}
            named = [month for month, name in months.items() if _is_named(name, words)]
            conditions += [rf"df\['{cell} month'\] (==|!=) '({_either(named)})'"] if named else []
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


def _result_pattern(table: Table) -> str:
    # What is wanted of the rows. Wherever a column of numbers may stand, two of them may, computed row by row:
    # 'a * b'; and rows can be grouped by the month or year of a date: 'a month'. `_program` makes columns of these.
    of = {kind: _either(filter(_fits, table.names(kind))) for kind in ("number", "date", "text")}
    numbers, dates = of["number"], of["date"]
    amount = rf"({numbers})( [-+*/] ({numbers}))?"
    ranked = "|".join([amount] * bool(numbers) + [dates] * bool(dates))
    groups = "|".join(filter(None, [of["text"], dates, rf"({dates}) (month|year)" if dates else ""]))
    of_groups, most = rf"rows\.groupby\('({groups})'\)", r"(\.n(largest|smallest)\([0-9]+\))?"
    term = rf"(rows\['{amount}'\]{_AGGREGATE}|len\(rows\)|[0-9]+(\.[0-9]+)?)"
    of_all = rf"(df\['{amount}'\]{_AGGREGATE}|len\(df\))"
    results = {
        r"rows(\.(head|tail)\([0-9]+\)|\.row\([1-9][0-9]*\))?|len\(rows\)": True,
        rf"rows\['({'|'.join(filter(None, of.values()))})'\]\.(unique|nunique|value_counts)\(\)": any(of.values()),
        rf"rows\.n(largest|smallest)\([0-9]+, '({ranked})'\)|rows\['({ranked})'\]\.(max|min)\(\)": ranked,
        rf"rows\['{amount}'\]\.(sum|mean|median|std)\(\)": numbers,
        rf"{term}( [-+*/] {term})+( [-/] {of_all})?|{term} [-/] {of_all}": numbers,
        rf"{of_groups}\.size\(\){most}": groups,
        rf"{of_groups}\['{amount}'\]{_AGGREGATE}{most}": groups and numbers,
    }
    return rf"^({'|'.join(pattern for pattern, is_possible in results.items() if is_possible)})$"


def _program(table: Table, rows: str, result: str) -> str:
    result = re.sub(r"\.row\(([0-9]+)\)", lambda row: f".iloc[[{int(row[1]) - 1}]]", result)
    # The row that has the highest or lowest value also shows whose it is.
    result = re.sub(r"^rows\[('[^']*')\]\.max\(\)$", r"rows.nlargest(1, \1)", result)
    result = re.sub(r"^rows\[('[^']*')\]\.min\(\)$", r"rows.nsmallest(1, \1)", result)
    own = {column.name for column in table.columns}
    # A sum times a sum means nothing; what is meant is the sum of what each row comes to.
    if (sums := _SUMS.search(result)) and own.issuperset(sums.groups()):
        result = result.replace(sums[0], f"rows['{sums[1]} * {sums[2]}'].sum()")
    pairs = itertools.product(table.names("number"), "*/+-", table.names("number"))
    computed = {f"{a} {sign} {b}": f"df[{a!r}] {sign} df[{b!r}]" for a, sign, b in pairs}
    parts = itertools.product(table.names("date"), _PARTS)
    computed |= {f"{name} {part}": f"df[{name!r}].dt.strftime({_PARTS[part]!r})" for name, part in parts}
    quoted = dict.fromkeys(re.findall("'([^']*)'", f"{rows} {result}"))
    added = [f"df[{name!r}] = {computed[name]}" for name in quoted if name in computed and name not in own]
    return "\n".join([*added, f"rows = {rows}", result])


def _words(text: str) -> list[str]:
    plain = unicodedata.normalize("NFKD", text).casefold()
    return re.findall(r"\w+", "".join(letter for letter in plain if not unicodedata.combining(letter)))


def _is_named(value: str, words: Sequence[str]) -> bool:
    # "lamps" names Lamp and "Hämmer" Hammer: two forms of a word differ in their ends. Short words have to be the same.
    pairs = ((word, part, max(3, len(word) - 3, len(part) - 3)) for part in _words(value) for word in words)
    return any(word[:shared] == part[:shared] for word, part, shared in pairs)


def _is_meant(value: str, words: Sequence[str]) -> bool:
    # For certain: each of its words, or a little longer. Shorter values are often words of the question by chance.
    parts = _words(value)
    ends = [[word.removeprefix(part) for word in words if word.startswith(part)] for part in parts]
    is_named = all(any(len(end) <= min(2, len(part) // 2) for end in of) for part, of in zip(parts, ends, strict=True))
    return is_named and any(len(part) > 2 for part in parts)


def _fits(text: str) -> bool:
    return re.search(r"['\"\\\r\n]", text) is None


def _either(texts: Iterable[str]) -> str:
    return "|".join(_SPECIAL.sub(r"\\\g<0>", text) for text in texts)


@dataclass(frozen=True, slots=True)
class Column:
    """A column with its different values as far as the read page shows them."""

    name: str
    kind: Literal["number", "date", "text"]
    values: tuple[str, ...]

    @property
    def only_counts(self) -> bool:
        """Whether it numbers the rows."""
        numbers = [int(value) for value in self.values if re.fullmatch(r"[0-9]{1,18}", value)]
        return len(numbers) == len(self.values) > 2 and all(b - a == 1 for a, b in itertools.pairwise(numbers))

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
        amounts = [column.name for column in self.columns if column.kind == "number" and not column.only_counts]
        # Named here, a small model thinks of it where a price belongs to a quantity.
        product = f" (for sums also {' * '.join(amounts)!r})" if len(amounts) == 2 else ""
        return f"df: {self.name}, {self.size} rows{product} with the columns {', '.join(map(str, self.columns))}"


def table_of(name: str, text: str) -> Table | None:
    """The table in what the reader has made of the file `name`; None where there is none or more than one."""
    if not is_table(name):
        return None
    report = text.partition("\n")[0] if text.startswith("**Report**") else ""
    noted = {option: match[1] for option, pattern in _NOTED.items() if (match := re.search(pattern, report))}
    is_apart = "header in row" in report and "usecols" not in noted  # in too many columns
    suffix = PurePosixPath(name).suffix.lower()
    head, rows, sheet = _cells(suffix, text)
    names = [name or f"column {place}" for place, name in enumerate(head, 1)]
    if not rows or len(set(names)) < len(names) or is_apart or _DAMAGED.search(report):
        return None
    columns = tuple(_column(name, [row[place] for row in rows]) for place, name in enumerate(names))
    counted = re.search(r"(?<![\d,])([\d,]{1,20}) rows?, ", report)
    size = counted[1] if counted else str(len(rows))
    is_whole = size.replace(",", "") == str(len(rows)) and PAGES not in text
    return Table(name, columns, size, _loading(name, suffix, sheet, columns, noted), is_whole)


def _loading(name: str, suffix: str, sheet: str, columns: Sequence[Column], noted: Mapping[str, str]) -> str:
    if suffix == ".json":
        options: dict[str, Any] = {"dtype": False}
    else:
        sep = "\t" if suffix == ".tsv" else ","
        options = {"sheet_name": sheet} if sheet else {"sep": sep, "encoding": "utf-8", "skipinitialspace": True}
        # The header is skipped and named here: pandas would refuse longer rows, and change names.
        options |= {"header": None, "names": [column.name for column in columns], "usecols": range(len(columns))}
        options |= {option: _MARKS.get(value, value) for option, value in noted.items()}
        options |= {"skiprows": int(noted.get("skiprows", 1)), "dtype": "str"}
        options |= {"keep_default_na": False, "na_values": [""]}
    numbers = (_NUMBER.fullmatch(value) for column in columns if column.kind == "number" for value in column.values)
    amounts = " ".join(match[1] for match in numbers if match)
    marks = {"".join(mark) for mark in _DECIMAL_MARK.findall(amounts)}
    has_comma = "," in marks or (options.get("sep") == ";" and "," in amounts)
    arguments = ", ".join([repr(name), *(f"{option}={value!r}" for option, value in options.items())])
    typed = {
        "number": f"pd.to_numeric({_PLAIN}{_POINTED[has_comma and '.' not in marks]}, errors='coerce')",
        "date": f"pd.to_datetime(column, format='mixed', dayfirst={_DAY_FIRST}, errors='coerce')",
    }
    lines = ["import pandas as pd", f"df = pd.{_LOADERS[suffix]}({arguments}){_STRIPPED}"]
    for kind, expression in typed.items():
        if named := [column.name for column in columns if column.kind == kind]:
            lines.append(f"df[{named}] = df[{named}].apply(lambda column: {expression})")
    return "\n".join(lines)


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
