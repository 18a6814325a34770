"""Find the regular expressions of the product, and texts that they take longest for."""

import ast
import importlib
import re
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from re import _compiler as compiler  # pyright: ignore[reportAttributeAccessIssue]
from re import _constants as codes  # pyright: ignore[reportAttributeAccessIssue]
from re import _parser as parser  # pyright: ignore[reportAttributeAccessIssue]
from typing import Any

ROOT = Path(__file__).parents[2]
ROOMS = ("task", "mcp_servers")
CALLS = frozenset({"compile", "search", "match", "fullmatch", "split", "findall", "finditer", "sub", "subn"})
FILLER = "a0 \n._-:/<>[]()\"'`*#|,=&$\\"
REPEATS = (codes.MAX_REPEAT, codes.MIN_REPEAT, codes.POSSESSIVE_REPEAT)
SINGLE = (codes.LITERAL, codes.NOT_LITERAL, codes.IN, codes.ANY)
SPELLED = (codes.LITERAL, codes.RANGE)


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


def expressions_of(file: str) -> Iterator[Expression]:
    """Every regular expression in a file, compiled; those that are known only at run time are left out."""
    text, name = (ROOT / file).read_text(encoding="utf-8"), file.removesuffix(".py").replace("/", ".")
    nodes = list(ast.walk(ast.parse(text)))
    assigned = [node for node in nodes if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)]
    targets = {id(inner): ast.unparse(node.targets[0]) for node in assigned for inner in ast.walk(node.value)}
    for call in nodes:
        method = ast.unparse(call.func).partition("re.")[2] if isinstance(call, ast.Call) else ""
        if method not in CALLS or not isinstance(call, ast.Call) or not ast.unparse(call.func).startswith("re."):
            continue
        flags = [item.value for item in call.keywords if item.arg == "flags"]
        arguments = call.args if method == "compile" else [call.args[0], *flags]
        try:
            pattern = eval(f"re.compile({', '.join(map(ast.unparse, arguments))})", vars(importlib.import_module(name)))
        except NameError:  # of a function, so it is known at run time only
            continue
        target = targets.get(id(call), "")
        methods = (method,) if method != "compile" else _methods(text, target)
        yield Expression(f"{name}:{target or pattern.pattern}", pattern, methods)


def _methods(text: str, target: str) -> tuple[str, ...]:
    # The methods of the name that the module uses, or for a public one any module; two common ones if none is seen.
    use = re.compile(rf"\b{target}(?:\[[^\]]*\])?\.({'|'.join(CALLS)})\b")
    used = set(use.findall(text)) if target else set()
    if not used and target and not target.startswith("_"):
        used = set(use.findall(_source()))
    return tuple(sorted(used)) or ("search", "fullmatch")


@cache
def _source() -> str:
    return "\n".join(path.read_text(encoding="utf-8") for room in ROOMS for path in (ROOT / room).rglob("*.py"))


def worst_cases(pattern: re.Pattern[Any], width: int) -> list[Case]:
    """Texts that make the expression try most, by its structure; `width` of its parts are repeated at each place."""
    tree = _tree(pattern)
    pieces = [piece for piece in dict.fromkeys([*_pieces(tree), *FILLER]) if piece]
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


def _tree(pattern: re.Pattern[Any]) -> Any:
    source = pattern.pattern if isinstance(pattern.pattern, str) else pattern.pattern.decode("latin-1")
    return parser.parse(source, pattern.flags)


def possessive_groups(pattern: re.Pattern[Any]) -> int:
    """How many groups the expression repeats possessively; a repeated character or set is no group."""
    return _possessive(_tree(pattern))


def _possessive(nodes: Any) -> int:
    count = 0
    for code, value in nodes:
        is_group = code is codes.POSSESSIVE_REPEAT and (len(value[2]) > 1 or value[2][0][0] not in SINGLE)
        count += is_group + sum(map(_possessive, [value[2]] if code in REPEATS else _inner(code, value)))
    return count


def _repeats(nodes: Any, before: str) -> Iterator[tuple[str, str]]:
    # For each repetition: what comes before it, and what it repeats.
    for code, value in nodes:
        if code in REPEATS:
            low, high, body = value
            if high > 10:
                yield before, _example(body) * max(low, 1)
            yield from _repeats(body, before)
        else:
            for inner in _inner(code, value):
                yield from _repeats(inner, before)
        before += _example([(code, value)])


def _inner(code: Any, value: Any) -> Sequence[Any]:
    if code is codes.BRANCH:
        return value[1]
    places = {codes.SUBPATTERN: 3, codes.ASSERT: 1, codes.ASSERT_NOT: 1}
    return [value] if code is codes.ATOMIC_GROUP else [value[places[code]]] if code in places else []


def _pieces(nodes: Any) -> Iterator[str]:
    # Short texts that parts of the expression match.
    for code, value in nodes:
        yield _example([(code, value)])
        for inner in [value[2]] if code in REPEATS else _inner(code, value):
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
    if code in REPEATS:
        return _example(value[2]) * max(value[0], 1 if value[1] else 0)
    return "" if code in (codes.ASSERT, codes.ASSERT_NOT) else "".join(map(_example, _inner(code, value)[:1]))


def _member(items: Any) -> str:
    alone = compiler.compile(parser.SubPattern(parser.State(), [(codes.IN, items)]))
    ranges = [chr(value[0] if code is codes.RANGE else value) for code, value in items if code in SPELLED]
    return next((mark for mark in [*FILLER, *"bZ\t{}~éд", *ranges] if alone.fullmatch(mark)), "a")
