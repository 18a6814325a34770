"""Parse a command line with the grammar of bash: every command in it, however nested, and what cannot be known."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from tree_sitter import Node, Parser

# Characters, marks and commands; a command line of more counts as not understood. The grammar's error recovery takes
# time that grows with the square of the marks.
LONGEST, MOST_MARKS, MOST_COMMANDS = 20_000, 4_000, 500
# A name or path, and words in which nothing has a meaning of its own: bash only splits them, which needs no grammar.
_PLAIN = re.compile(r"[A-Za-z_./][\w./-]*(?: [\w./,:@%+-]+)*", re.ASCII)
_KEYWORDS = frozenset(
    {"case", "coproc", "do", "done", "elif", "else", "esac", "fi", "for", "function", "if", "in", "select", "then"}
    | {"time", "until", "while", "declare", "export", "local", "readonly", "typeset", "unset", "unsetenv"}
)
_MARK = re.compile(r"[^\w\s./,-]")
_STILL = frozenset({"word", "number", "raw_string", "string", "string_content", "ansi_c_string", "concatenation"})
_LITERAL = frozenset({"{", "}", "[", "]", "=", ",", "!", "extglob_pattern", "regex", "test_operator"})
_WRITING = frozenset({">", ">>", ">|", "&>", "&>>", "<>"})
_ESCAPED = re.compile(r"\\(\n|.)", re.DOTALL)
_IN_QUOTES = re.compile(r"\\([$`\"\\\n])")
_ANSI = re.compile(r"\\(x[0-9a-fA-F]{1,2}|u[0-9a-fA-F]{1,4}|U[0-9a-fA-F]{1,8}|[0-7]{1,3}|.)", re.DOTALL)
_ANSI_MARKS = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "e": "\x1b", "f": "\f", "v": "\v"}
_FEEDING = frozenset({"herestring_redirect", "heredoc_redirect"})
_NESTING = frozenset("$`<>=")
_BESIDE = _FEEDING | {"variable_assignment", "file_redirect"}
_COMPUTING = frozenset({"test_command", "arithmetic_expansion", "subscript"})
_QUOTED = frozenset({"raw_string", "string", "ansi_c_string", "translated_string"})
_UNQUOTED = frozenset({"word", "concatenation", "extglob_pattern"})
_PATTERN = frozenset("*?[")
_GLOBS = _PATTERN | {"{"}


class Command(NamedTuple):
    """One simple command: its words without quotes; not `exact`: a word is known only at run time.

    `input` is the text that it reads from a here-document, or the command before it in a pipeline. `patterns` are
    those of its words that the shell replaces by names of files.
    """

    words: tuple[str, ...]
    exact: bool = True
    input: str = ""
    patterns: tuple[str, ...] = ()


class Script(NamedTuple):
    """Everything a command line would run; not `understood`: it cannot be parsed or is too long.

    `writes` and `reads` are the files that output and input are redirected to, `sets` the variables that are set.
    """

    commands: tuple[Command, ...] = ()
    writes: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()
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
    if len(text) > LONGEST or "\0" in text or (len(text) > MOST_MARKS and len(_MARK.findall(text)) > MOST_MARKS):
        return Script(understood=False)
    if _PLAIN.fullmatch(text) and (words := text.split(" "))[0] not in _KEYWORDS:
        return Script((Command(tuple(words)),))
    root = _parser().parse(text.encode(errors="replace")).root_node
    commands: list[Command] = []
    redirects: list[tuple[str, bool]] = []
    sets: list[str] = []
    for node, kind, fed in _walked(root, is_flat=_NESTING.isdisjoint(text)):
        if len(commands) == MOST_COMMANDS:
            break
        if kind == "command":
            commands.append(_command(node, fed))
        elif kind in ("declaration_command", "unset_command"):
            commands.append(Command((_source(node).split()[0], *_evaluated(node))))
        elif kind in _COMPUTING and (texts := _evaluated(node)):
            commands.append(Command(("let", *texts)))
        elif kind == "variable_assignment":
            sets.append(_source(node).partition("=")[0].rstrip("+"))
        elif kind == "file_redirect":
            redirects.append((_word(node.children[-1])[0], _writes(node)))
    understood = len(commands) < MOST_COMMANDS and not root.has_error
    if not redirects:
        return Script(tuple(commands), sets=tuple(sets), understood=understood)
    writes = tuple(target for target, writing in redirects if writing)
    reads = tuple(target for target, writing in redirects if not writing)
    return Script(tuple(commands), writes, reads, tuple(sets), understood)


def _walked(root: Node, *, is_flat: bool) -> Iterator[tuple[Node, str, str]]:
    # Every node that may contain a command, with its kind and the text of its input.
    waiting = [(root, "")]
    while waiting:
        node, fed = waiting.pop()
        kind = node.type
        yield node, kind, fed
        if is_flat and kind == "command":
            continue
        # A leaf is a word or a mark, never a command.
        children = [child for child in node.named_children if child.child_count]
        if kind == "pipeline":
            fed_by = [fed, *map(_source, children[:-1])]
            waiting += reversed(list(zip(children, fed_by, strict=False)))
            continue
        if kind == "redirected_statement":
            fed = "\n".join([fed, *(_source(child) for child in children if child.type in _FEEDING)]).strip("\n")
        waiting += [(child, fed) for child in reversed(children)]


def _evaluated(node: Node) -> list[str]:
    # Quoted texts in which the shell, when it computes with them, runs what is inside `$(…)`.
    found, waiting = list[str](), [node]
    while waiting:
        for child in waiting.pop().children:
            if child.type in _QUOTED:
                found.append(_word(child)[0])
            elif child.type not in ("command_substitution", "process_substitution"):
                waiting.append(child)
    return [text for text in found if "$(" in text or "`" in text]


def _command(node: Node, fed: str) -> Command:
    words: list[str] = []
    patterns: list[str] = []
    exact = True
    for child in node.children:
        kind = child.type
        if kind in _BESIDE:
            if kind in _FEEDING:
                fed = f"{fed}\n{_source(child)}"
            continue
        if kind == "command_name":
            word, known = _word(child.children[0] if child.child_count else child)
            known = known and _GLOBS.isdisjoint(word)  # else the shell looks for a matching file
        else:
            word, known = _word(child)
            if not _GLOBS.isdisjoint(word) and kind in _UNQUOTED:
                known = known and not _braced(child)
                if not _PATTERN.isdisjoint(_unquoted(child)):
                    patterns.append(word)
        words.append(word)
        exact = exact and known
    return Command(tuple(words), exact, fed, tuple(patterns))


def _unquoted(node: Node) -> str:
    parts = node.children if node.type == "concatenation" else [node]
    return "".join(_ESCAPED.sub("", _source(part)) for part in parts if part.type not in _QUOTED)


def _braced(node: Node) -> bool:
    # Whether the shell makes several words of this one.
    text = _unquoted(node)
    return "{" in text and ("," in text or ".." in text)


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


def _writes(node: Node) -> bool:
    kinds = {child.type for child in node.children}
    return bool(kinds & (_WRITING | {">&"})) and not (">&" in kinds and node.children[-1].type == "number")


def _source(node: Node) -> str:
    return (node.text or b"").decode("utf-8", "replace")
