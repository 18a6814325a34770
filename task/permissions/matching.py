"""Compare commands with how a rule says that they begin."""

import re
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from posixpath import basename

from task.permissions.programs import LISTED, kind_of, program_of
from task.permissions.shell import Command, Script

_BEGINNING = re.compile(r"\s*[\w./:@%+*?\[\]-]+(?:\s+[\w./,:@%+=~^*?\[\]-]+)*\s*")


def is_beginning(text: str) -> bool:
    """Whether a command can begin like this; false for `a | b` and `"a"`."""
    return _BEGINNING.fullmatch(text) is not None


def other_command(script: Script, beginnings: Sequence[str]) -> str:
    """The first command that does not begin so, or of which is not known what it runs; empty if there is none."""
    if not script.plain:
        return f"not a plain line ({script.why})"
    for one in script.commands:
        if not _begins(one, beginnings, whole=kind_of(one) in ("unlisted", "runs")):
            return one.name
    return ""


def is_spelt_out(command: Command, beginnings: Iterable[str]) -> bool:
    """Whether a rule that allows these beginnings means the command: one of an unknown program only as a whole."""
    kind = kind_of(command)
    return (kind in LISTED or kind == "unknown") and _begins(command, beginnings, whole=kind == "unknown")


def _begins(command: Command, beginnings: Iterable[str], *, whole: bool) -> bool:
    # `whole`: all its words are in a beginning, and none of them is an option.
    found = command.words
    if whole and (command.patterns or any(word.startswith(("-", "+")) for word in found)):
        return False
    counts = range(len(found) if whole else 0, len(found) + 1)
    meant = (words for beginning in beginnings if len(words := beginning.split()) in counts)
    return any(all(map(fnmatchcase, found, words)) for words in meant)


def concerned(commands: Sequence[Command], beginnings: Iterable[str]) -> Iterator[Command]:
    """The commands that a rule which denies these beginnings, or asks about them, means."""
    # A program that is not on the list may run what any command of the line writes or names.
    loose = not LISTED.issuperset(map(kind_of, commands))
    rules = [words for beginning in beginnings if (words := beginning.split())]
    return (command for command in commands if any(_concerns(words, command, loose) for words in rules))


def _concerns(words: Sequence[str], command: Command, loose: bool) -> bool:
    # In whatever order its options stand; `loose`: wherever the words occur.
    left, program = iter(command.parts if loose else command.words), program_of(words[0])
    names = map(basename, left)
    begins = (fnmatchcase(name, words[0]) or program_of(name) == program for name in names)
    if not (any(begins) if loose else next(begins)):
        return False
    found = tuple(left)
    operands, wanted = ([word for word in some if word[:1] != "-"] for some in (found, words[1:]))
    if command.name == "git" and not loose and not all(map(fnmatchcase, operands[:1], wanted)):
        return False  # another verb
    left = iter(operands)
    return all(any(fnmatchcase(word, one) for word in left) for one in wanted) and all(
        _has(found, word) for word in words[1:] if word[0] == "-"
    )


def _has(found: Sequence[str], wanted: str) -> bool:
    if any(fnmatchcase(word.partition("=")[0], wanted) or fnmatchcase(word, wanted) for word in found):
        return True
    letters = {letter for word in found if word[:1] == "-" and word[:2] != "--" for letter in word[1:]}
    return not wanted.startswith("--") and letters.issuperset(wanted[1:])
