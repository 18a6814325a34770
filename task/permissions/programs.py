"""What is known about a command: what its program does in the forms of a list, and nothing about any other form."""

import re
import tomllib
from collections.abc import Mapping
from functools import cache, lru_cache
from itertools import dropwhile
from pathlib import Path
from typing import NamedTuple

from task.permissions.shell import Command, Script

HARMLESS_TARGETS = frozenset({"/dev/null", "/dev/stdout", "/dev/stderr"})
LISTED = frozenset({"reads", "changes", "contacts"})
REACHING = frozenset({"contacts", "network", "runs", "unlisted"})  # or may do so
_GIT_FLAGS = frozenset({"--no-pager", "--no-optional-locks"})
_VERSION = re.compile(r"(?<=[a-zA-Z])-?[0-9][0-9.]*\Z")
_WORD, _END = r"[^ ]*", r"(?![^ ])"
_OPERAND = rf" -?{_END}| [^ -]{_WORD}"


class _Form(NamedTuple):
    # What a program may be given; `open_ended`: any number of operands.
    words: re.Pattern[str]
    open_ended: bool
    kind: str
    otherwise: str


@lru_cache(maxsize=4_096)
def kind_of(command: Command) -> str:
    """What a command does: in a form of the list it `reads`, `changes` files or `contacts` another machine.

    Otherwise its program `discards` data, uses the `network`, `runs` others, or is `unknown`; `unlisted`: the list has
    the program, but not in this form.
    """
    (forms, kinds, _), words = _list(), command.words
    if not command.plain:
        return "unlisted"
    if words[0] == "git":
        verb = tuple(dropwhile(_GIT_FLAGS.__contains__, words[1:]))
        words = (f"git {verb[0]}", *verb[1:]) if verb else words
        if words[0] not in forms:
            return "unlisted"
    form = forms.get(words[0])
    if form is None:
        return kinds.get(program_of(command.name), "unknown")
    fits = form.words.fullmatch("".join(f"\0{word}" for word in words[1:]))
    return form.kind if fits and (form.open_ended or not command.patterns) else form.otherwise


def program_of(name: str) -> str:
    """The program's name without a version at its end; another name of a program is its own."""
    *_, known = _list()
    return known.get(name) or known.get(plain := _VERSION.sub("", name)) or plain


def writes_nothing(script: Script) -> bool:
    """Whether the line is plain and redirects no output into a file."""
    return script.plain and bool(script.commands) and HARMLESS_TARGETS.issuperset(script.writes)


def covered(script: Script) -> bool:
    """Whether a grant for the first words may cover a line: all of it is on the list, and nothing is written."""
    return writes_nothing(script) and LISTED.issuperset(map(kind_of, script.commands))


def prefix_of(script: Script) -> str:
    """The first words that "always" may cover; empty if only exactly this command line may be allowed."""
    if len(script.commands) != 1 or not covered(script):
        return ""
    name, *words = script.commands[0].words
    if name != "git":
        return name if kind_of(script.commands[0]) != "contacts" else ""
    return f"git {words[0]}" if words[0][0] != "-" else ""


@cache
def _list() -> tuple[dict[str, _Form], dict[str, str], dict[str, str]]:
    # The forms, the kinds of other programs, and the names that programs have.
    data = tomllib.loads(Path(__file__).with_name("programs.toml").read_text(encoding="utf-8"))
    forms: dict[str, _Form] = {}
    for first, entry in data["forms"].items():
        options = _options(entry, more="" if " " in first else " --help --version")
        operands, words = entry.get("operands", ""), entry.get("words")
        open_ended = not operands and words in (None, ".*")
        if words is None:
            words = f"(?>(?:{options})*)(?:{operands})" if operands else f"(?>(?:{options}|{_OPERAND})*)( --( .*)?)?"
        # A blank stands for the beginning of a word, which no word contains.
        expression = re.compile(words.replace(" ", "\0"), re.DOTALL)
        form = _Form(expression, open_ended, entry.get("kind", "reads"), entry.get("otherwise", "unlisted"))
        forms |= dict.fromkeys([first, *entry.get("also", ())], form)
    kinds = {name: kind for kind, names in data["kinds"].items() for name in names.split()}
    return forms, kinds, {**{name: name for name in (*forms, *kinds)}, **data["names"]}


def _options(entry: Mapping[str, str], more: str) -> str:
    # An expression for one option with its value; without groups, as Python 3.11 fails where `*+` repeats one.
    given = [(entry.get("flags", "") + more).split(), entry.get("values", "").split()]
    letters, waiting = ("".join(word for word in words if word[0] != "-") for words in given)
    long, long_waiting = ("|".join(word[1:] for word in words if word[0] == "-") for words in given)
    letters = letters.replace("#", r"\d")
    found = (
        (long_waiting, rf" -(?:{long_waiting})(?:[= ]{_WORD}|(?<= -\w)[^ ]+)"),
        (long, rf" -(?:{long})(?:={_WORD})?{_END}"),
        (letters, rf" -[{letters}]+{_END}"),
        (waiting, rf" -{f'[{letters}]*' if letters else ''}[{waiting}](?:[^ ]+| {_WORD})"),
    )
    return "|".join(expression for given, expression in found if given)
