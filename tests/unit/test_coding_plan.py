"""Plans as planners write them; the commands that verify them, and what their results mean."""

import json

import pytest

from task.coding.diffs import FileDiff
from task.coding.planner import _SCHEMA, Plan, parse_plan
from task.coding.settings import backend_and_model, compact_json
from task.coding.verification import changed_tests, command_verdict, pytest_command, verification_commands
from task.conversation.messages import FunctionCall, Message, Role, ToolCall
from task.tools.workspace.launcher import ShellResult

DATA = {"plan": ["Read it.", "Write it."], "coder_prompt": "Do {it}.", "tests": ["pytest -q"]}
TEXT = json.dumps(DATA)
EXPECTED = Plan(["Read it.", "Write it."], "Do {it}.", ["pytest -q"])


@pytest.mark.fault("coding: a planner that writes prose, fences, template tokens or a plan as text")
@pytest.mark.parametrize(
    "text",
    [
        TEXT,
        f"```json\n{TEXT}\n```",
        f"{TEXT}<|end|><|return|>",
        f"Here is the plan:\n\n{TEXT}\n\nGood luck {{with}} it!",
        f'The shape is {{"example": 1}}, and so:\n{TEXT}',
        f"{{ no JSON }} {{{{ {TEXT}",
        json.dumps({**DATA, "plan": "1. Read it.\n2. Write it.\n"}),
        json.dumps({**DATA, "plan": ["- Read it.", " (2) Write it.", ""]}),
        json.dumps({**DATA, "tests": "pytest -q"}),
        json.dumps({**DATA, "why": "because"}),
    ],
)
def test_a_plan_is_found_in_what_planners_write(text: str) -> None:
    assert parse_plan(text) == EXPECTED


def test_a_plan_writes_unless_it_says_that_it_does_not() -> None:
    assert [parse_plan(json.dumps({**DATA, "writes": value})).writes for value in (True, False, None)] == [
        True,
        False,
        True,
    ]
    assert _SCHEMA["required"] == list(_SCHEMA["properties"])  # as strict formats want it


def test_a_plan_may_have_no_tests() -> None:
    for tests in ({}, {"tests": None}, {"tests": []}):
        assert parse_plan(json.dumps({"plan": ["Do it."], "coder_prompt": "Do it.", **tests})).tests == []


@pytest.mark.fault("coding: a plan that is cut, empty, of the wrong types, or nested 100,000 deep")
@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("I would begin by reading the code.", "there is no JSON object"),
        ("", "there is no JSON object"),
        (TEXT[:-20], "there is no JSON object"),
        ("[1, 2]", "there is no JSON object"),
        ('{"a":' * 100_000, "there is no JSON object"),
        (json.dumps({"plan": ["Do it."]}), "coder_prompt: Field required"),
        (json.dumps({**DATA, "coder_prompt": ""}), "coder_prompt: String should have at least 1 character"),
        (json.dumps({**DATA, "plan": []}), "plan: Value should have at least 1 item"),
        (json.dumps({**DATA, "plan": "  \n"}), "plan: Value should have at least 1 item"),
        (json.dumps({**DATA, "plan": {"first": "Read"}}), "plan: Input should be a valid list"),
        (json.dumps({**DATA, "plan": [1, 2]}), "plan.0: Input should be a valid string"),
        (json.dumps({**DATA, "coder_prompt": ["Do it."]}), "coder_prompt: Input should be a valid string"),
    ],
)
def test_what_is_no_plan_is_refused_with_the_reason(text: str, fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        parse_plan(text)


@pytest.mark.fault("coding: a planner that calls a tool")
def test_a_planner_that_calls_a_tool_gives_no_plan() -> None:
    calls = (ToolCall("call_1", FunctionCall("fs_read", "{}")),)
    with pytest.raises(ValueError, match="called a tool"):
        parse_plan(Message(Role.ASSISTANT, TEXT, calls))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("gpt-oss:20b", ("ollama", "gpt-oss:20b")),
        ("openai:gpt-4o", ("openai", "gpt-4o")),
        ("dial:my-deployment", ("dial", "my-deployment")),
        ("OpenAI:gpt-4o", ("ollama", "OpenAI:gpt-4o")),
        ("openai:", ("ollama", "openai:")),
        (":7b", ("ollama", ":7b")),
    ],
)
def test_only_a_row_of_the_table_of_backends_before_the_first_colon_is_a_backend(
    text: str, expected: tuple[str, str]
) -> None:
    assert backend_and_model(text) == expected


