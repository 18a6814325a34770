"""Prepare the workspace, and verify that a task is done: which commands show it, and what their results mean."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from time import monotonic
from typing import Literal

from task.approvals.approvals import ApprovalRules
from task.coding.executor import Ask
from task.errors import InvalidRequest
from task.permissions.coding import setup_request
from task.permissions.decisions import Deferred, Denied, PermissionMode
from task.permissions.gate import Grants, PolicyGate
from task.runs.events import CommandEnded, CommandStarted, Emit, Noted, Purpose
from task.tools.toolbox import Pending
from task.tools.workspace.commands import Commands, ShellResult

Verdict = Literal["verified", "failed", "not_verified"]
VERIFY_SECONDS, SETUP_SECONDS = 600.0, 1800.0
OUTPUT_CHARS = 4_000  # of a command's output, from its end
DEFAULT_COMMAND = "python -m pytest -q"
NO_TESTS, BLOCKED, NOT_FOUND = 5, 126, 127  # exit codes: pytest collected nothing, refused, no such program
_OPTION = r"-(q+|v+|x|s|l)|--(maxfail=\d+|tb=\w+|no-header|quiet|verbose|exitfirst)"
_NODE = r"(?!.*(^|/)\.\.(/|$))[\w.][\w./-]*(\.py(::[\w.-]+(\[[^\]]*\])?)+)?"  # a path in the workspace, or tests in one
_ARGUMENT = re.compile(f"({_OPTION}|{_NODE})", re.ASCII)
_WITH_VALUE = frozenset({"-k", "-m"})
_TEST_FILE = re.compile(r"test_.*|.*_test\.\w+|.*\.(test|spec)\.\w+")
_TEST_FOLDERS = frozenset({"test", "tests", "__tests__", "testing"})
_TEST_SETTINGS = re.compile(
    r"conftest\.py|\.?pytest\.(ini|toml)|pyproject\.toml|tox\.ini|setup\.cfg|(site|user)customize\.py"
)
_IN_PLACE_OF_PYTEST = frozenset({"pytest", "_pytest", "pluggy", "iniconfig"})  # python -m looks into the folder first
MISSING_PYTEST = "No module named pytest"


@dataclass(frozen=True, slots=True)
class OwnCommands:
    """The commands of a task that its coder does not call: the setup before the work, the verification after it."""

    commands: Commands
    emit: Emit

    async def set_up(self, command: str, rules: ApprovalRules, ask: Ask) -> str:
        """Prepare the workspace; the reason why that did not happen, where it was not approved.

        Raises:
            InvalidRequest: the command failed.
        """
        request = setup_request(command, str(self.commands.workspace.path))
        gate = PolicyGate(rules.policy, Grants(rules.clock), PermissionMode.DEFAULT, "", "", rules.clock)
        decision = await gate.decide(request)
        if isinstance(decision, Denied):
            return f"the setup may not run: {decision.reason}"
        if isinstance(decision, Deferred):
            card, digest, title = decision.card, decision.digest, f"setup: {command}"
            waiting = Pending(request.call, card, digest, decision.reason, title=title, arguments=request.arguments)
            [reply] = await ask([waiting])
            if not reply.allowed:
                return "the setup was not approved, and nothing was done; --yes approves it"
        done = await self._ran("setup", command)
        if done.code != 0:
            raise InvalidRequest(f"The setup `{command}` failed with exit code {done.code}; nothing else was done.")
        return ""

    async def verify(self, command: str | None, tests: Sequence[str]) -> tuple[Verdict, str]:
        """Whether the work is done, and a sentence about it: by the user's command, else by the plan's tests."""
        if missing := self.commands.available:
            return "not_verified", f"not verified: {missing}"
        commands, left_out = verification_commands(command, tests)
        for text in left_out:
            self.emit(Noted(f"The plan's test {text!r} is not a pytest command or node id; it was left out."))
        checked: list[tuple[str, int, str]] = []
        for text in commands:
            done = await self._ran("verification", text)
            checked.append((text, done.code, done.stdout + done.stderr))
        return verdict(checked)

    async def _ran(self, purpose: Purpose, command: str) -> ShellResult:
        self.emit(CommandStarted(purpose, command))
        started = monotonic()
        if purpose == "setup":
            done = await self.commands.setup(command, SETUP_SECONDS)
        else:
            done = await self.commands.run(command, VERIFY_SECONDS)
        output = (done.stdout + done.stderr)[-OUTPUT_CHARS:]
        self.emit(CommandEnded(purpose, command, done.code, output, monotonic() - started))
        return done


def verification_commands(verify: str | None, tests: Sequence[str]) -> tuple[list[str], list[str]]:
    """The commands that verify a run, and the plan's tests among `tests` that cannot be run as they are."""
    if verify is not None:
        return [verify], []
    found = [(text, pytest_command(text)) for text in tests]
    commands = list(dict.fromkeys(command for _, command in found if command is not None))
    return commands or [DEFAULT_COMMAND], [text for text, command in found if command is None]


def pytest_command(text: str) -> str | None:
    """The command for a plan's test: a pytest command with known options, or a node id; None where it is neither."""
    try:
        words = shlex.split(text.strip().strip("`"))
    except ValueError:
        return None
    if words[:1] == ["pytest"]:
        arguments = words[1:]
    elif words[:1] in (["python"], ["python3"]) and words[1:3] == ["-m", "pytest"]:
        arguments = words[3:]
    elif len(words) == 1 and ".py" in words[0]:
        arguments = words
    else:
        return None
    left = iter(arguments)
    for word in left:
        known = next(left, None) is not None if word in _WITH_VALUE else _ARGUMENT.fullmatch(word)
        if not known:
            return None
    return shlex.join(["python", "-m", "pytest", *(["-q"] if "-q" not in arguments else []), *arguments])


def verdict(checked: Sequence[tuple[str, int, str]]) -> tuple[Verdict, str]:
    """Whether commands, with their exit codes and outputs, show that the work is done, and a sentence about it."""
    idle = list[str]()  # why a command could check nothing
    for command, code, output in checked:
        if code == 0:
            continue
        if MISSING_PYTEST in output:
            idle.append(
                "pytest is not installed for this project; prepare it with --setup, or name a command with --verify"
            )
        elif code == NO_TESTS:
            idle.append(f"`{command}` found no tests; name a command with --verify")
        elif code in (BLOCKED, NOT_FOUND):
            idle.append(f"`{command}` could not be run (exit code {code})")
        else:
            return "failed", f"`{command}` failed with exit code {code}"
    if idle or not checked:
        return "not_verified", f"not verified: {idle[0] if idle else 'there is nothing to run'}"
    return "verified", f"verified by {', '.join(f'`{command}`' for command, _, _ in checked)}"


def changed_tests(changed: Iterable[str], before: Iterable[str]) -> list[str]:
    """The changed files that decide what the tests say: tests that were there `before`, and settings of tests."""
    known, found = set(before), list[str]()
    for path in changed:
        *folders, name = PurePosixPath(path).parts
        is_test = bool(_TEST_FILE.fullmatch(name)) or not _TEST_FOLDERS.isdisjoint(folders)
        top = path.partition("/")[0].removesuffix(".py")
        if (is_test and path in known) or _TEST_SETTINGS.fullmatch(name) or top in _IN_PLACE_OF_PYTEST:
            found.append(path)
    return found
