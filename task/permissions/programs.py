"""Find every program that a script would run, and rate it by what common programs do with their arguments."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import dropwhile
from typing import NamedTuple

from task.permissions.icerc import Level
from task.permissions.invocations import Invocation, Use, loosely, program_named, read
from task.permissions.shell import LONGEST, MOST_COMMANDS, Command, Script, parsed

HARMLESS_TARGETS = frozenset({"/dev/null", "/dev/stdout", "/dev/stderr"})
REACHING = frozenset({"fetches", "sends"})
_SETTING = re.compile(r"-\Z|[A-Za-z_]\w*\+?=")
_UPLOADING = re.compile(r"(?:-X|--request=?|--method=?)?(?:POST|PUT|PATCH|DELETE)\Z")
_GIT_READING = frozenset(
    "blame describe diff grep help log ls-files ls-tree rev-list rev-parse shortlog show status version".split()  # noqa: SIM905
)
_GIT_DESTROYING = frozenset({"clean", "filter-branch", "filter-repo", "gc", "restore"})
_GIT_FORCED = frozenset({"reset", "push", "branch", "checkout", "tag", "rm", "switch", "worktree"})
_FORCE = re.compile(r"--force|--hard|--mirror|--delete|-[a-zA-Z]*[fdD]")
_GIT_REACHING = frozenset({"clone", "fetch", "pull", "push", "remote", "submodule", "ls-remote"})


@dataclass(frozen=True, slots=True)
class Finding:
    """The risk of one command, with the reason."""

    level: Level
    text: str


class Reading(NamedTuple):
    """All that a script would run, through `sudo`, `xargs`, `find -exec`, `sh -c` and others too.

    `complete`: all of it was read; `exact`: nothing is known only at run time, and no variable is set.
    """

    invocations: tuple[Invocation, ...] = ()
    scripts: tuple[Script, ...] = ()
    complete: bool = True
    exact: bool = True

    @property
    def writes(self) -> list[str]:
        """The files that output is redirected to."""
        return [target for script in self.scripts for target in script.writes]

    @property
    def reads(self) -> list[str]:
        """The files that input is redirected from."""
        return [target for script in self.scripts for target in script.reads]

    @property
    def sets(self) -> list[str]:
        """The variables that are set."""
        return [name for script in self.scripts for name in script.sets]


def reading(script: Script) -> Reading:
    """Follow what the commands of a script start, up to a number of commands and characters."""
    found: list[Invocation] = []
    scripts = [script]
    waiting: list[Command | Invocation] = [*reversed(script.commands)]
    characters = LONGEST
    while waiting and len(found) < MOST_COMMANDS and characters > 0:
        one = waiting.pop()
        invocation = one if isinstance(one, Invocation) else read(one)
        found.append(invocation)
        for inner in reversed(list(_started(invocation))) if _starts(invocation) else ():
            if isinstance(inner, str):
                characters -= len(inner) + 1
                scripts.append(parsed(inner))
                waiting += reversed(scripts[-1].commands)
            else:
                characters -= len(inner.words)
                waiting.append(inner)
    exact = all(one.exact for one in scripts)
    complete = not waiting and (exact or (all(one.understood for one in scripts) and all(map(_known, found))))
    return Reading(tuple(found), tuple(scripts), complete, exact)


def findings(invocation: Invocation) -> Iterator[Finding]:
    """The risks of one command, without those of the commands that it starts."""
    program, name = invocation.program, invocation.name
    if invocation.loose:
        yield from _of_words(invocation)
        return
    if _unknown_program(invocation):
        yield Finding("high", f"what runs is known only at run time: {invocation.line}")
        return
    match program.kind:
        case "raises":
            yield Finding("high", f"{name} runs it with another user's rights")
        case "evaluates":
            yield Finding("high", f"{name} runs text that is known only at run time: {invocation.line}")
        case "destroys":
            yield Finding("high", f"{name} deletes or changes data that may be lost: {invocation.line}")
        case "sends":
            yield Finding("high", f"{name} connects to another machine: {invocation.line}")
        case "fetches":
            yield from _of_fetcher(invocation)
        case "interprets":
            yield from _of_interpreter(invocation)
        case "reads" | "carries":
            if not invocation.command.exact:
                yield Finding("medium", f"parts of it are known only at run time: {invocation.line}")
        case _ if program.group == "sh":
            yield from _of_shell(invocation)
        case _ if name == "git":
            yield from _of_git(invocation)
        case _:
            yield Finding("medium", f"{name} may change data: {invocation.line}")
    if invocation.used or invocation.codes:
        yield from _of_options(invocation)


def prefix_of(script: Reading) -> str:
    """The first words that "always" may cover; empty if only exactly this command line may be allowed."""
    if len(script.invocations) != 1 or not coverable(script):
        return ""
    name, *arguments = script.invocations[0].words
    if not re.fullmatch(r"[\w.+-]+", name):
        return ""
    if name != "git" and script.invocations[0].program.kind != "fetches":
        return name
    return f"{name} {arguments[0]}" if arguments and re.fullmatch(r"[a-z][a-z0-9-]*", arguments[0]) else ""


def coverable(script: Reading) -> bool:
    """Whether a grant for the first words of commands may cover the script: all of it is known and nothing is bad."""
    return covered(script) and all(map(fully_known, script.invocations))


def covered(script: Reading) -> bool:
    """Whether a rule may allow the script if it spells out the words of the commands that are not fully known."""
    if not (script.complete and script.exact) or any(target not in HARMLESS_TARGETS for target in script.writes):
        return False
    return all(map(_harmless, script.invocations))


def is_destructive(script: Reading) -> bool:
    """Whether a command in it is rated as a high risk, such as one that discards work or starts others."""
    return any(finding.level == "high" for one in script.invocations for finding in findings(one))


def fully_known(invocation: Invocation) -> bool:
    """Whether the program and its options are known, so that other operands do not change what it does."""
    return invocation.program.known and "/" not in invocation.words[0]


def _harmless(invocation: Invocation) -> bool:
    program, command = invocation.program, invocation.command
    if not program.known:
        return bool(invocation.words) and not invocation.options
    if invocation.loose or program.runs or invocation.unknown:
        return False
    if program.steerable and any(pattern[0] in "*?[" for pattern in command.patterns):
        return False  # a file may have the name of an option
    if program.most is not None and len(invocation.operands) > program.most:
        return False
    if invocation.codes or any(use is not Use.CODE for use, _ in invocation.used):
        return False
    return all(finding.level != "high" for finding in findings(invocation))


def _starts(invocation: Invocation) -> bool:
    program = invocation.program
    special = program.runs or program.operands or invocation.used or invocation.codes or invocation.unknown
    return bool(special) and not invocation.loose


def _started(invocation: Invocation) -> Iterator[str | Command | Invocation]:
    # What a command runs: text that is a command line, a command, or words that may be one.
    program, command, operands = invocation.program, invocation.command, invocation.operands
    yield from invocation.values(Use.SHELL)
    yield from (command._replace(words=tuple(words)) for use, words in invocation.used if use is Use.COMMAND and words)
    rest = operands[program.skip :]
    match program.operands:
        case "command":
            words = tuple(dropwhile(_SETTING.match, rest))
            if words:
                yield " ".join(words) if any(mark.isspace() for mark in words[0]) else command._replace(words=words)
        case "shell":
            yield " ".join(rest)
        case "first":
            yield from operands[:1]
        case "script" if any(use is Use.SCRIPT for use, _ in invocation.used):
            yield from operands[:1]
            rest = operands[1:]
        case "arithmetic":
            yield from (word for word in operands if "$(" in word or "`" in word)
        case _:
            pass
    texts = _not_understood(invocation, rest)
    if texts:
        yield loosely(invocation, texts)


def _not_understood(invocation: Invocation, rest: Sequence[str]) -> Sequence[str]:
    program, words, fed = invocation.program, invocation.words, invocation.command.input
    if invocation.unknown or not program.known or (program.runs and not program.operands):
        return [*words[1:], fed] if len(words) > 1 or fed else []
    if invocation.codes:
        return [*invocation.codes, *words[1:]]
    if program.operands == "script":
        return [*rest, fed] if rest or fed else []
    return [fed] if fed and program.runs else []


def _unknown_program(invocation: Invocation) -> bool:
    words = invocation.words
    return not invocation.command.exact and (not words or any(mark in words[0] for mark in "$`*?[{<"))


def _known(invocation: Invocation) -> bool:
    # Whether it is certain what the command runs.
    running = invocation.program.known and invocation.program.runs
    return invocation.command.exact or not (running or _unknown_program(invocation))


def _of_words(invocation: Invocation) -> Iterator[Finding]:
    if not invocation.program.known:
        return
    for word in dict.fromkeys(invocation.words):
        if program_named(word.rpartition("/")[2]).kind in ("destroys", "sends", "raises"):
            yield Finding("high", f"{invocation.name} is given {word}, which it may run")


def _of_options(invocation: Invocation) -> Iterator[Finding]:
    name = invocation.name
    for use, value in invocation.used:
        line = invocation.line
        match use:
            case Use.WRITES:
                yield Finding("medium", f"{name} writes into {''.join(value)}")
            case Use.CHANGES:
                yield Finding("medium", f"{name} changes files: {line}")
            case Use.DESTROYS:
                yield Finding("high", f"{name} deletes or writes: {line}")
            case Use.SENDS:
                yield Finding("high", f"{name} sends data to a server: {line}")
            case Use.SHELL | Use.COMMAND:
                yield Finding("medium", f"{name} runs another program: {line}")
            case _:
                pass
    if invocation.codes:
        does = "is made to use other programs or settings" if name == "git" else "starts commands or writes"
        yield Finding("high", f"{name} {does}: {invocation.line}")


def _of_interpreter(invocation: Invocation) -> Iterator[Finding]:
    if invocation.command.input and len(invocation.words) == 1:
        yield Finding("high", f"{invocation.name} runs what another command writes")
    else:
        yield Finding("medium", f"{invocation.name} runs code that is not analysed: {invocation.line}")


def _of_shell(invocation: Invocation) -> Iterator[Finding]:
    if invocation.command.input:
        yield Finding("high", f"{invocation.name} runs what another command writes")
    elif not any(use is Use.SCRIPT for use, _ in invocation.used):
        yield Finding("high", f"{invocation.name} runs a script that is not analysed: {invocation.line}")


def _of_fetcher(invocation: Invocation) -> Iterator[Finding]:
    name, line, command = invocation.name, invocation.line, invocation.command
    sends = any(map(_UPLOADING.match, command.words[1:]))
    if name in ("curl", "wget", "http", "https") and (sends or command.input or not command.exact):
        yield Finding("high", f"{name} sends data to a server: {line}")
    else:
        yield Finding("medium", f"{name} contacts external servers: {line}")


def _of_git(invocation: Invocation) -> Iterator[Finding]:
    verb, line = next(iter(invocation.operands), ""), invocation.line
    if verb in _GIT_READING:
        if not invocation.command.exact:
            yield Finding("medium", f"parts of it are known only at run time: {line}")
    elif verb in _GIT_DESTROYING or (verb in _GIT_FORCED and any(map(_FORCE.match, invocation.options))):
        yield Finding("high", f"git {verb} discards work: {line}")
    elif verb in _GIT_REACHING:
        yield Finding("medium", f"git {verb} contacts an external server: {line}")
    else:
        yield Finding("medium", f"git {verb or 'alone'} may change the repository: {line}")
