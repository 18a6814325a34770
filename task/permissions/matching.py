"""Compare commands with how a rule says that they begin."""

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from posixpath import basename

from task.permissions.invocations import Invocation, program_named
from task.permissions.programs import Reading, fully_known
from task.permissions.shell import parsed


def is_beginning(text: str) -> bool:
    """Whether a command, as the reader of commands finds it, can begin like this; false for `a | b` and `"a"`."""
    script = parsed(text)
    whole = script.understood and not script.writes and not script.sets
    return whole and [command.words for command in script.commands] == [tuple(text.split())]


def are_within(script: Reading, beginnings: Iterable[str]) -> bool:
    """Whether nothing runs but commands that begin so; what such a program itself runs is not looked into."""
    known = bool(script.invocations) and script.exact and script.complete
    return known and all(
        one.program.runs and not one.unknown if one.loose else _begins_with_one(one, beginnings)
        for one in script.invocations
    )


def other_command(script: Reading, beginnings: Iterable[str]) -> str:
    """The name of the first command that does not begin so, or of the first that is not understood."""
    others = (one.name for one in script.invocations if one.loose or not _begins_with_one(one, beginnings))
    return next(others, next((one.name for one in script.invocations), ""))


def _begins_with_one(invocation: Invocation, beginnings: Iterable[str]) -> bool:
    return any(_begins(invocation, beginning.split()) for beginning in beginnings)


def _begins(invocation: Invocation, words: Sequence[str]) -> bool:
    found = invocation.words
    if len(found) < len(words):
        return False
    for word, wanted in zip(found, words, strict=False):
        if word != wanted and not fnmatchcase(word, wanted):
            return False
    return True


def is_spelt_out(invocation: Invocation, beginnings: Iterable[str]) -> bool:
    """Whether a rule that allows these beginnings means the command: one that is not fully known, if all its words are
    in the rule.
    """
    if fully_known(invocation):
        return _begins_with_one(invocation, beginnings)
    wanted = [words for beginning in beginnings if len(words := beginning.split()) == len(invocation.words)]
    return any(_begins(invocation, words) for words in wanted)


def is_concerned(invocation: Invocation, beginnings: Iterable[str]) -> bool:
    """Whether a rule that denies these beginnings, or asks about them, means the command."""
    return any(_concerns(beginning.split(), invocation) for beginning in beginnings)


def _concerns(words: Sequence[str], invocation: Invocation) -> bool:
    # In whatever order its options stand.
    if not words:
        return False
    name, *rest = words
    if invocation.loose:
        return _in_order(words, invocation.words)
    if not _same_program(invocation.name, name):
        return False
    if len(invocation.words) > len(rest) and all(map(fnmatchcase, invocation.words[1:], rest)):
        return True
    options = [word for word in rest if word.startswith("-")]
    operands = [word for word in rest if not word.startswith("-")]
    return (
        len(invocation.operands) >= len(operands)
        and all(map(fnmatchcase, invocation.operands, operands))
        and all(_has_option(invocation.options, option) for option in options)
    )


def _in_order(words: Sequence[str], found: Sequence[str]) -> bool:
    left = iter(found)
    if not any(_same_program(basename(word), words[0]) for word in left):
        return False
    return all(any(fnmatchcase(word, wanted) for word in left) for wanted in words[1:])


def _same_program(name: str, wanted: str) -> bool:
    return fnmatchcase(name, wanted) or program_named(name).name == program_named(wanted).name


def _has_option(options: Sequence[str], wanted: str) -> bool:
    if any(fnmatchcase(option.partition("=")[0], wanted) or fnmatchcase(option, wanted) for option in options):
        return True
    letters = {letter for option in options if not option.startswith("--") for letter in option[1:]}
    return not wanted.startswith("--") and letters.issuperset(wanted[1:])
