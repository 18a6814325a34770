"""Read a context definition in either of its two formats.

## Personas                                     ## Initial Prompt
# a comment                                     ```prompt
persona_catalyst: @personas/catalyst.md         You help the team of …
initial_prompt_template: "You are …"            ```
                                                ## Standards
                                                Prose of the section.
                                                - Coding guide: @/docs/guide.md
"""

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

SECTION_PATTERN = r"^##\s+(.+?)\s*#*\s*$"
PERSONA_SECTIONS = frozenset({"personas", "core_persona_definitions"})
PROMPT_SECTION = "initial_prompt"
UNPLACED = "text before the first section is ignored; give it a heading"
MAX_REFERENCES = 1000
_LONGEST_REFERENCE = 2000

_FENCE = re.compile(r"^\s*(`{3,}|~{3,})")
_COMMENT = re.compile(r"^#(?!#)")
_TEMPLATE = re.compile(r"^#?\s*initial_prompt_template\s*:\s*(?P<value>\S.*)$")
_REFERENCE = re.compile(r"^(?P<bullet>[-*+]\s++)?(?P<title>[^:@\s]++(?>(?:\s++[^:@\s]++)*))\s*+:\s*+@(?P<path>\S.*)$")


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
class Definition:
    """The content of a definition: the prose of its sections by id, its documents in order, the initial prompt.

    `problems` are what is malformed, with its line.
    """

    initial_prompt: str | None = None
    sections: Mapping[str, str] = field(default_factory=dict[str, str])
    references: tuple[Reference, ...] = ()
    problems: tuple[tuple[int, str], ...] = ()


def identifier(title: str) -> str:
    """The id that a title stands for: `Core Persona Definitions` -> `core_persona_definitions`."""
    return re.sub(r"\W+", "_", title.lower()).strip("_")


def persona_id(name: str) -> str:
    """The id by which users choose a persona: `persona_critic` and `Critic` -> `critic`."""
    return identifier(name).removeprefix("persona_")


def parse(text: str, section_pattern: str = SECTION_PATTERN) -> Definition:
    """The definition in `text`; malformed parts are listed as problems and never raise.

    The first group of `section_pattern` is a section's title. Nothing in a fenced block is a reference or a heading.
    """
    parser, heading = _Parser(text), re.compile(section_pattern)
    for number, line in parser.lines:
        if fence := _FENCE.match(line):
            parser.read_fenced(number, line, fence[1])
        elif title := heading.match(line):
            parser.section = identifier(title[1])
            parser.prose.setdefault(parser.section, [])
        elif template := _TEMPLATE.match(line):
            parser.set_prompt(number, parser.read_template(number, template["value"]))
        elif _COMMENT.match(line):
            continue
        elif reference := len(line) < _LONGEST_REFERENCE and _REFERENCE.match(line.strip()):
            parser.add_reference(number, reference)
        else:
            parser.add_prose(number, [line])
    sections = {name: "\n".join(lines).strip() for name, lines in parser.prose.items() if name}
    prompt = parser.prompt if parser.prompt is not None else sections.get(PROMPT_SECTION) or None
    return Definition(prompt, sections, tuple(parser.references.values()), tuple(parser.problems))


class _Parser:
    def __init__(self, text: str) -> None:
        self.lines = iter(enumerate(text.removeprefix("\ufeff").splitlines(), 1))
        self.section = ""
        self.prose: dict[str, list[str]] = {}
        self.references: dict[str, Reference] = {}
        self.prompt: str | None = None
        self.problems: list[tuple[int, str]] = []

    def add_reference(self, number: int, found: re.Match[str]) -> None:
        title, path = found["title"].strip("*_` "), found["path"].strip("\"'`")
        name, persona = identifier(title), self.section in PERSONA_SECTIONS
        if not name:
            self._note(number, "a document needs a name before its path")
        elif known := self.references.get(name):
            self._note(number, f"{title!r} names a document already, on line {known.line}; ignored")
        elif len(self.references) >= MAX_REFERENCES:
            self._note(number, f"more than {MAX_REFERENCES} documents; ignored")
        else:
            self.references[name] = Reference(name, title, path, number, bool(found["bullet"]), persona)

    def read_fenced(self, number: int, opening: str, fence: str) -> None:
        inside, end = list[str](), list[str]()
        for _, line in self.lines:
            if line.strip().startswith(fence) and not line.strip().strip(fence[0]):
                end = [fence]
                break
            inside.append(line)
        else:
            self._note(number, f"the block that {fence} opens is never closed")
        if self.section == PROMPT_SECTION:
            self.set_prompt(number, "\n".join(inside).strip())
        else:
            self.add_prose(number, [opening, *inside, *end])

    def add_prose(self, number: int, lines: Sequence[str]) -> None:
        if self.section:
            self.prose.setdefault(self.section, []).extend(lines)
        elif any(map(str.strip, lines)) and not any(text == UNPLACED for _, text in self.problems):
            self._note(number, UNPLACED)

    def read_template(self, number: int, value: str) -> str:
        if value[0] not in "\"'":
            return value.strip()
        quote, text = value[0], value.rstrip()
        while len(text) < 2 or not text.endswith(quote) or text.endswith(f"\\{quote}"):
            _, line = next(self.lines, (0, None))
            if line is None:
                self._note(number, f"the text that {quote} opens is never closed")
                return text[1:]
            text = f"{text}\n{line.rstrip()}"
        with suppress(json.JSONDecodeError):  # otherwise its backslashes escape nothing
            return str(json.loads(f'"{text[1:-1]}"', strict=False))
        return text[1:-1]

    def set_prompt(self, number: int, text: str) -> None:
        if self.prompt is not None:
            self._note(number, "a second initial prompt is ignored")
        elif text:
            self.prompt = text

    def _note(self, number: int, text: str) -> None:
        self.problems.append((number, text))
