"""Plain command lines: which they are, what they run, and what the gate decides about them."""

import random
import re
import tomllib
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from task.permissions.decisions import Allowed, CallRequest, Deferred, Denied, WorkspaceAccess
from task.permissions.gate import Grant, Grants
from task.permissions.policy import DEFAULT_POLICY, Policy, Rule, coding_policy
from task.permissions.shell import Script, parsed
from tests.support.clock import FakeClock
from tests.support.gating import RUNS, after_search, gate, request
from tests.support.plain_lines import FILES, PROGRAMS, SHOWN, Ran, Scratch, a_line, mutated

HERE = Path(__file__)
COMMANDS = tomllib.loads(HERE.with_name("commands.toml").read_text(encoding="utf-8"))
EVERYDAY = tomllib.loads(HERE.with_name("everyday.toml").read_text(encoding="utf-8"))
COVERED = {"+": Allowed, "-": Deferred, "?": object}
APPLY = {"r": Allowed, "a": Deferred, "?": object}
DENIED = {"d": Denied, "q": (Denied, Deferred), "o": Allowed, "?": object}
CASES = [pytest.param(line[:5], line[6:], id=line[6:]) for line in COMMANDS["lines"]]
DENYING = Policy((Rule("allow", trusted=True), Rule("deny", command=("rm",))))
APPLIED = coding_policy(DEFAULT_POLICY)
PARTS = [  # of 20,000 lines in bash
    *(("bash", 0, 60), ("sh", 0, 60)),
    *(pytest.param("bash", part, 2_500, marks=pytest.mark.system) for part in range(1, 9)),
    pytest.param("sh", 1, 2_500, marks=pytest.mark.system),
]
BUILT_IN = frozenset({"cd", "echo", "false", "kill", "printf", "pwd", "test", "true"})


def beginnings(line: str) -> tuple[str, ...]:
    """The first word of each part of a line, and the first two."""
    parts = [part.split() for part in re.split(r"[|;&\n]+", line)]
    return tuple({words: None for part in parts if part for words in (part[0], " ".join(part[:2]), "ls", "cat", "git")})


def in_a_coding_run(line: str) -> CallRequest:
    return replace(request("shell_run", RUNS, after_search(), cmd=line), workspace=WorkspaceAccess("/srv/shop"))


def test_there_are_as_many_lines_as_promised() -> None:
    everyday = [*EVERYDAY["lines"], *(line for line, _ in EVERYDAY["exceptions"])]
    assert len(set(COMMANDS["lines"])) == 300
    assert len(set(everyday)) == 200
    assert sum(parsed(line).plain for line in everyday) >= 190


@pytest.mark.fault("gate: nested quotes, substitutions, pipes and newlines in commands")
@pytest.mark.fault("gate: options that make an allowed command do more")
@pytest.mark.fault("gate: a program that is started by another, by an option or by code")
@pytest.mark.fault("workspace: a command that discards work")
@pytest.mark.parametrize(("code", "line"), CASES)
async def test_a_line_is_plain_or_not_and_decided_as_it_is_written_down(code: str, line: str) -> None:
    plain, by_rule, by_grant, in_a_run, denied = code
    script = parsed(line)
    assert (script.plain, bool(script.why)) == (plain == "p", plain == "n")
    call = request("shell", RUNS, command=line)
    rule = Rule("allow", command=beginnings(line), trusted=True)
    assert isinstance(await gate(Policy((rule,))).decide(call), COVERED[by_rule])
    grants = Grants(FakeClock(1_000).now)
    for beginning in beginnings(line):
        grants.add(Grant("prefix", "shell", "anna", "c1", 2_000, prefix=beginning))
    assert isinstance(await gate(Policy(()), grants=grants).decide(call), COVERED[by_grant])
    assert isinstance(await gate(APPLIED).decide(in_a_coding_run(line)), APPLY[in_a_run])
    assert isinstance(await gate(DENYING).decide(call), DENIED[denied])


@pytest.mark.parametrize("line", EVERYDAY["lines"])
async def test_an_everyday_line_of_a_coding_run_is_plain_and_runs(line: str) -> None:
    assert parsed(line).plain, parsed(line).why
    assert isinstance(await gate(APPLIED).decide(in_a_coding_run(line)), Allowed)


