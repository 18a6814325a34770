"""A small model that has read a table selects rows and a result; the product loads the table as the reader read it."""

import ast
import io
import json
from dataclasses import replace
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from task.conversation.messages import FunctionCall, Message, ToolCall, assistant, tool_message, user
from task.local.model.decision import TableStep, attached_tables, names_of, table_step, with_names
from task.local.model.prompt import ASK, CORRECT, DESCRIBE
from task.local.model.tables import table_of

URL = "files/bucket/my%20sales.csv"
TABLE = "| Date | Category | Sales |\n| --- | --- | --- |\n| 2025-10-01 | A | 1,500 |\n| 2025-10-02 | B\\|C | 900.5 |\n"
QUESTION = "What is the total of A, or B|C, above 900.5 in October 2025?"
LOADED = table_of("my sales.csv", TABLE)
LOADING = LOADED.loading if LOADED else ""


def call(name: str, **arguments: Any) -> ToolCall:
    return ToolCall(f"call of {name} {arguments}", FunctionCall(name, json.dumps(arguments)))


def asked(*files: tuple[str, str]) -> Message:
    listed = "\n".join(f"- {title} (text/csv): {url}" for title, url in files)
    return user(f"{QUESTION}\n\nAttached files:\n{listed}" if files else QUESTION)


def read(text: str, url: str = URL, title: str = "my sales.csv") -> list[Message]:
    """A question about a file, and the result of reading it."""
    reading = call("file_content_extraction_tool", file_url=url)
    question = asked((title, url))
    return [user("Hello"), assistant("Hi"), question, assistant(calls=[reading]), tool_message(reading, text)]


def ran(output: str, code: str = f"{LOADING}\ndf.head()") -> list[Message]:
    running = call("execute_code", code=code)
    return [*read(TABLE), assistant(calls=[running]), tool_message(running, output)]


def step_of(messages: list[Message]) -> TableStep:
    step = table_step(messages)
    assert step is not None
    return step


def test_the_description_of_a_table_takes_the_place_of_its_rows() -> None:
    step = step_of(read(TABLE))
    assert step.messages[-1].text() == (
        "df: my sales.csv, 2 rows with the columns 'Date' (date: 2025-10-01, 2025-10-02), 'Category' (text: A, B|C), "
        f"'Sales' (number: 1,500, 900.5)\n\n{QUESTION}"
    )
    assert (step.computed, step.ask) == (False, ASK)
    assert list(step.messages[:-1]) == read(TABLE)[:2]


def test_a_result_is_described_without_its_table_and_program() -> None:
    output = "**Output:**\n```\n(nothing was printed)\n```\n\n|  | Sales |\n| --- | --- |\n| A | 1500 |\n"
    code = f"{LOADING}\nrows = df\nrows.head(1)"
    step = step_of(ran(f"## Execution Result\n\n```python\n{code}\n```\n\n{output}", code))
    assert (step.computed, step.ask) == (True, DESCRIBE)
    assert step.messages[-1].text() == (
        f"{QUESTION}\n\nrows = df\nrows.head(1)\n\nResult:\n|  | Sales |\n| --- | --- |\n| A | 1500 |"
    )


def selected(rows: str, result: str) -> str:
    return json.dumps({"rows": rows, "result": result})


def is_allowed(step: TableStep, rows: str = "df", result: str = "rows") -> bool:
    schema = step.schema()
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema).is_valid(json.loads(selected(rows, result)))


def test_a_selection_becomes_a_program_that_loads_the_table_first() -> None:
    step = step_of(read(TABLE))
    code = f"{LOADING}\nrows = df\nrows.nlargest(1, 'Sales')"
    assert step.calls(selected("df", "rows.nlargest(1, 'Sales')")) == [("execute_code", {"code": code})]
    program = '{"rows":"df","chart":"rows.plot()"}'
    assert step.calls(program) == [("execute_code", {"code": f"{LOADING}\nrows = df\nrows.plot()"})]
    assert step.calls('{"reply":true}') == []
    assert step.calls('{"rows":"df","res') == []


