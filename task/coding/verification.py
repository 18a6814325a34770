"""Verify that a coding task is done: which commands show it, what their results mean, and which tests it changed."""

import re
import shlex
from collections.abc import Iterable, Sequence
from pathlib import PurePosixPath
from typing import Literal

from task.coding.diffs import FileDiff
from task.runs.events import CommandEnded

Verdict = Literal["verified", "failed", "not_verified"]
DEFAULT_COMMAND = "python -m pytest -q"
NO_TESTS, BLOCKED, NOT_FOUND = 5, 126, 127  # exit codes: pytest collected nothing, refused, no such program
_OPTION = r"-(q+|v+|x|s|l)|--(maxfail=\d+|tb=\w+|no-header|quiet|verbose|exitfirst)"
_NODE = r"(?!.*(^|/)\.\.(/|$))[\w.][\w./-]*(\.py(::[\w.-]+(\[[^\]]*\])?)+)?"  # a path in the workspace, or tests in one
_ARGUMENT = re.compile(f"({_OPTION}|{_NODE})", re.ASCII)
_TEST_FILE = re.compile(r"test_.*|.*_test\.\w+|.*\.(test|spec)\.\w+")
_TEST_FOLDERS = frozenset({"test", "tests", "__tests__", "testing"})
_TEST_SETTINGS = re.compile(
    r"conftest\.py|\.?pytest\.(ini|toml)|pyproject\.toml|tox\.ini|setup\.cfg|(site|user)customize\.py"
)
_IN_PLACE_OF_PYTEST = frozenset({"pytest", "_pytest", "pluggy", "iniconfig"})  # python -m looks into the folder first
MISSING_PYTEST = "No module named pytest"


def verification_commands(verify: str | None, tests: Sequence[str]) -> list[str]:
    """The commands that verify a run: the user's own, else the plan's tests that are some of pytest, else all tests."""
    if verify is not None:
        return [verify]
    return list(dict.fromkeys(filter(None, map(pytest_command, tests)))) or [DEFAULT_COMMAND]


def pytest_command(text: str) -> str | None:
    """The command for a plan's test: a pytest command with known options, or a node id; None where it is neither."""
    try:
        words = shlex.split(text.strip().strip("`"))
    except ValueError:
        return None
    if words[:1] in (["python"], ["python3"]) and words[1:3] == ["-m", "pytest"]:
        words = words[2:]
    if words[:1] == ["pytest"]:
        words = words[1:]
    elif len(words) != 1 or ".py" not in words[0]:
        return None
    left = iter(words)
    for word in left:
        if not (next(left, None) is not None if word in ("-k", "-m") else _ARGUMENT.fullmatch(word)):
            return None
    return shlex.join(["python", "-m", "pytest", *(["-q"] if "-q" not in words else []), *words])


def verdict(ran: Sequence[CommandEnded]) -> tuple[Verdict, str]:
    """Whether the commands show that the work is done, and a sentence about it."""
    idle = "" if ran else "there is nothing to run"  # why a command could check nothing
    for done in ran:
        if done.code == 0:
            continue
        if MISSING_PYTEST in done.output:
            why = "pytest is not installed for this project; prepare it with --setup, or name a command with --verify"
        elif done.code == NO_TESTS:
            why = f"`{done.command}` found no tests; name a command with --verify"
        elif done.code in (BLOCKED, NOT_FOUND):
            why = f"`{done.command}` could not be run (exit code {done.code})"
        else:
            return "failed", f"`{done.command}` failed with exit code {done.code}"
        idle = idle or why
    shown = ", ".join(f"`{done.command}`" for done in ran)
    return ("not_verified", f"not verified: {idle}") if idle else ("verified", f"verified by {shown}")


def changed_tests(diffs: Iterable[FileDiff]) -> list[str]:
    """The changed files that decide what the tests say: tests that were there before, and settings of tests."""
    found = list[str]()
    for item in diffs:
        *folders, name = PurePosixPath(item.path).parts
        is_test = bool(_TEST_FILE.fullmatch(name)) or not _TEST_FOLDERS.isdisjoint(folders)
        top = item.path.partition("/")[0].removesuffix(".py")
        if (is_test and not item.is_new) or _TEST_SETTINGS.fullmatch(name) or top in _IN_PLACE_OF_PYTEST:
            found.append(item.path)
    return found