@pytest.mark.parametrize(("line", "why"), EVERYDAY["exceptions"])
async def test_an_exception_asks_as_it_is_listed(line: str, why: str) -> None:
    assert isinstance(await gate(APPLIED).decide(in_a_coding_run(line)), Deferred), why


@pytest.mark.parametrize(("line", "commands", "files"), COMMANDS["readings"])
def test_a_plain_line_is_read_word_for_word(line: str, commands: list[list[str]], files: list[str]) -> None:
    script = parsed(line)
    assert script.plain, script.why
    assert [list(command.words) for command in script.commands] == commands
    opened = [(file[0] == "<", file.partition(" ")[2]) for file in files]
    assert (list(script.writes), list(script.reads)) == tuple(
        [name for read, name in opened if read is way] for way in (False, True)
    )


def shown(words: Iterable[str]) -> tuple[str, ...]:
    """The words as a shell hands them over, with the names for the patterns."""
    return tuple(name for word in words for name in SHOWN.get(word, (word,)))


def in_order(ran: Iterable[Ran]) -> list[Ran]:
    return sorted(ran, key=lambda one: one.words[1])  # programs of a pipeline start in any order


@pytest.mark.parametrize(("shell", "part", "lines"), PARTS)
def test_a_shell_runs_of_a_plain_line_what_was_read(shell: str, part: int, lines: int, tmp_path: Path) -> None:
    choice, scratch = random.Random(part), Scratch(tmp_path)
    for line in (a_line(choice) for _ in range(lines)):
        script = parsed(line.text)
        assert script.plain, (line.text, script.why)
        folder = [("cd", "d")] if line.folder else []
        assert [command.words for command in script.commands] == [*folder, *(one.words for one in line.commands)]
        assert [sorted(script.writes), sorted(script.reads)] == [sorted(line.writes), sorted(line.reads)], line.text
        for status in (0, 1) if "||" in line.text else (0,):
            ran = scratch.run(shell, line.text, status, PROGRAMS)
            said = [one._replace(words=shown(one.words)) for one in line.ran[status]]
            assert (in_order(ran) if "|" in line.text else ran) == said, line.text
            assert scratch.changed() <= {f"{line.folder}{name}" for name in line.writes}, line.text


@pytest.mark.parametrize(("shell", "part", "lines"), [*PARTS[:2], *PARTS[-3:]])
def test_of_a_line_with_marks_put_in_a_shell_runs_nothing_else_if_it_is_plain(
    shell: str, part: int, lines: int, tmp_path: Path
) -> None:
    choice, scratch, tried = random.Random(-1 - part), Scratch(tmp_path), 0
    for text in (mutated(choice, a_line(choice).text) for _ in range(3 * lines)):
        script = parsed(text)
        commands = [command.words for command in script.commands]
        folder = ""
        if commands and commands[0][:1] == ("cd",):
            folder = f"{''.join(commands.pop(0)[1:2]).removesuffix('/')}/"  # a bare `cd` leads home: "/"
        if not script.plain or not commands or not _may_be_run(script, commands, folder):
            continue
        writes, reads = (
            {f"{folder}{name}" for name in names if name != "/dev/null"} for names in (script.writes, script.reads)
        )
        ran = [
            one
            for status in (0, 1)
            for one in scratch.run(
                shell, text, status, [words[0] for words in commands], {*writes, *reads, f"{folder}in"}
            )
        ]
        tried += 1
        assert {one.words for one in ran} == set(map(shown, commands)), text
        assert {one.folder for one in ran} == {folder}, text
        opened = {file for one in ran for file in one.streams}
        assert opened <= {*writes, *reads, "-", "|"}, text
        assert scratch.changed() <= writes, text
    assert tried > lines // 8


def _may_be_run(script: Script, commands: Iterable[tuple[str, ...]], folder: str) -> bool:
    # In the folder, and by traced programs: not by a built-in command, a path or a pattern that fits other names.
    files = [name for name in (*script.writes, *script.reads) if name != "/dev/null"]
    places = all(re.fullmatch(r"(?:d/)?(?![dg]\Z)[^/.]+", name) for name in files)
    places = places and (not folder or (re.fullmatch(r"[^/.]+/", folder) is not None and folder[:-1] not in FILES))
    known = all(re.fullmatch(r"\w[\w+-]*\w", words[0]) and words[0] not in BUILT_IN for words in commands)
    return places and known and not any(command.patterns for command in script.commands)