@pytest.mark.parametrize(
    "rows",
    [
        "df",
        "df[(df['Category'] == 'B|C')]",
        "df[(df['Category'] != 'A') & (df['Sales'] >= 900.5)]",
        "df[(df['Date'] < '2025-10-02') | (df['Date'].dt.year == 2025)]",
        "df[(df['Date month'] == '2025-10')]",
    ],
)
@pytest.mark.parametrize(
    "result",
    [
        *("rows", "rows.tail(1)", "rows.row(2)", "len(rows)", "rows.nlargest(1, 'Sales')"),
        *("rows.nsmallest(2, 'Date')", "rows['Category'].nunique()", "rows['Sales'].mean()"),
        *("0.19 * rows['Sales'].sum()", "100 * rows['Sales'].sum() / df['Sales'].sum()"),
        *("rows['Sales'].max() - rows['Sales'].min()", "rows['Sales * Sales'].sum()"),
        *("rows.nlargest(1, 'Sales - Sales')", "rows.groupby('Category')['Sales'].sum().nlargest(1)"),
        *("rows.groupby('Date month')['Sales * Sales'].mean()", "rows.groupby('Date year').size()"),
        "rows.groupby('Category').size()",
    ],
)
def test_rows_fulfil_conditions_on_columns_and_a_result_is_computed_from_them(rows: str, result: str) -> None:
    assert is_allowed(step_of(read(TABLE)), rows, result)


@pytest.mark.parametrize(
    ("rows", "result"),
    [
        *((rows, "rows") for rows in ("", "...", "df2", "df\nx", "df[]", "df[(df['Category'] == 'D')]")),
        *((rows, "rows") for rows in ("df[(df['Profit'] > 1)]", "df[(df['Sales'] == 'A')]")),
        ("df[(df['Date month'] == '2025-11')]", "rows"),
        *(("df", result) for result in ("", "...", "Ben", "rows['Category'].sum()", "rows['Category'].max()")),
        *(("df", result) for result in ("rows.nlargest(1, 'Category')", "rows.row(0)", "rows\nimport os")),
        *(("df", result) for result in ("rows['Sales * Category'].sum()", "rows.groupby('Category month').size()")),
    ],
)
def test_no_other_column_value_or_table_is_possible_and_nothing_that_cannot_be_computed(rows: str, result: str) -> None:
    assert not is_allowed(step_of(read(TABLE)), rows, result)


@pytest.mark.parametrize(("asked_for", "run"), [("max", "nlargest"), ("min", "nsmallest")])
def test_the_highest_or_lowest_value_comes_with_the_row_that_has_it(asked_for: str, run: str) -> None:
    step = step_of(read(TABLE))
    assert is_allowed(step, result=f"rows['Sales'].{asked_for}()")
    [(_, arguments)] = step.calls(selected("df", f"rows['Sales'].{asked_for}()"))
    assert arguments["code"].endswith(f"\nrows = df\nrows.{run}(1, 'Sales')")


STAFF = """\
| Name | Office | Salary | Bonus | Hired |
| --- | --- | --- | --- | --- |
| Vera | Turin | 4100 | 200 | 2019-03-01 |
| Iwan | Basel | 5300 | 150 | 2021-07-15 |
| Nils | Turin | 3900 | 700 | 2016-10-01 |
"""
DEAREST = "rows.nlargest(1, 'Salary')"
BY_NAME = "rows.groupby('Name')['Salary'].sum().nlargest(1)"
BY_OFFICE = "rows.groupby('Office')['Salary'].sum().nlargest(1)"
BY_YEAR = "rows.groupby('Hired year')['Salary'].sum().nlargest(1)"


def of_staff(question: str, text: str = STAFF) -> TableStep:
    return replace(step_of(read(text)), question=question)


@pytest.mark.parametrize(
    "question",
    [
        *("Who earns the most?", "Which of them is the dearest?", "What is the highest salary, and whose is it?"),
        *("What was the highest salary, and on which day was it agreed?", "Who was hired last?"),
    ],
)
def test_a_superlative_with_who_or_which_asks_for_the_row_of_the_highest_value(question: str) -> None:
    step = of_staff(question)
    assert is_allowed(step, result=DEAREST)
    assert is_allowed(step, result="rows.tail(1)")
    refused = [BY_OFFICE, BY_NAME, "len(rows)", "rows['Salary'].sum()", "rows['Salary'].max() - rows['Salary'].min()"]
    refused += [
        "rows.groupby('Name').size().nlargest(1)",
        "rows['Name'].nunique()",
        "rows.groupby('Name')['Salary'].sum()",
        "rows['Salary'].max() - 2",
    ]
    assert [result for result in refused if is_allowed(step, result=result)] == []


