"""Find the regular expressions of the product, and texts that they take longest for."""

from __future__ import annotations

import ast
import importlib
import re
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from re import _constants as codes  # pyright: ignore[reportAttributeAccessIssue]
from re import _parser as parser  # pyright: ignore[reportAttributeAccessIssue]
from typing import Any

ROOT = Path(__file__).parents[2]
ROOMS = ("task", "mcp_servers")
CALLS = frozenset({"compile", "search", "match", "fullmatch", "split", "findall", "finditer", "sub", "subn"})
FILLER = "a0 \n._-:/<>[]()\"'`*#|,=&$\\"


@dataclass(frozen=True, slots=True)
class Expression:
    """A regular expression of the product, and the methods by which it is applied."""

    place: str
    pattern: re.Pattern[Any]
    methods: tuple[str, ...]

    def apply(self, method: str, text: str) -> None:
        """Let the expression read the whole text."""
        subject: Any = text.encode("utf-8", "replace") if isinstance(self.pattern.pattern, bytes) else text
        function = getattr(self.pattern, method)
        if method in ("sub", "subn"):
            function(subject[:0], subject)
        elif method == "finditer":
            deque(function(subject), maxlen=0)
        else:
            function(subject)


@dataclass(frozen=True, slots=True)
class Case:
    """A text that repeats a part."""

    before: str
    again: str
    after: str

    def text(self, size: int) -> str:
        return (self.before + self.again * (size // len(self.again) + 1))[:size] + self.after


def files() -> list[str]:
    """The files of the product that contain regular expressions."""
    found = [path for room in ROOMS for path in sorted((ROOT / room).rglob("*.py"))]
    return [str(path.relative_to(ROOT)) for path in found if "\nimport re\n" in path.read_text(encoding="utf-8")]


def expressions_of(file: str) -> list[Expression]:
    """Every regular expression in a file, compiled; those that are known only at run time are left out."""
    path = ROOT / file
    return list(_of_module(path, ast.parse(path.read_text(encoding="utf-8"))))


def _of_module(path: Path, tree: ast.Module) -> Iterator[Expression]:
    calls = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id == "re"
        and node.func.attr in CALLS
    ]
    if not calls:
        return
    name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    module = importlib.import_module(name)
    names = {id(call): target for call, target in _assigned(tree)}
    for call in calls:
        pattern = _compiled(call, vars(module))
        if pattern is not None:
            target = names.get(id(call), "")
            methods = (call.func.attr,) if call.func.attr != "compile" else _methods(tree, target)  # type: ignore[union-attr]
            yield Expression(f"{name}:{target or pattern.pattern}", pattern, methods)


def _assigned(tree: ast.Module) -> Iterator[tuple[ast.Call, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            for inner in ast.walk(node.value):
                if isinstance(inner, ast.Call):
                    yield inner, node.targets[0].id


def _compiled(call: ast.Call, names: dict[str, Any]) -> re.Pattern[Any] | None:
    arguments = call.args[:1] if ast.unparse(call.func) != "re.compile" else call.args
    flags = [item.value for item in call.keywords if item.arg == "flags"] or arguments[1:]
    try:
        values = [eval(ast.unparse(node), dict(names)) for node in [arguments[0], *flags]]
    except NameError:  # of a function, so it is known at run time only
        return None
    return values[0] if isinstance(values[0], re.Pattern) else re.compile(*values)


def _methods(tree: ast.Module, target: str) -> tuple[str, ...]:
    # The methods of the name that the module uses, or for a public one any module; all of them if none is seen.
    used = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and ast.unparse(node.value).partition("[")[0] == target
        and node.attr in CALLS
    }
    if not used and target and not target.startswith("_"):
        used = set(re.findall(rf"\b{target}\.({'|'.join(CALLS)})\b", _source()))
    return tuple(sorted(used)) or ("search", "fullmatch")


@cache
def _source() -> str:
    return "\n".join(path.read_text(encoding="utf-8") for room in ROOMS for path in (ROOT / room).rglob("*.py"))


def worst_cases(pattern: re.Pattern[Any], width: int) -> list[Case]:
    """Texts that make the expression try most, by its structure; `width` of its parts are repeated at each place."""
    tree = _tree(pattern)
    pieces = pieces_of(pattern)
    found = [
        Case(before, again, after)
        for before, body in _repeats(tree, "")
        for again in (body, *pieces[:width])
        for after in ("", "\0", "\n!")
    ]
    found += [
        Case("", again, after) for again in (*pieces[: 4 * width], *FILLER, _example(tree)) for after in ("", "\0")
    ]
    return [case for case in dict.fromkeys(found) if case.again]


def pieces_of(pattern: re.Pattern[Any]) -> list[str]:
    """Short texts that parts of the expression match, and marks."""
    return [piece for piece in dict.fromkeys([*_pieces(_tree(pattern)), *FILLER]) if piece]


def _tree(pattern: re.Pattern[Any]) -> Any:
    source = pattern.pattern if isinstance(pattern.pattern, str) else pattern.pattern.decode("latin-1")
    return parser.parse(source, pattern.flags)


def _repeats(nodes: Any, before: str) -> Iterator[tuple[str, str]]:
    # For each repetition: what comes before it, and what it repeats.
    for code, value in nodes:
        if code in (codes.MAX_REPEAT, codes.MIN_REPEAT, codes.POSSESSIVE_REPEAT):
            low, high, body = value
            if high > 10:
                yield before, _example(body) * max(low, 1)
            yield from _repeats(body, before)
        else:
            for inner in _inner(code, value):
                yield from _repeats(inner, before)
        before += _example([(code, value)])


def _inner(code: Any, value: Any) -> Sequence[Any]:
    if code is codes.SUBPATTERN:
        return [value[3]]
    if code is codes.BRANCH:
        return value[1]
    if code in (codes.ASSERT, codes.ASSERT_NOT):
        return [value[1]]
    if code is codes.ATOMIC_GROUP:
        return [value]
    return []


def _pieces(nodes: Any) -> Iterator[str]:
    # Short texts that parts of the expression match.
    for code, value in nodes:
        yield _example([(code, value)])
        bodies = (
            [value[2]] if code in (codes.MAX_REPEAT, codes.MIN_REPEAT, codes.POSSESSIVE_REPEAT) else _inner(code, value)
        )
        for inner in bodies:
            yield from _pieces(inner)


def _example(nodes: Any) -> str:
    return "".join(_one(code, value) for code, value in nodes)


def _one(code: Any, value: Any) -> str:
    if code is codes.LITERAL:
        return chr(value)
    if code is codes.NOT_LITERAL:
        return "b" if value != ord("b") else "c"
    if code is codes.ANY:
        return "a"
    if code is codes.IN:
        return _member(value)
    if code in (codes.MAX_REPEAT, codes.MIN_REPEAT, codes.POSSESSIVE_REPEAT):
        return _example(value[2]) * max(value[0], 1 if value[1] else 0)
    if code is codes.SUBPATTERN:
        return _example(value[3])
    if code is codes.BRANCH:
        return _example(value[1][0])
    if code is codes.ATOMIC_GROUP:
        return _example(value)
    return ""


def _member(items: Any) -> str:
    negated = items[0][0] is codes.NEGATE
    fits = [mark for mark in FILLER + "bZ\t{}~éд" if any(_fits(mark, *item) for item in items) is not negated]
    literal = [chr(value) for code, value in items if code is codes.LITERAL]
    ranges = [chr(value[0]) for code, value in items if code is codes.RANGE]
    return (fits or literal or ranges or ["a"])[0]


def _fits(mark: str, code: Any, value: Any) -> bool:
    if code is codes.LITERAL:
        return ord(mark) == value
    if code is codes.RANGE:
        return value[0] <= ord(mark) <= value[1]
    if code is codes.CATEGORY:
        name = str(value)
        kind = (
            mark.isdigit() if "DIGIT" in name else mark.isspace() if "SPACE" in name else mark.isalnum() or mark == "_"
        )
        return kind is not ("NOT" in name)
    return False
