"""Read the options and operands of a command by what is known about its program."""

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from task.permissions.shell import Command

_VERSION = re.compile(r"(?<=[a-zA-Z])-?[0-9][0-9.]*\Z")
_TOKEN = re.compile(r"[\w./+@%-]+")
_TRANSPORT = re.compile(r"\w+::")  # git starts a program for these addresses
# Scripts of sed and awk that neither run nor write anything.
_SED_ADDRESS = r"(?:[0-9]++|\$|/[^/\\\n]*+/)"
_SED_COMMAND = r"(?:[=dDgGhHnNpPqx]|s/[^/\\\n]*+/[^/\\\n]*+/[gpiI0-9]*+)"
_SED = re.compile(rf"(?:\s*+(?:{_SED_ADDRESS}(?:,{_SED_ADDRESS})?+)?+!?+{_SED_COMMAND}?+[^\S\n]*+(?:[;\n]|\Z))++")
_AWK_ACTS = re.compile(r"system|getline|[|>@]")


class Use(StrEnum):
    """What an option does, as `programs.toml` names it."""

    FLAG = "flags"
    VALUE = "values"
    OPTIONAL = "optional"
    SHELL = "shell"
    CODE = "code"
    COMMAND = "command"
    WRITES = "writes"
    SENDS = "sends"
    CHANGES = "changes"
    DESTROYS = "destroys"
    SCRIPT = "script"


_HARMLESS = frozenset({Use.FLAG, Use.VALUE, Use.OPTIONAL})
_VALUED = frozenset({Use.VALUE, Use.SHELL, Use.CODE, Use.WRITES, Use.SENDS})
_FLAG, _COMMAND = Use.FLAG, Use.COMMAND
_COMMANDS = frozenset({"command", "shell", "first", "script"})


@dataclass(frozen=True, slots=True)
class Program:
    """What is known about a program: its kind, what it does with its options, and what its operands are.

    `group` is the program whose description it shares. `runs`: it runs other programs, or code. `stops`: options end
    at the first operand after those that are skipped. `steerable`: an option can make it do more than it usually does.
    """

    name: str
    group: str = ""
    known: bool = True
    kind: str = ""
    runs: bool = False
    options: Mapping[str, Use] = field(default_factory=dict[str, Use])
    operands: str = ""
    skip: int = 0
    most: int | None = None
    plain: bool = False
    verbs: bool = False
    stops: bool = False
    steerable: bool = False


class Invocation(NamedTuple):
    """A command with its options and operands separated.

    `used` are the options that are not harmless, with their values, `unknown` those that are not described. `codes` is
    code that may run commands or write files. `loose`: the words are those that occur in code or in arguments that are
    not understood, so any of them may name what runs.
    """

    command: Command
    name: str
    program: Program
    operands: Sequence[str] = ()
    options: Sequence[str] = ()
    used: Sequence[tuple[Use, Sequence[str]]] = ()
    codes: Sequence[str] = ()
    unknown: Sequence[str] = ()
    loose: bool = False

    @property
    def words(self) -> tuple[str, ...]:
        return self.command.words

    @property
    def line(self) -> str:
        """The command for people, shortened."""
        return " ".join(self.command.words)[:120]

    def values(self, use: Use) -> list[str]:
        return [value[0] for other, value in self.used if other is use and value]


def program_named(name: str) -> Program:
    """What is known about the program of this name; a version at its end does not count."""
    table = _table()
    found = table.get(name)
    if found is None and name[-1:].isdigit():
        found = table.get(_VERSION.sub("", name))
    if found is None and name.startswith("mkfs."):
        found = table["mkfs"]
    return found or Program(name, known=False, runs=True)


def loosely(invocation: Invocation, texts: Sequence[str]) -> Invocation:
    """The words that occur in texts of which the command may run any part."""
    words = tuple(_TOKEN.findall("\n".join(texts)))
    command = Command(words, invocation.command.exact)
    return Invocation(command, invocation.name, invocation.program, words, loose=True)


def read(command: Command) -> Invocation:
    """The command with its options read as its program would."""
    words = command.words
    name = words[0].rpartition("/")[2] if words else ""
    program = program_named(name)
    operands: list[str] = []
    options: list[str] = []
    unknown: list[str] = []
    used: list[tuple[Use, Sequence[str]]] = []
    position = 1
    while position < len(words):
        word = words[position]
        position += 1
        use = program.options.get(word)
        if use is _FLAG:
            options.append(word)
        elif use is _COMMAND:
            end = _end(words, position)
            used.append((use, words[position:end]))
            position = end + 1
        elif use is None and (program.plain or not _is_option(word, program)):
            operands.append(word)
            if program.verbs:
                program = program_named(f"{name} {word}")
            elif program.stops and len(operands) > program.skip:
                break
        elif word == "--":
            break
        else:
            options.append(word)
            position = _take(word, words, position, program, used, unknown)
    operands += words[position:]
    codes = _codes(program, name, operands, used)
    return Invocation(command, name, program, operands, options, used, codes, unknown)