@pytest.mark.parametrize(
    ("question", "result"),
    [
        ("Which office earns the most?", BY_OFFICE),
        ("Who earns the most in total?", BY_OFFICE),
        ("In which year of hiring do they earn the most?", BY_YEAR),
        ("Where do most of them work?", "rows.groupby('Office').size().nlargest(1)"),
        ("How much more does the best paid earn than the one who earns least?", "rows['Salary'].max() - 2"),
        ("Which share of the salaries does the highest have?", "100 * rows['Salary'].max() / df['Salary'].sum()"),
        ("Who works in Turin?", "len(rows)"),
    ],
)
def test_groups_that_the_question_names_and_figures_are_still_possible(question: str, result: str) -> None:
    rows = "df[(df['Office'] == 'Turin')]" if "Turin" in question else "df"
    assert is_allowed(of_staff(question), rows, result)


def test_rows_with_repeated_or_coded_names_are_still_grouped() -> None:
    repeated, coded = (STAFF.replace("Nils", name) for name in ("Vera", "N7"))
    for text in (repeated, coded):
        assert is_allowed(of_staff("Who earns the most?", text), result=BY_OFFICE)


def test_a_reply_or_a_free_program_over_selected_rows_is_possible_and_nothing_else() -> None:
    fits = Draft202012Validator(step_of(read(TABLE)).schema()).is_valid
    assert fits({"rows": "df[(df['Category'] == 'A')]", "chart": "rows.plot()"})
    assert not fits({"chart": "df['Sales'].sum()"})
    assert fits({"reply": True})
    assert not fits({"rm": True})


BILLS = """\
| Client | Pieces | Price each | Day |
| --- | --- | --- | --- |
| Berg | 3 | 10.50 | 2024-11-04 |
| Tal | 2 | 20.00 | 2024-11-29 |
| Berg | 1 | 70.00 | 2024-12-01 |
"""


def computed(rows: str, result: str) -> Any:
    """What the program of this selection over the bills gives."""
    import pandas as pd

    step = replace(step_of(read(BILLS, title="bills.csv")), question="What did Berg pay for 1 in November?")
    assert is_allowed(step, rows, result)
    [(_, arguments)] = step.calls(selected(rows, result))
    table = io.StringIO(BILLS.replace("| --- | --- | --- | --- |\n", "").replace(" ", "").replace("each", " each"))
    bills = pd.read_csv(table, sep="|", usecols=range(1, 5), parse_dates=["Day"])
    *lines, last = arguments["code"].removeprefix(step.table.loading).split("\n")[1:]
    space = {"df": bills}
    exec("\n".join(lines), space)
    return eval(last, space)


def test_two_columns_of_numbers_are_computed_row_by_row() -> None:
    assert computed("df[(df['Client'] == 'Berg')]", "rows['Pieces * Price each'].sum()") == 101.5
    assert computed("df[(df['Client'] == 'Berg')]", "rows.nlargest(1, 'Price each / Pieces')").Pieces.item() == 1
    spent = computed("df[(df['Pieces'] >= 1)]", "rows.groupby('Client')['Pieces * Price each'].sum().nlargest(1)")
    assert spent.to_dict() == {"Berg": 101.5}


def test_a_sum_times_a_sum_is_the_sum_of_what_each_row_comes_to() -> None:
    product = "rows['Pieces'].sum() * rows['Price each'].sum()"
    assert computed("df[(df['Client'] == 'Berg')]", product) == 101.5
    assert computed("df[(df['Pieces'] >= 1)]", f"{product} - 1") == 140.5
    assert computed("df[(df['Client'] == 'Berg')]", f"len(rows) / {product}") == 2 / 4 * 80.5
    of_products = "rows['Pieces * Price each'].sum() * rows['Pieces'].sum()"
    assert computed("df[(df['Client'] == 'Berg')]", of_products) == 101.5 * 4


