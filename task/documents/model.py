"""What a document is once it is read: blocks of text, and notes on how it was read."""

from __future__ import annotations

from dataclasses import dataclass

from task.errors import ToolError


class UnsupportedFile(ToolError):
    """A file that no reader can read; the text names the types that can be."""


class NotText(ToolError):
    """Bytes that are not text in any encoding."""


class Unreadable(ToolError):
    """A file of a known format that gives nothing: encrypted, or damaged; the text says which and what would help."""


@dataclass(frozen=True, slots=True)
class Block:
    """A piece of a document; `heading` (a table's header row) is repeated where the block is cut into pages.

    `page` is the number of the document's own page, sheet or slide it stands on, counted from 1, where there is one.
    """

    text: str
    heading: str = ""
    page: int | None = None

    @property
    def whole(self) -> str:
        return "\n".join(filter(None, (self.heading, self.text)))


@dataclass(frozen=True, slots=True)
class Extraction:
    """A document's text, and notes a reader of it should know: encoding, delimiter, what was mended or lost."""

    blocks: tuple[Block, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        return "\n\n".join(block.whole for block in self.blocks)

    @property
    def is_empty(self) -> bool:
        return not any(block.text.strip() or block.heading for block in self.blocks)
