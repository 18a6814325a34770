"""What is known about a command: what its program does in the forms of a list, and nothing about any other form."""

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from posixpath import basename
from typing import Any, NamedTuple

from task.permissions.icerc import Level
from task.permissions.shell import Command, Script

HARMLESS_TARGETS = frozenset({"/dev/null", "/dev/stdout", "/dev/stderr"})
_VERSION = re.compile(r"(?<=[a-zA-Z])-?[0-9][0-9.]*\Z")
_LEVELS: Mapping[str, tuple[Level, str]] = {
    "changes": ("medium", "changes files"),
    "contacts": ("medium", "contacts another machine"),
    "unknown": ("medium", "may run code or change data"),
    "unlisted": ("high", "is used in a form that is not on the list, which may do anything"),
    "network": ("high", "may send data to another machine"),
    "discards": ("high", "deletes or changes data that may be lost"),
    "runs": ("high", "runs what its arguments name"),
}


@dataclass(frozen=True, slots=True)
class _Form:
    # What a program does with these options and operands; `words`, `operands`: what all of them must look like.
    kind: str
    flags: frozenset[str]
    values: frozenset[str]
    words: re.Pattern[str] | None
    operands: re.Pattern[str] | None
    verbs: bool
    otherwise: str


class Use(NamedTuple):
    """What a command does: on the list it `reads`, `changes` files or `contacts` another machine.

    Otherwise its program `discards` data, uses the `network`, `runs` others, or is `unknown`; `unlisted`: the list has
    the program, but not with these words.
    """

    kind: str
    operands: tuple[str, ...] = ()
    options: tuple[str, ...] = ()

    @property
    def listed(self) -> bool:
        return self.kind in ("reads", "changes", "contacts")


class Finding(NamedTuple):
    """The risk of one command, with the reason."""

    level: Level
    text: str


@lru_cache(maxsize=4_096)
def use_of(command: Command) -> Use:
    """What the list says about a command."""
    words = command.words
    if not command.plain:
        return Use("unlisted")
    form = _table().forms.get(words[0])
    if form is None:
        return Use(_table().kinds.get(program_of(command.name), "unknown"))
    return _read(words[0], words[1:], command.patterns) or Use(form.otherwise)


def program_of(name: str) -> str:
    """The program's name without a version at its end; another name of a program is its own."""
    known = _table().names
    return known.get(name) or known.get(plain := _VERSION.sub("", name)) or plain


def _read(name: str, words: Sequence[str], patterns: bool) -> Use | None:
    # None: the words are not in the form of the list.
    form = _table().forms.get(name)
    if form is None:
        return None
    operands: list[str] = []
    options: list[str] = []
    position = 0
    while position < len(words):
        word = words[position]
        position += 1
        if form.words is not None or len(word) < 2 or word[0] != "-":
            if form.verbs:
                verb = _read(f"{name} {word}", words[position:], patterns)
                return verb and verb._replace(operands=(word, *verb.operands), options=(*options, *verb.options))
            (options if word.startswith("-") else operands).append(word)
        elif word == "--":
            operands += words[position:]
            break
        else:
            waits = _waits(word, form)
            position += waits or 0
            if waits is None or position > len(words):
                return None
            options.append(word)
    for expression, text in ((form.words, words), (form.operands, operands)):
        if expression and (patterns or not expression.fullmatch("".join(f"\0{word}" for word in text))):
            return None
    return Use(form.kind, tuple(operands), tuple(options))


def _waits(word: str, form: _Form) -> bool | None:
    # Whether the next word is the option's value; None: it is not on the list.
    if word in form.flags or word in form.values:
        return word in form.values
    if word.startswith("--"):
        name, equals, _ = word.partition("=")
        return False if equals and (name in form.flags or name in form.values) else None
    if word[:2] in form.values:
        return False
    for place, letter in enumerate(word[1:], 2):
        if letter in form.values:
            return place == len(word)
        if letter not in form.flags and not (letter.isdigit() and "#" in form.flags):
            return None
    return False


def findings(command: Command) -> Iterator[Finding]:
    """The risks of one command of a plain line, or of the words of one that is not plain."""
    use, name = use_of(command), command.name
    if command.plain and use.kind != "reads":
        level, does = _LEVELS[use.kind]
        yield Finding(level, f"{name} {does}: {command.line}")
    if not use.listed:
        for word in dict.fromkeys(map(basename, command.parts[1:] if command.plain else command.parts)):
            if _table().kinds.get(program_of(word)) in ("discards", "network"):
                yield Finding("high", f"{name if command.plain else 'the line'} is given {word}, which it may run")


def covered(script: Script) -> bool:
    """Whether a grant for the first words may cover a line: all of it is on the list, and nothing is written."""
    return writes_nothing(script) and all(use_of(command).listed for command in script.commands)


def writes_nothing(script: Script) -> bool:
    """Whether the line is plain and redirects no output into a file."""
    return script.plain and bool(script.commands) and HARMLESS_TARGETS.issuperset(script.writes)


def is_known(command: Command) -> bool:
    """Whether a command does what its program is for: on the list, or of one that the list does not have."""
    return use_of(command).kind not in ("unlisted", "runs")


def is_discarding(script: Script) -> bool:
    """Whether a program in the line is for deleting."""
    return any(use_of(command).kind == "discards" for command in script.commands)


def is_reaching(command: Command) -> bool:
    """Whether the program is one that contacts other machines."""
    return use_of(command).kind in ("contacts", "network")


def prefix_of(script: Script) -> str:
    """The first words that "always" may cover; empty if only exactly this command line may be allowed."""
    if len(script.commands) != 1 or not covered(script):
        return ""
    command = script.commands[0]
    if command.name != "git":
        return command.name if use_of(command).kind != "contacts" else ""
    return f"git {command.words[1]}" if re.fullmatch(r"[a-z][a-z-]*", "".join(command.words[1:2])) else ""


class _Table(NamedTuple):
    forms: Mapping[str, _Form]
    kinds: Mapping[str, str]
    names: Mapping[str, str]


@cache
def _table() -> _Table:
    data = tomllib.loads(Path(__file__).with_name("programs.toml").read_text(encoding="utf-8"))
    entries: dict[str, Any] = data["forms"]
    forms: dict[str, _Form] = {}
    for first, entry in entries.items():
        given = [entries[entry["like"]], entry] if "like" in entry else [entry]
        flags, values = (" ".join(one.get(name, "") for one in given) for name in ("flags", "values"))
        form = _Form(
            entry.get("kind", "reads"),
            _options(flags if " " in first else f"{flags} --help --version"),
            _options(values),
            _expression(entry.get("words")),
            _expression(entry.get("operands")),
            entry.get("verbs", False),
            entry.get("otherwise", "unlisted"),
        )
        forms |= dict.fromkeys([first, *entry.get("also", ())], form)
    kinds = {name: kind for kind, names in data["kinds"].items() for name in names.split()}
    return _Table(forms, kinds, {**{name: name for name in (*forms, *kinds)}, **data["names"]})


def _options(text: str) -> frozenset[str]:
    return frozenset(option for word in text.split() for option in ([word] if word[0] == "-" else word))


def _expression(text: str | None) -> re.Pattern[str] | None:
    # A blank stands for the end of a word, which no word contains.
    return None if text is None else re.compile(text.replace(" ", "\0"), re.DOTALL)
