"""What a user picks for a message by typing it: `/skill`, `/server:prompt VALUES` and `@server:uri`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from task.closing import run_blocking
from task.console.attachments import AttachedFile
from task.console.terminal.rendering import one_line
from task.product.skills import skills_of

if TYPE_CHECKING:
    from task.console.controller import FrameworkController
    from task.skills import Skill

NOTHING = "There are no skills, and no MCP server has prompts."
_RESOURCE = re.compile(r"(?:^|(?<=\s))(@([\w-]+):(\S*[^\s.,;:!?)]))")  # without the end of a sentence


def skills(console: FrameworkController) -> list[Skill]:
    product = console.product
    return run_blocking(skills_of, product.services, product.profile, console.caller.of_tools())


def pick(console: FrameworkController, name: str, argument: str) -> bool:
    """Put the skill, or the prompt of a server, that `/name` means beside the next message; False: it means neither.

    Raises:
        AgentError: the server does not give the prompt.
    """
    hub, caller = console.product.services.mcp, console.caller.of_tools()
    server, is_prompt, wanted = name.removeprefix("/").partition(":")
    if is_prompt:
        known = {(item.server, item.name): item.arguments for item in run_blocking(hub.prompts, caller)}
        names = [item.name for item in known.get((server, wanted), ())]
        words = argument.split(maxsplit=max(len(names) - 1, 0))  # the last argument has all that is left
        given = dict(zip(names, words, strict=False))
        console.attached.append(AttachedFile(Path(name), name, run_blocking(hub.prompt, caller, server, wanted, given)))
    elif server in (skill.name for skill in skills(console)):
        console.conversation.skills = (server,)
    else:
        return False
    return True


def resources_in(console: FrameworkController, text: str) -> list[AttachedFile]:
    """The resources of servers that a message names; words that name none are just words."""
    hub, caller, found = console.product.services.mcp, console.caller.of_tools(), list[AttachedFile]()
    named = _RESOURCE.findall(text)
    listed = run_blocking(hub.resources, caller) if named else ()
    for name, server, uri in named:
        if any(item.server == server and item.covers(uri) for item in listed):
            found.append(AttachedFile(Path(name), name, run_blocking(hub.resource, caller, server, uri)))
    return found


def completions(console: FrameworkController, word: str) -> list[str]:
    """What may take the place of a word that begins with a slash or an `@`, beside commands and files."""
    hub, caller, found = console.product.services.mcp, console.caller.of_tools(), list[str]()
    if word[0] == "@":
        found = [f"@{item.server}:{item.uri}" for item in run_blocking(hub.resources, caller)]
    else:
        found = [f"/{skill.name}" for skill in skills(console)]
        found += [f"/{item.server}:{item.name}" for item in run_blocking(hub.prompts, caller)]
    return [name for name in found if name.startswith(word) and name.isprintable() and " " not in name]


def list_skills(console: FrameworkController, argument: str) -> str:
    prompts = run_blocking(console.product.services.mcp.prompts, console.caller.of_tools())
    found = [f"- /{skill.name} ({skill.source}): {skill.description}" for skill in skills(console)]
    found += [f"- /{item.server}:{item.name} (prompt): {item.description}" for item in prompts]
    return "\n".join(map(one_line, found)) or NOTHING
