"""Every regular expression of the product that is kept in a module, and texts on which it has most to try."""

import importlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from re import _compiler, _constants, _parser  # pyright: ignore[reportAttributeAccessIssue]
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
ENDS = ("", "\0", "\nx")  # what may make a match that has come far fail
REPEATS = (_constants.MAX_REPEAT, _constants.MIN_REPEAT, _constants.POSSESSIVE_REPEAT)
MANY = 100  # what is repeated at most so often is no loop
CANDIDATES = "a0 -_x\n<[(\"'`.,:/|*#&;=+\\é\0"
NOT_IMPORTED = ("store/migrations/",)  # runs inside Alembic only


@dataclass(frozen=True, slots=True)
class Pattern:
    """An expression, where it is, and what it is used for."""

    place: str
    compiled: re.Pattern[str]
    use: Callable[[str], object]

    def texts(self) -> list[tuple[str, str]]:
        """Beginnings, and what to repeat after them."""
        parsed = _parser.parse(self.compiled.pattern, self.compiled.flags)
        loops = list(_loops(parsed, ""))
        found = [*loops, *(("", unit) for _, unit in loops), ("", _sample(parsed))]
        return [pair for pair in dict.fromkeys(found) if pair[1]]


def modules() -> list[str]:
    """The product's modules, by their paths."""
    files = [*(ROOT / "task").rglob("*.py"), *(ROOT / "mcp_servers").rglob("*.py")]
    return sorted(str(file.relative_to(ROOT)) for file in files)


def patterns() -> Iterator[Pattern]:
    """Every expression that a module of the product keeps under a name."""
    for name in modules():
        source = (ROOT / name).read_text(encoding="utf-8")
        if "re.compile(" not in source or any(part in name for part in NOT_IMPORTED):
            continue
        module = importlib.import_module(".".join(Path(name).with_suffix("").parts))
        for variable, value in vars(module).items():
            for compiled in _compiled(value):
                if re.search(rf"^{variable}\b", source, re.MULTILINE):
                    uses = set(re.findall(rf"\b{variable}\.(match|fullmatch|search)\b", source))
                    others = re.search(rf"\b{variable}\.(sub|subn|findall|finditer|split)\b", source)
                    yield Pattern(
                        f"{name} {variable}", compiled, _use(compiled, "" if others else next(iter(uses), ""))
                    )


def _use(compiled: re.Pattern[str], method: str) -> Callable[[str], object]:
    return getattr(compiled, method) if method else lambda text: sum(1 for _ in compiled.finditer(text))


def _compiled(value: Any) -> list[re.Pattern[str]]:  # and not the few of bytes
    held: Sequence[Any] = [value]
    if isinstance(value, Mapping):
        held = list(value.values())
    elif isinstance(value, list | tuple):
        held = value
    return [one for one in held if isinstance(one, re.Pattern) and isinstance(one.pattern, str)]


def _loops(nodes: Any, before: str) -> Iterator[tuple[str, str]]:
    # What stands before each part that may be repeated often, and once what is repeated.
    for kind, value in nodes:
        if kind in REPEATS:
            if value[1] > MANY:
                yield before, _sample(value[2])
            yield from _loops(value[2], before)
        for inner in _inside(kind, value):
            yield from _loops(inner, before)
        before += _sample([(kind, value)])


def _inside(kind: Any, value: Any) -> Sequence[Any]:
    match str(kind):
        case "SUBPATTERN":
            return [value[3]]
        case "ATOMIC_GROUP":
            return [value]
        case "BRANCH":
            return value[1]
        case "ASSERT" | "ASSERT_NOT":
            return [value[1]]
        case _:
            return []


def _sample(nodes: Any) -> str:
    # A text that fits, as far as that can be said without trying.
    text = ""
    for kind, value in nodes:
        if kind in REPEATS:
            text += _sample(value[2]) * max(1, min(value[0], 3))
        elif kind in (_constants.LITERAL, _constants.NOT_LITERAL, _constants.ANY, _constants.IN):
            alone = _compiler.compile(_parser.SubPattern(_parser.State(), [(kind, value)]))
            letters = (chr(value) if kind is _constants.LITERAL else "", *CANDIDATES, *map(chr, range(128, 66_000)))
            text += next(filter(alone.fullmatch, letters), "")
        elif kind not in (_constants.ASSERT, _constants.ASSERT_NOT):
            text += "".join(_sample(inner) for inner in _inside(kind, value)[:1])
    return text
