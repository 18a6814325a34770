"""Parse a command line with the grammar of bash: every command in it, however nested, and what cannot be known."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tree_sitter import Node, Parser

LONGEST = 20_000  # characters; a longer command line counts as not understood
_STILL = frozenset({"word", "number", "raw_string", "string", "string_content", "ansi_c_string", "concatenation"})
_LITERAL = frozenset({"{", "}", "[", "]", "=", ",", "!", "extglob_pattern", "regex", "test_operator"})
_WRITING = frozenset({">", ">>", ">|", "&>", "&>>", "<>"})
_ESCAPED = re.compile(r"\\(\n|.)", re.DOTALL)
_IN_QUOTES = re.compile(r"\\([$`\"\\\n])")
_ANSI = re.compile(r"\\(x[0-9a-fA-F]{1,2}|u[0-9a-fA-F]{1,4}|U[0-9a-fA-F]{1,8}|[0-7]{1,3}|.)", re.DOTALL)
_ANSI_MARKS = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "e": "\x1b", "f": "\f", "v": "\v"}
_BESIDE = frozenset({"variable_assignment", "file_redirect", "herestring_redirect", "heredoc_redirect"})
_GLOBS = frozenset("*?[{")


@dataclass(frozen=True, slots=True)
class Command:
    """One simple command: its words without quotes; not `exact`: a word is only known at run time.

    `piped`: it reads another command's output.
    """

    words: tuple[str, ...]
    exact: bool = True
    piped: bool = False


@dataclass(frozen=True, slots=True)
class Script:
    """Everything a command line would run; not `understood`: it cannot be parsed or is too long.

    `writes` are the files that output is redirected to, `sets` the variables that are set.
    """

    commands: tuple[Command, ...] = ()
    writes: tuple[str, ...] = ()
    sets: tuple[str, ...] = ()
    understood: bool = True

    @property
    def exact(self) -> bool:
        return self.understood and not self.sets and all(command.exact for command in self.commands)


@cache
def _parser() -> Parser:
    import tree_sitter_bash
    from tree_sitter import Language, Parser

    return Parser(Language(tree_sitter_bash.language()))


def parsed(text: str) -> Script:
    """The commands of a command line in their order, nested ones included."""
    if len(text) > LONGEST or "\0" in text:
        return Script(understood=False)
    root = _parser().parse(text.encode(errors="replace")).root_node
    commands, writes, sets = list[Command](), list[str](), list[str]()
    for node, piped in _walked(root):
        match node.type:
            case "command":
                commands.append(_command(node, piped))
            case "declaration_command" | "unset_command":
                commands.append(Command((_source(node).split()[0],)))
            case "variable_assignment":
                sets.append(_source(node).partition("=")[0].rstrip("+"))
            case "file_redirect":
                writes += _written(node)
            case _:
                pass
    return Script(tuple(commands), tuple(writes), tuple(sets), not root.has_error)


def _walked(root: Node) -> Iterator[tuple[Node, bool]]:
    waiting = [(root, False)]
    while waiting:
        node, piped = waiting.pop()
        yield node, piped
        inner = node.type == "pipeline"
        # A leaf is a word or a mark, never a command.
        children = [
            (child, piped or (inner and position > 0))
            for position, child in enumerate(node.named_children)
            if child.child_count
        ]
        waiting += reversed(children)


def _command(node: Node, piped: bool) -> Command:
    words: list[str] = []
    exact = True
    for child in node.children:
        kind = child.type
        if kind in _BESIDE:
            continue
        if kind == "command_name":
            word, known = _word(child.children[0] if child.child_count else child)
            known = known and _GLOBS.isdisjoint(word)  # else the shell looks for a matching file
        else:
            word, known = _word(child)
        words.append(word)
        exact = exact and known
    return Command(tuple(words), exact, piped)


def _word(node: Node) -> tuple[str, bool]:
    # The word as the command receives it, and whether that is known; what is not known stays as written.
    kind, source = node.type, _source(node)
    if kind == "word" and "\\" not in source:
        return source, True
    if kind == "raw_string":
        return source[1:-1], True
    if kind == "ansi_c_string":
        return _ANSI.sub(_ansi, source[2:-1]), True
    if kind == "string":
        inner = source[1:-1]
        known = all(child.type in ('"', "string_content") for child in node.children)
        return (_IN_QUOTES.sub(lambda found: found[1].strip("\n"), inner), True) if known else (inner, False)
    if kind == "concatenation":
        parts = [_word(child) for child in node.children]
        return "".join(text for text, _ in parts), all(known for _, known in parts)
    if kind in _STILL or kind in _LITERAL:
        return _ESCAPED.sub(lambda found: found[1].strip("\n"), source), True
    return source, False


def _ansi(found: re.Match[str]) -> str:
    code = found[1]
    if code[0] in "xuU" and len(code) > 1:
        return chr(min(int(code[1:], 16), 0x10FFFF))
    if code[0].isdigit():
        return chr(int(code, 8) & 255)
    return _ANSI_MARKS.get(code, code)


def _written(node: Node) -> list[str]:
    kinds = {child.type for child in node.children}
    target = node.children[-1]
    if not kinds & (_WRITING | {">&"}) or (">&" in kinds and target.type == "number"):
        return []
    return [_word(target)[0]]


def _source(node: Node) -> str:
    return (node.text or b"").decode(errors="replace")