def test_months_and_years_of_a_date_select_and_group_rows() -> None:
    assert computed("df[(df['Client'] == 'Berg') & (df['Day month'] == '2024-11')]", "len(rows)") == 1
    months = computed("df[(df['Pieces'] >= 1)]", "rows.groupby('Day month')['Pieces'].sum()")
    assert months.to_dict() == {"2024-11": 5, "2024-12": 1}
    assert computed("df[(df['Pieces'] >= 1)]", "rows.groupby('Day year').size()").to_dict() == {"2024": 3}


@pytest.mark.parametrize(
    ("question", "is_needed"),
    [
        ("What do Ute's trips cost together?", True),
        ("How many lamps are in New York?", True),
        ("Was kosten die Lampen?", True),
        ("Who has the least?", False),
        ("Is a new one in it?", False),
    ],
)
def test_rows_are_selected_where_the_question_names_a_value(question: str, is_needed: bool) -> None:
    values = "".join(f"| {value} | 1 |\n" for value in ("Ute", "Lea", "lamp", "New York", "IN", "A"))
    step = replace(step_of(read(f"| what | n |\n| --- | --- |\n{values}")), question=question)
    assert is_allowed(step) is not is_needed


def test_marks_of_patterns_in_names_and_values_are_only_themselves() -> None:
    step = replace(step_of(read("| a.*\\|b] | n |\n| --- | --- |\n| x.+ | 1 |\n")), question="Which are x?")
    assert is_allowed(step, rows="df[(df['a.*|b]'] == 'x.+')]", result="rows['a.*|b]'].unique()")
    assert not is_allowed(step, rows="df[(df['a.*|b]'] == 'xyz')]")
    assert not is_allowed(step, result="rows['axy'].unique()")
    assert not is_allowed(step, result="rows['b]'].unique()")


@pytest.mark.parametrize(
    "messages",
    [
        read("Plain text, no table."),
        read(TABLE, "files/b/report.pdf", "report.pdf"),
        read("| broken\n| --- |"),
        [user("Hello")],
        [user("?"), tool_message(call("file_content_extraction_tool", file_url=URL), TABLE)],
        ran("3", "print(3)"),
        [*read(TABLE), *read("| x |\n| --- |\n| 1 |\n", "files/b/more.csv")[3:]],
    ],
    ids=["text", "no-table-file", "damaged-table", "no-result", "no-call", "another-program", "two-tables"],
)
def test_no_other_result_leads_to_a_step_about_tables(messages: list[Message]) -> None:
    assert table_step(messages) is None


@pytest.mark.fault("local model: a program over a table that fails")
def test_only_a_failed_program_is_to_be_corrected() -> None:
    failed = step_of(ran("**Output:**\n```\nTraceback …\nKeyError: 'Sale'\n```"))
    assert (failed.computed, failed.ask) == (False, CORRECT)
    assert step_of(ran("**Output:**\n```\nErrors: 3\n```")).computed


def test_tables_attached_to_the_question_are_read_first_and_other_files_are_not() -> None:
    question = asked(("a.csv", URL), ("b.XLSX", "files/b/b"), ("manual.pdf", "files/b/manual.pdf"))
    assert attached_tables([user("Hi"), question]) == ([URL, "files/b/b"], [])
    assert attached_tables([question, assistant("1500"), user("And of B?")]) == ([], [URL, "files/b/b"])
    assert attached_tables(read(TABLE)) == ([], [])


def test_programs_find_two_files_of_one_title_under_two_names() -> None:
    first, second = "files/b/1/sales.csv", "files/b/2/sales.csv"
    messages = [asked(("sales.csv", first)), assistant("1500"), asked(("sales.csv", second), ("sales.csv", first))]
    assert names_of([second, first], messages) == {first: "sales.csv", second: "sales_2.csv"}
    reading = call("file_content_extraction_tool", file_url=second)
    step = step_of([*messages, assistant(calls=[reading]), tool_message(reading, TABLE)])
    [(_, arguments)] = step.calls(selected("df", "len(rows)"))
    assert "pd.read_csv('sales_2.csv'" in arguments["code"]


@pytest.mark.parametrize("literal", ["'{}'", '"{}"', "f'{}'", 'f"{}"', "'''{}'''"])
def test_no_name_of_a_file_ends_the_string_that_it_stands_in(literal: str) -> None:
    name = """a'); b"c \\ {x} ''' \n é 😀.csv"""
    assert ast.literal_eval(with_names(literal.format("files/b/x"), {"files/b/x": name}).removeprefix("f")) == name
