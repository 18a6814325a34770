"""Cut a Markdown document into sections with their code blocks and tables, as far as a reference manual needs it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

HEADING = re.compile(r"^(#{1,6})\s+(.*)$")
FENCE = re.compile(r"^(`{3,})(\w*)\s*$")


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
            section.blocks.append(Block(fence[2], label, "\n".join(_until(lines, fence[1]))))
            section.text.append("")
        elif line.startswith("|"):
            section.rows.append([cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]])
        else:
            section.text.append(line)
    yield section


def _until(lines: Iterator[str], fence: str) -> Iterator[str]:
    for line in lines:
        if line.rstrip() == fence:
            return
        yield line
