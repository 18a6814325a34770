"""What a user picks for a message by typing it: `/skill`, `/server:prompt VALUES` and `@server:uri`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from task.closing import run_blocking
from task.console.attachments import AttachedFile
from task.console.terminal.rendering import one_line
from task.product.skills import skills_of

if TYPE_CHECKING:
    from task.console.controller import FrameworkController
    from task.skills import Skill
    from task.tools.mcp.offers import MCPItem

NOTHING = "There are no skills, and no MCP server has prompts."
_RESOURCE = re.compile(r"(?:^|(?<=\s))(@[\w-]+:\S*[^\s.,;:!?)])")  # without the end of a sentence


def skills(console: FrameworkController) -> list[Skill]:
    product = console.product
    return run_blocking(skills_of, product.services, product.profile, console.caller.of_tools())


def items(console: FrameworkController) -> list[MCPItem]:
    return run_blocking(console.product.services.mcp.items, console.caller.of_tools())


def pick(console: FrameworkController, name: str, argument: str) -> bool:
    """Put the skill, or the prompt of a server, that `/name` means beside the next message; False: it means neither.

    Raises:
        AgentError: the server does not give the prompt.
    """
    if ":" in name:
        known = next((list(item.arguments) for item in items(console) if item.pick == name), [])
        words = argument.split(maxsplit=max(len(known) - 1, 0))  # the last argument has all that is left
        console.attached.append(_picked(console, name, dict(zip(known, words, strict=False))))
    elif (own := name.removeprefix("/")) in (skill.name for skill in skills(console)):
        console.conversation.skills = (own,)
    else:
        return False
    return True


def resources_in(console: FrameworkController, text: str) -> list[AttachedFile]:
    """The resources of servers that a message names; words that name none are just words."""
    named = _RESOURCE.findall(text)
    listed = items(console) if named else []
    return [_picked(console, name) for name in named if any(item.covers(name) for item in listed)]


def completions(console: FrameworkController, word: str) -> list[str]:
    """What may take the place of a word that begins with a slash or an `@`, beside commands and files."""
    found = [f"/{skill.name}" for skill in skills(console)] if word[0] == "/" else []
    found += [item.pick for item in items(console)]
    return [name for name in found if name.startswith(word) and name.isprintable() and " " not in name]


def list_skills(console: FrameworkController, argument: str) -> str:
    found = [f"- /{skill.name} ({skill.source}): {skill.description}" for skill in skills(console)]
    found += [f"- {item.pick} (prompt): {item.description}" for item in items(console) if item.pick[0] == "/"]
    return "\n".join(map(one_line, found)) or NOTHING


def _picked(console: FrameworkController, name: str, arguments: Mapping[str, str] | None = None) -> AttachedFile:
    found = run_blocking(console.product.services.mcp.picked, console.caller.of_tools(), name, arguments)
    return AttachedFile(Path(name), name, found)