def test_compact_json_has_no_spaces_and_keeps_every_character() -> None:
    assert compact_json({"a": [1, 2], "ü": "Привет"}) == '{"a":[1,2],"ü":"Привет"}'


@pytest.mark.fault("coding: a plan's test that is none, or runs something else")
@pytest.mark.parametrize(
    ("text", "command"),
    [
        ("pytest", "python -m pytest -q"),
        ("pytest -q", "python -m pytest -q"),
        ("`pytest tests/test_a.py`", "python -m pytest -q tests/test_a.py"),
        ("python -m pytest -q -x tests", "python -m pytest -q -x tests"),
        ("python3 -m pytest -k 'add and not slow'", "python -m pytest -q -k 'add and not slow'"),
        ("tests/test_a.py::TestA::test_one[a b]", None),
        ("tests/test_a.py::TestA::test_one[1-2]", "python -m pytest -q 'tests/test_a.py::TestA::test_one[1-2]'"),
        ("tests/test_a.py", "python -m pytest -q tests/test_a.py"),
        ("pytest  'tests/test_a.py' -m \"not slow\"", "python -m pytest -q tests/test_a.py -m 'not slow'"),
        ("test that add(1, 2) is 3", None),
        ("python calc.py", None),
        ("pytest; rm -rf .", None),
        ("pytest && curl http://127.0.0.1", None),
        ("pytest $(id)", None),
        ("pytest -p evil", None),
        ("pytest -c /etc/passwd", None),
        ("pytest --rootdir=/", None),
        ("pytest ../other", None),
        ("pytest /etc", None),
        ("pytest -k", None),
        ("pytest 'tests", None),
        ("", None),
    ],
)
def test_a_test_of_a_plan_is_run_where_it_is_plainly_one_of_pytest(text: str, command: str | None) -> None:
    assert pytest_command(text) == command


def test_the_plans_tests_verify_else_all_tests() -> None:
    tests = ["pytest tests/a.py", "check by hand", "pytest tests/a.py"]
    assert verification_commands(tests) == ["python -m pytest -q tests/a.py"]
    assert verification_commands(["check by hand"]) == ["python -m pytest -q"]
    assert verification_commands([]) == ["python -m pytest -q"]


@pytest.mark.fault("coding: nothing that could verify a run")
@pytest.mark.parametrize(
    ("code", "errors", "result", "words"),
    [
        (0, "", "verified", "`check` succeeded"),
        (1, "1 failed", "failed", "`check` failed with exit code 1"),
        (124, "timeout", "failed", "exit code 124"),
        (5, "", "not_verified", "not verified: `check` found no tests"),
        (1, "/usr/bin/python: No module named pytest", "not_verified", "pytest is not installed"),
        (1, "ModuleNotFoundError: No module named 'pytest'", "not_verified", "pytest is not installed"),
        (1, "ModuleNotFoundError: No module named 'pytest_socket'", "failed", "exit code 1"),
        (127, "", "failed", "exit code 127"),
    ],
)
def test_only_a_command_that_ran_and_passed_verifies(code: int, errors: str, result: str, words: str) -> None:
    found, sentence = command_verdict("check", ShellResult(code == 0, "", errors, code))
    assert found == result
    assert words in sentence


@pytest.mark.fault("coding: a coder that edits tests so that they pass")
def test_changed_tests_and_their_settings_are_named_and_new_tests_are_not() -> None:
    before = ["app.py", "tests/test_app.py", "tests/data.json", "web/a.spec.ts"]
    new = "diff --git a b\nnew file mode 100644\n"
    diffs = [*(FileDiff(path, "") for path in before), FileDiff("test_new.py", new), FileDiff("conftest.py", new)]
    assert changed_tests(diffs) == ["tests/test_app.py", "tests/data.json", "web/a.spec.ts", "conftest.py"]
    deciding = ["pyproject.toml", "pytest.toml", ".pytest.ini", "usercustomize.py", "a.dist-info/entry_points.txt"]
    deciding += ["venv/pyvenv.cfg", "venv/lib/a.pth"]
    assert changed_tests([FileDiff(path, new) for path in [*deciding, "app.py"]]) == deciding
