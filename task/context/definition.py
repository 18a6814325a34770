"""Read a context definition in either of its two formats.

## Personas                                     ## Initial Prompt
# a comment                                     ```prompt
persona_catalyst: @personas/catalyst.md         You help the team of …
initial_prompt_template: "You are …"            ```
                                                ## Standards
                                                Prose of the section.
                                                - Coding guide: @/docs/guide.md
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

SECTION_PATTERN = r"^##\s+(.+?)\s*#*\s*$"
PERSONA_SECTIONS = frozenset({"personas", "core_persona_definitions"})
PROMPT_SECTION = "initial_prompt"
MAX_REFERENCES = 1000
_LONGEST_REFERENCE = 2000

_FENCE = re.compile(r"^\s*(`{3,}|~{3,})")
_COMMENT = re.compile(r"^#(?!#)")
_TEMPLATE = re.compile(r"^#?\s*initial_prompt_template\s*:\s*(?P<value>\S.*)$")
_REFERENCE = re.compile(r"^(?P<bullet>[-*+]\s++)?(?P<title>[^:@\s]++(?:\s++[^:@\s]++)*+)\s*+:\s*+@(?P<path>\S.*)$")


@dataclass(frozen=True, slots=True)
class Reference:
    """A document that a definition names; `rooted`: its leading slash stands for the definition's folder."""

    id: str
    title: str
    path: str
    line: int
    rooted: bool = False
    persona: bool = False


@dataclass(frozen=True, slots=True)
class Problem:
    line: int
    text: str


@dataclass(frozen=True, slots=True)
class Definition:
    """The content of a definition: the prose of its sections by id, its documents in order, the initial prompt."""

    initial_prompt: str | None = None
    sections: Mapping[str, str] = field(default_factory=dict[str, str])
    references: tuple[Reference, ...] = ()
    problems: tuple[Problem, ...] = ()


def identifier(title: str) -> str:
    """The id that a title stands for: `Core Persona Definitions` -> `core_persona_definitions`."""
    return re.sub(r"\W+", "_", title.lower()).strip("_")


def persona_id(name: str) -> str:
    """The id by which people choose a persona: `persona_critic` and `Critic` -> `critic`."""
    return identifier(name).removeprefix("persona_")


def parse(text: str, section_pattern: str = SECTION_PATTERN) -> Definition:
    """The definition in `text`; malformed parts are listed as problems and never raise.

    The first group of `section_pattern` is a section's title. Nothing in a fenced block is a reference or a heading.
    """
    parser = _Parser(re.compile(section_pattern))
    lines = enumerate(text.removeprefix("\ufeff").splitlines(), 1)
    for number, line in lines:
        parser.read(number, line, lines)
    return parser.definition()


_Lines = Iterator[tuple[int, str]]


class _Parser:
    def __init__(self, heading: re.Pattern[str]) -> None:
        self._heading = heading
        self._section = ""
        self._prose: dict[str, list[str]] = {}
        self._references: dict[str, Reference] = {}
        self._prompt: str | None = None
        self._problems: list[Problem] = []
        self._unplaced = False

    def read(self, number: int, line: str, following: _Lines) -> None:
        if fence := _FENCE.match(line):
            self._fenced(number, line, fence[1], following)
        elif heading := self._heading.match(line):
            self._section = identifier(heading[1])
            self._prose.setdefault(self._section, [])
        elif template := _TEMPLATE.match(line):
            self._set_prompt(number, self._template(number, template["value"], following))
        elif _COMMENT.match(line):
            return
        elif reference := len(line) < _LONGEST_REFERENCE and _REFERENCE.match(line.strip()):
            title = reference["title"].strip("*_` ")
            path, persona = reference["path"].strip("\"'`"), self._section in PERSONA_SECTIONS
            name, known = identifier(title), self._references.get(identifier(title))
            if not name:
                self._note(number, "a document needs a name before its path")
            elif known is not None:
                self._note(number, f"{title!r} names a document already, on line {known.line}; ignored")
            elif len(self._references) >= MAX_REFERENCES:
                self._note(number, f"more than {MAX_REFERENCES} documents; ignored")
            else:
                self._references[name] = Reference(name, title, path, number, bool(reference["bullet"]), persona)
        else:
            self._add_prose(number, [line])

    def definition(self) -> Definition:
        sections = {name: "\n".join(lines).strip() for name, lines in self._prose.items() if name}
        prompt = self._prompt if self._prompt is not None else sections.get(PROMPT_SECTION) or None
        return Definition(prompt, sections, tuple(self._references.values()), tuple(self._problems))

    def _fenced(self, number: int, opening: str, fence: str, following: _Lines) -> None:
        inside: list[str] = []
        closed = False
        for _, line in following:
            closed = line.strip().startswith(fence) and not line.strip().strip(fence[0])
            if closed:
                break
            inside.append(line)
        if not closed:
            self._note(number, f"the block that {fence} opens is never closed")
        if self._section == PROMPT_SECTION:
            self._set_prompt(number, "\n".join(inside).strip())
        else:
            self._add_prose(number, [opening, *inside, *([fence] if closed else ())])

    def _add_prose(self, number: int, lines: Sequence[str]) -> None:
        if self._section:
            self._prose.setdefault(self._section, []).extend(lines)
        elif any(map(str.strip, lines)) and not self._unplaced:
            self._unplaced = True
            self._note(number, "text before the first section is ignored; give it a heading")

    def _template(self, number: int, value: str, following: _Lines) -> str:
        if value[0] not in "\"'":
            return value.strip()
        quote, text = value[0], value.rstrip()
        while len(text) < 2 or not text.endswith(quote) or text.endswith(f"\\{quote}"):
            _, line = next(following, (0, None))
            if line is None:
                self._note(number, f"the text that {quote} opens is never closed")
                return text[1:]
            text = f"{text}\n{line.rstrip()}"
        with suppress(json.JSONDecodeError):  # otherwise its backslashes are no escapes
            return str(json.loads(f'"{text[1:-1]}"', strict=False))
        return text[1:-1]

    def _set_prompt(self, number: int, text: str) -> None:
        if self._prompt is not None:
            self._note(number, "a second initial prompt is ignored")
        elif text:
            self._prompt = text

    def _note(self, number: int, text: str) -> None:
        self._problems.append(Problem(number, text))
