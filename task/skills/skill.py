"""A skill: what its catalogue says of it, and how its files are read."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal

Source = Literal["operator", "workspace", "dial", "picked", "mcp"]


@dataclass(frozen=True, slots=True)
class Skill:
    """One skill, as its source describes it.

    `read` returns a file of it by its path, one of `files`, or its instructions by the path `SKILL.md`. `allowed_tools`
    are the tools that its author restricts it to, None where it names none. Only what the operator wrote (`operator`)
    is trusted; everything else is text from outside.
    """

    name: str
    description: str
    source: Source
    read: Callable[[str], Awaitable[bytes]]
    files: tuple[str, ...] = ()
    allowed_tools: tuple[str, ...] | None = None
