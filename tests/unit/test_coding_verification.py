"""Which commands verify a run, what their results mean, and which changes make them doubtful."""

from __future__ import annotations

import pytest

from task.coding.verification import changed_tests, pytest_command, verdict, verification_commands


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


def test_what_a_person_names_verifies_else_the_plans_tests_else_all_tests() -> None:
    tests = ["pytest tests/a.py", "check by hand", "pytest tests/a.py"]
    assert verification_commands("make check", tests) == (["make check"], [])
    assert verification_commands(None, tests) == (["python -m pytest -q tests/a.py"], ["check by hand"])
    assert verification_commands(None, ["check by hand"]) == (["python -m pytest -q"], ["check by hand"])
    assert verification_commands(None, []) == (["python -m pytest -q"], [])


@pytest.mark.fault("coding: nothing that could verify a run")
@pytest.mark.parametrize(
    ("results", "result", "words"),
    [
        ([(0, "3 passed")], "verified", "verified by `t0`"),
        ([(0, ""), (0, "")], "verified", "verified by `t0`, `t1`"),
        ([(0, ""), (1, "1 failed")], "failed", "`t1` failed with exit code 1"),
        ([(124, "")], "failed", "exit code 124"),
        ([(5, "no tests ran")], "not_verified", "not verified: `t0` found no tests"),
        ([(0, ""), (5, "")], "not_verified", "`t1` found no tests"),
        ([(1, "/usr/bin/python: No module named pytest")], "not_verified", "pytest is not installed"),
        ([(126, "blocked: x")], "not_verified", "could not be run"),
        ([(127, "")], "not_verified", "could not be run"),
        ([], "not_verified", "there is nothing to run"),
    ],
)
def test_only_commands_that_ran_and_passed_verify(results: list[tuple[int, str]], result: str, words: str) -> None:
    found, sentence = verdict([(f"t{number}", *each) for number, each in enumerate(results)])
    assert found == result
    assert words in sentence


@pytest.mark.fault("coding: a coder that edits tests so that they pass")
def test_changed_tests_and_their_settings_are_named_and_new_tests_are_not() -> None:
    changed = ["app.py", "tests/test_app.py", "tests/data.json", "test_new.py", "conftest.py", "web/a.spec.ts"]
    before = ["app.py", "tests/test_app.py", "tests/data.json", "web/a.spec.ts"]
    named = ["tests/test_app.py", "tests/data.json", "conftest.py", "web/a.spec.ts"]
    assert changed_tests(changed, before) == named


@pytest.mark.parametrize(
    "path",
    ["pyproject.toml", "pytest.toml", ".pytest.ini", "usercustomize.py", "pytest.py", "_pytest/main.py", "pluggy/x.py"],
)
def test_a_new_file_that_decides_what_pytest_says_is_named(path: str) -> None:
    assert changed_tests([path, "app.py"], []) == [path]