def _codes(
    program: Program, name: str, operands: Sequence[str], used: Sequence[tuple[Use, Sequence[str]]]
) -> Sequence[str]:
    # What may run commands or write files.
    codes = [value[0] for use, value in used if use is Use.CODE and value] if used else []
    if name == "git":
        return [*codes, *filter(_TRANSPORT.match, operands)]
    if program.operands != "code":
        return codes
    codes = codes or operands[:1]
    if program.group == "sed":
        return [code for code in codes if not _SED.fullmatch(code)]
    return [code for code in codes if _AWK_ACTS.search(code.replace("||", "").replace(">=", ""))]


def _is_option(word: str, program: Program) -> bool:
    return len(word) > 1 and (word[0] == "-" or (word[0] == "+" and "+" in program.options))


def _end(words: Sequence[str], start: int) -> int:
    # Where the command of `find -exec` ends.
    for position in range(start, len(words)):
        if words[position] == ";" or (words[position] == "+" and words[position - 1] == "{}"):
            return position
    return len(words)


def _take(
    word: str,
    words: Sequence[str],
    position: int,
    program: Program,
    used: list[tuple[Use, Sequence[str]]],
    unknown: list[str],
) -> int:
    # Notes what an option does, and returns the position after its value.
    for use, attached in _uses(word, program.options):
        value: Sequence[str] = () if attached is None else (attached,)
        if use in _VALUED and attached is None:
            value = words[position : position + 1]
            position += 1
        if use is None:
            unknown.append(word)
        elif use not in _HARMLESS:
            used.append((use, value))
    return position


def _uses(word: str, options: Mapping[str, Use]) -> Iterator[tuple[Use | None, str | None]]:
    # The uses of one word of options, with a value that is attached; None for what is not known.
    if word in options:
        yield options[word], None
    elif word.startswith("--"):
        name, equals, value = word.partition("=")
        attached = value if equals else None
        use = options.get(name)
        if use is None:
            yield None, None
            use = next(
                (use for option, use in options.items() if use not in _HARMLESS and option.startswith(name)), None
            )
        if use is not None:
            yield use, attached
    elif word[0] == "+":
        yield options["+"], word[1:]
    else:
        yield from _letters(word, options)


def _letters(word: str, options: Mapping[str, Use]) -> Iterator[tuple[Use | None, str | None]]:
    for place, letter in enumerate(word[1:], 2):
        use = options.get(f"-{letter}")
        if use is None and letter.isdigit() and "-#" in options:
            continue
        if use is None or use in _VALUED or use is Use.OPTIONAL:
            yield use, word[place:] or None
            return
        yield use, None


@cache
def _table() -> Mapping[str, Program]:
    data = tomllib.loads(Path(__file__).with_name("programs.toml").read_text(encoding="utf-8"))
    kinds = {name: kind for kind, names in data["kinds"].items() if kind != "runs" for name in names.split()}
    runs = frozenset(data["kinds"]["runs"].split())
    described: dict[str, Any] = data["programs"]
    found = {name: Program(name, kind=kinds.get(name, ""), runs=name in runs) for name in [*kinds, *runs]}
    for first, entry in described.items():
        options = {**_options(described.get(entry.get("like"), {})), **_options(entry)}
        also = entry.get("also", "")
        for name in [first, *(also.split(", ") if " " in first else also.split())]:
            running = name in runs or entry.get("runs", False)
            found[name] = _program(name, first, entry, options, kinds.get(name, ""), runs=running)
        found |= dict.fromkeys(entry.get("aliases", "").split(), found[first])
    return found


def _options(entry: Mapping[str, str]) -> dict[str, Use]:
    options: dict[str, Use] = {"--help": Use.FLAG, "--version": Use.FLAG}
    for use in Use:  # the later ones, which are not harmless, count
        for word in entry.get(use, "").split():
            names = [word] if word == "+" or word[0] == "-" else [f"-{letter}" for letter in word]
            options |= dict.fromkeys(names, use)
    return options


def _program(
    name: str, group: str, entry: Mapping[str, Any], options: Mapping[str, Use], kind: str, *, runs: bool
) -> Program:
    operands = entry.get("operands", "")
    commands = operands in _COMMANDS
    return Program(
        name,
        group,
        kind=kind,
        runs=runs or commands,
        options={} if entry.get("plain") else options,
        operands=operands,
        skip=entry.get("skip", 0),
        most=entry.get("most"),
        plain=entry.get("plain", False),
        verbs=entry.get("verbs", False),
        stops=commands or entry.get("stops", False),
        steerable=not _HARMLESS.issuperset(options.values()),
    )
