"""Compare commands with how a rule says that they begin."""

import re
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from posixpath import basename

from task.permissions.programs import is_known, program_of, use_of
from task.permissions.shell import Command, Script

_BEGINNING = re.compile(r"\s*[\w./:@%+*?\[\]-]+(?:\s+[\w./,:@%+=~^*?\[\]-]+)*\s*")


def is_beginning(text: str) -> bool:
    """Whether a command can begin like this; false for `a | b` and `"a"`."""
    return _BEGINNING.fullmatch(text) is not None


def other_command(script: Script, beginnings: Sequence[str]) -> str:
    """The first command that is not one of these, in a form that is known; empty if all are."""
    if not script.plain:
        return f"not a plain line ({script.why})"
    for one in script.commands:
        if not (_is_whole(one, beginnings) or (is_known(one) and begins(one, beginnings))):
            return one.name
    return ""


def begins(command: Command, beginnings: Iterable[str]) -> bool:
    """Whether the command begins with the words of one of these."""
    return any(_begin(command.words, beginning.split()) for beginning in beginnings)


def _begin(found: Sequence[str], words: Sequence[str]) -> bool:
    return len(found) >= len(words) and all(map(fnmatchcase, found, words))


def is_spelt_out(command: Command, beginnings: Iterable[str]) -> bool:
    """Whether a rule that allows these beginnings means the command: one of the list, or an unknown one of which all
    words are in the rule and none is an option.
    """
    if use_of(command).listed:
        return begins(command, beginnings)
    return use_of(command).kind == "unknown" and _is_whole(command, beginnings)


def _is_whole(command: Command, beginnings: Iterable[str]) -> bool:
    if command.patterns or any(word.startswith(("-", "+")) for word in command.words):
        return False
    return begins(command, (text for text in beginnings if len(text.split()) == len(command.words)))


def concerned(commands: Sequence[Command], beginnings: Iterable[str]) -> Iterable[Command]:
    """The commands that a rule which denies these beginnings, or asks about them, means."""
    # What runs others may be given their names by any command before it.
    loose = any(use_of(command).kind == "runs" for command in commands)
    rules = [words for beginning in beginnings if (words := beginning.split())]
    return (command for command in commands if any(_concerns(words, command, loose) for words in rules))


def _concerns(words: Sequence[str], command: Command, loose: bool) -> bool:
    # In whatever order its options stand; in a command that is not on the list, wherever the words occur.
    name, *rest = words
    use = use_of(command)
    options = [word for word in rest if word.startswith("-")]
    operands = [word for word in rest if not word.startswith("-")]
    if use.listed and not loose:
        if not _same_program(command.name, name):
            return False
        in_form = len(use.operands) >= len(operands) and all(map(fnmatchcase, use.operands, operands))
        return _begin(command.words[1:], rest) or (in_form and _have(use.options, options))
    parts = command.parts
    begin = next((place for place, part in enumerate(parts, 1) if _same_program(basename(part), name)), None)
    if begin is None:
        return False
    left = iter(parts[begin:])
    return _have(parts, options) and all(any(fnmatchcase(word, wanted) for word in left) for wanted in operands)


def _same_program(name: str, wanted: str) -> bool:
    return fnmatchcase(name, wanted) or program_of(name) == program_of(wanted)


def _have(found: Sequence[str], options: Sequence[str]) -> bool:
    letters = {letter for option in found if option[:1] == "-" and option[:2] != "--" for letter in option[1:]}
    return all(
        any(fnmatchcase(option.partition("=")[0], wanted) or fnmatchcase(option, wanted) for option in found)
        or (not wanted.startswith("--") and letters.issuperset(wanted[1:]))
        for wanted in options
    )
