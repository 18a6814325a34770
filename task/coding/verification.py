"""Verify that a coding task is done: which commands show it, what their results mean, and which tests it changed."""

import asyncio
import re
import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from secrets import token_hex
from typing import Literal

from pydantic import TypeAdapter, ValidationError

from task.coding.diffs import MOST, FileDiff
from task.tools.workspace.commands import Commands
from task.tools.workspace.launcher import ShellResult
from task.tools.workspace.snapshots import walked
from task.tools.workspace.undo import some_of

Verdict = Literal["verified", "failed", "not_verified"]
NO_TESTS = 5  # pytest's exit code where it collects nothing
_OPTION = r"-(q+|v+|x|s|l)|--(maxfail=\d+|tb=\w+|no-header|quiet|verbose|exitfirst)|-[km] (\w+|'[^']*'|\"[^\"]*\")"
_NODE = r"(?!\S*\.\.)[\w.][\w./-]*(\.py(::[\w.-]+(\[[^]\s'\"]*\])?)+)?"  # a path in the workspace, or tests in one
_WORD = f"{_OPTION}|{_NODE}|'{_NODE}'|\"{_NODE}\""
_COMMAND = re.compile(rf"(python3? -m )?pytest(?P<words>( ({_WORD}))*)|(?P<node>(?=\S*\.py){_NODE})", re.ASCII)
_TEST = re.compile(r"(?s)(.*/)?((tests?|__tests__|testing)/.*|test_[^/]*|[^/]*(_test|\.test|\.spec)\.\w+)")
_TEST_SETTINGS = re.compile(
    r"(?s)(.*/)?(conftest\.py|\.?pytest\.(ini|toml)|pyproject\.toml|tox\.ini|setup\.cfg|(site|user)customize\.py|"
    r"entry_points\.txt|[^/]*\.pth|pyvenv\.cfg)"
)
MISSING_PYTEST = re.compile(r"No module named '?pytest\b")
REPORT_BYTES = 32 << 20
_Tests = dict[str, set[str]]  # their ids, by what has become of them
_REPORTER, _REPORT = Path(__file__).with_name("pytest_report.py"), TypeAdapter(tuple[str, int, _Tests])


def verification_commands(tests: Sequence[str]) -> list[str]:
    """The commands that verify a run whose user has named none: the plan's tests that are of pytest, else all tests."""
    return list(dict.fromkeys(filter(None, map(pytest_command, tests)))) or ["python -m pytest -q"]


def pytest_command(text: str) -> str | None:
    """The command for a plan's test: a pytest command with known options, or a node id; None where it is neither."""
    found = _COMMAND.fullmatch(" ".join(text.strip().strip("`").split()))
    if found is None:
        return None
    words = shlex.split(found["node"] or found["words"])
    return shlex.join(["python", "-m", "pytest", *(["-q"] if "-q" not in words else []), *words])


def command_verdict(command: str, done: ShellResult) -> tuple[Verdict, str]:
    """Whether a command's exit code shows that the work is done, and a sentence about it."""
    if done.code == 0:
        return "verified", f"`{command}` succeeded"
    if MISSING_PYTEST.search(done.stderr):
        return "not_verified", "not verified: pytest is not installed for this project; prepare it with --setup"
    if done.code == NO_TESTS:
        return "not_verified", f"not verified: `{command}` found no tests; name a command with --verify"
    return "failed", f"`{command}` failed with exit code {done.code}"


@dataclass(slots=True)
class PytestRuns:
    """Runs pytest commands with a Python from before the work; `passed` says what of each, and `fault` ends it.

    Exit codes and output prove nothing: code under test decides about them. A report with a random word counts, if all
    tests ran that a process of its own had collected, none is deselected where the work has `changed` their settings,
    and nothing in its `environments` has changed since their time (in ns).
    """

    commands: Commands
    python: Path
    environments: Mapping[Path, int]
    changed: Sequence[str]
    passed: list[str] = field(default_factory=list[str], init=False)
    fault: tuple[Verdict, str] | None = field(default=None, init=False)

    async def run(self, command: str, seconds: float) -> ShellResult:
        """Run one; its exit code is 0 only where it verifies."""
        words, ran = shlex.split(command)[3:], None
        done, planned = await self._reported([*words, "--collect-only"], seconds)
        if planned is not None:
            done, ran = await self._reported(words, seconds)
        if done.code:
            self.fault = command_verdict(command, done)
        elif planned is None or ran is None:
            self.fault = "failed", f"`{command}` ended without a valid report of its tests"
        else:
            self.fault = await asyncio.to_thread(self._fault, command, planned, ran)
        return ShellResult(self.fault is None, "", done.stderr, done.code or int(self.fault is not None))

    async def _reported(self, arguments: Sequence[str], seconds: float) -> tuple[ShellResult, _Tests | None]:
        word, file = token_hex(16), self.commands.scratch / f"word-{token_hex(8)}"
        file.write_text(word)
        words = [str(self.python), "-S", "-c", _REPORTER.read_text(), str(file), *arguments]
        done = await self.commands.run_words(words, seconds, python=self.python, output_bytes=REPORT_BYTES)
        with suppress(ValidationError):
            given, code, tests = _REPORT.validate_json(done.stdout)
            if given == word:
                return replace(done, code=done.code or code), tests
        return done, None

    def _fault(self, command: str, planned: _Tests, ran: _Tests) -> tuple[Verdict, str] | None:
        if wrong := ran["failed"] | (planned["selected"] ^ ran["ran"]):
            return "failed", f"of the tests of `{command}`, these failed or did not run: {some_of(sorted(wrong), MOST)}"
        passed, deselected = ran["passed"], planned["collected"] - planned["selected"]
        if not passed:
            return "not_verified", f"not verified: no test of `{command}` passed"
        by_command = re.search(" -[km] ", command.removeprefix("python -m "))
        if deselected and not by_command and any(map(_TEST_SETTINGS.fullmatch, self.changed)):
            return "not_verified", "not verified: tests are deselected, and the run changed their settings"
        for place in filter(Path.is_dir, self.environments):
            times = (entry.changed_ns for _, _, entry in walked(place.resolve(), ignored=frozenset()))
            if max((place.lstat().st_ctime_ns, *times)) > self.environments[place]:
                return "not_verified", f"not verified: the run changed {place}, from which pytest runs"
        others = {"skipped": len(ran["ran"] - passed), "deselected": len(deselected)}
        more = "".join(f", {count} {what}" for what, count in others.items() if count)
        self.passed.append(f"{len(passed)} test{'s' * (len(passed) > 1)} passed{more}")
        return None


def changed_tests(diffs: Sequence[FileDiff]) -> list[str]:
    """The changed files that decide what the tests say: tests that were there before, and settings of tests."""
    tests = [item.path for item in diffs if not item.is_new and _TEST.fullmatch(item.path)]
    return list(dict.fromkeys([*tests, *(item.path for item in diffs if _TEST_SETTINGS.fullmatch(item.path))]))
