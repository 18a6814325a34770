"""Read a reference manual: its sections with their blocks and tables, and the Python definitions in them.

The definitions come without bodies and often without `self`.
"""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import takewhile

HEADING = re.compile(r"^(#{1,6})\s+(.*)$")
FENCE = re.compile(r"^(`{3,})(\w*)\s*$")
DEFINITION = re.compile(r"^(?P<indent>[ \t]*)(?P<async>async[ \t]+)?def[ \t]+(?P<name>\w+)[ \t]*\(", re.MULTILINE)
CLASS = re.compile(r"^class[ \t]+(?P<name>\w+)[ \t]*(?:\((?P<bases>[^)]*)\))?", re.MULTILINE)
FIELD = re.compile(
    r"^[ \t]+(?P<name>\w+)[ \t]*:[ \t]*[^=#\n]+(?:=[ \t]*(?P<default>[^#\n]+?))?[ \t]*(?:#.*)?$", re.MULTILINE
)


@dataclass(slots=True)
class Block:
    """A fenced block; `label` is the last line of text before it."""

    language: str
    label: str
    text: str


@dataclass(slots=True)
class Section:
    """What stands under one heading, up to the next heading of any level; tables as lists of cells, header first."""

    level: int
    title: str
    text: list[str] = field(default_factory=list[str])
    blocks: list[Block] = field(default_factory=list[Block])
    rows: list[list[str]] = field(default_factory=list[list[str]])

    def value(self, label: str) -> str | None:
        """The code in `**label**: code` or `**label:** code`."""
        pattern = re.compile(rf"\*\*{re.escape(label)}(?::\*\*|\*\*:)\s*`([^`]+)`")
        return next((found[1] for line in self.text if (found := pattern.search(line))), None)


def sections(document: str) -> Iterator[Section]:
    """The document's sections in order; fenced text is never read as headings or tables."""
    section = Section(0, "")
    lines = iter(document.splitlines())
    for line in lines:
        if heading := HEADING.match(line):
            yield section
            section = Section(len(heading[1]), heading[2].strip())
        elif fence := FENCE.match(line):
            label = next((text for text in reversed(section.text) if text.strip()), "")
            section.blocks.append(
                Block(fence[2], label, "\n".join(takewhile(lambda line, end=fence[1]: line.rstrip() != end, lines)))
            )
            section.text.append("")
        elif line.startswith("|"):
            section.rows.append([cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]])
        else:
            section.text.append(line)
    yield section


@dataclass(frozen=True, slots=True)
class Definition:
    """One function: its parameters as (name, default's source or None), without `self`."""

    name: str
    is_async: bool
    decorators: tuple[str, ...]
    parameters: tuple[tuple[str, str | None], ...]


def definitions(source: str) -> Iterator[Definition]:
    """Every function that a block defines, at any depth."""
    for found in DEFINITION.finditer(source):
        end = _closing(source, found.end() - 1)
        parsed = ast.parse(f"def f{source[found.end() - 1 : end + 1]}: ...").body[0]
        assert isinstance(parsed, ast.FunctionDef)
        before = reversed([line.strip() for line in source[: found.start()].rstrip().splitlines()])
        decorators = tuple(line[1:] for line in takewhile(lambda line: line.startswith("@"), before))
        yield Definition(found["name"], found["async"] is not None, decorators, tuple(_parameters(parsed.args)))


def class_of(source: str) -> tuple[str, list[str]] | None:
    """The name and the bases of the class that a block defines, if it defines one."""
    found = CLASS.search(source)
    if found is None:
        return None
    return found["name"], [base.strip() for base in (found["bases"] or "").split(",") if base.strip()]


def fields_of(source: str) -> list[tuple[str, str | None]]:
    """The annotated fields of a dataclass block, as (name, default's source or None)."""
    if "@dataclass" not in source:
        return []
    return [(found["name"], found["default"]) for found in FIELD.finditer(source)]


def _closing(source: str, opening: int) -> int:
    depth = 0
    for position in range(opening, len(source)):
        depth += {"(": 1, ")": -1}.get(source[position], 0)
        if depth == 0:
            return position
    raise ValueError(f"no closing parenthesis after {source[opening : opening + 40]!r}")


def _parameters(arguments: ast.arguments) -> Iterator[tuple[str, str | None]]:
    positional = [*arguments.posonlyargs, *arguments.args]
    defaults: list[ast.expr | None] = [None] * (len(positional) - len(arguments.defaults))
    defaults += arguments.defaults
    for argument, default in [
        *zip(positional, defaults, strict=True),
        *zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True),
    ]:
        if argument.arg not in ("self", "cls"):
            yield argument.arg, None if default is None else ast.unparse(default)
