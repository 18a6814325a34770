"""A small model that has read a table is asked for a program over the file."""

from __future__ import annotations

import json
from typing import Any

import pytest

from task.conversation.messages import FunctionCall, Message, ToolCall, assistant, tool_message, user
from task.local_model.tables import CORRECT, after_a_result, names_of, with_names

URL = "files/bucket/my%20sales.csv"
TABLE = "| Date | Category | Sales |\n| --- | --- | --- |\n| 2025-10-01 | A | 1,500 |\n| 2025-10-02 | B\\|C | 900.5 |\n"
TOOLS = ("file_content_extraction_tool", "execute_code", "calculator")


def call(name: str, **arguments: Any) -> ToolCall:
    return ToolCall(f"call of {name}", FunctionCall(name, json.dumps(arguments)))


def read(text: str, url: str = URL, title: str = "my sales.csv") -> list[Message]:
    """A question about a file, and the result of reading it."""
    reading = call("file_content_extraction_tool", file_url=url)
    question = user(f"What is the total of A?\n\nAttached files:\n- {title} (text/csv): {url}")
    return [user("Hello"), assistant("Hi"), question, assistant(calls=[reading]), tool_message(reading, text)]


def ran(output: str) -> list[Message]:
    running = call("execute_code", code="1")
    return [*read(TABLE), assistant(calls=[running]), tool_message(running, output)]


def test_a_table_leads_to_a_program_with_its_name_its_columns_and_the_question() -> None:
    words = after_a_result(read(TABLE), TOOLS)
    assert words is not None
    assert 'the file is my sales.csv, read by pd.read_csv, and its columns are "Date" (2025-10-01, 2025-10-02)' in words
    assert '"Category" (A, B|C), "Sales". The user asks: What is the total of A?\n' in words
    assert "Attached files" not in words


@pytest.mark.parametrize(("name", "loader"), [("a.TSV", "read_table"), ("a.xlsx", "read_excel"), ("a.csv", "read_csv")])
def test_each_kind_of_table_has_its_own_loader(name: str, loader: str) -> None:
    words = after_a_result(read(TABLE, f"files/b/{name}", name), TOOLS)
    assert words is not None
    assert f"pd.{loader}" in words


def test_of_many_long_values_the_first_ones_are_shown() -> None:
    rows = "".join(f"| value {number} {'x' * 90} |\n" for number in range(50))
    words = after_a_result(read(f"| words |\n| --- |\n{rows}"), TOOLS)
    assert words is not None
    assert "value 5 " in words
    assert "value 6 " not in words
    assert "x" * 31 not in words


@pytest.mark.parametrize(
    "messages",
    [
        read("Plain text, no table."),
        read(TABLE, "files/b/report.pdf", "report.pdf"),
        read("| broken\n| --- |"),
        [user("Hello")],
        [user("?"), tool_message(call("file_content_extraction_tool", file_url=URL), TABLE)],
    ],
    ids=["text", "no-table-file", "damaged-table", "no-result", "no-call"],
)
def test_no_other_result_leads_to_a_program(messages: list[Message]) -> None:
    assert after_a_result(messages, TOOLS) is None


def test_without_an_interpreter_there_is_no_program() -> None:
    assert after_a_result(read(TABLE), ("file_content_extraction_tool", "calculator")) is None


def test_only_a_failed_program_is_to_be_corrected() -> None:
    assert after_a_result(ran("**Output:**\n```\nTraceback …\nKeyError: 'Sale'\n```"), TOOLS) == CORRECT
    assert after_a_result(ran("**Output:**\n```\nErrors: 3\n```"), TOOLS) is None


def test_programs_find_files_under_their_titles() -> None:
    messages = read(TABLE)
    names = names_of([URL, "files/b/x.csv", "files/b/x.csv.gz"], messages)
    assert names == {URL: "my sales.csv", "files/b/x.csv": "x.csv", "files/b/x.csv.gz": "x.csv.gz"}
    code = f"open('{URL}'); open('files/b/x.csv.gz'); open('files/b/x.csv')"
    assert with_names(code, names) == "open('my sales.csv'); open('x.csv.gz'); open('x.csv')"
