"""What a user picks for a message by typing it: `/skill`, `/server:prompt VALUES` and `@server:uri`."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from task.closing import run_blocking
from task.console.attachments import AttachedFile
from task.console.terminal.rendering import one_line
from task.conversation.messages import Attachment
from task.product.skills import skills_of

if TYPE_CHECKING:
    from task.console.controller import FrameworkController
    from task.skills import Skill

NOTHING = "There are no skills, and no MCP server has prompts."
_RESOURCE = re.compile(r"(?:^|(?<=\s))@([\w-]+):(\S+)")


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
        known = run_blocking(hub.prompts, caller)
        names = next(
            ([each.name for each in item.arguments] for item in known if (item.server, item.name) == (server, wanted)),
            (),
        )
        text = run_blocking(hub.prompt, caller, server, wanted, values_of(argument, names))
        console.attached.append(AttachedFile(Path(name), name, Attachment("text/plain", name, data=text)))
    elif server in (skill.name for skill in skills(console)):
        console.conversation.skills = (server,)
    else:
        return False
    return True


def values_of(argument: str, names: Sequence[str]) -> dict[str, str]:
    """The values of a prompt's arguments: words `name=value`, and others in the order of the names, the last one with
    all that is left."""
    try:
        words = shlex.split(argument)
    except ValueError:  # an apostrophe
        words = argument.split()
    given, plain = dict[str, str](), list[str]()
    for word in words:
        name, sign, value = word.partition("=")
        if sign and name in names:
            given[name] = value
        else:
            plain.append(word)
    free = [name for name in names if name not in given]
    if free and len(plain) > len(free):
        plain[len(free) - 1 :] = [" ".join(plain[len(free) - 1 :])]
    return given | dict(zip(free, plain, strict=False))


def resources_in(console: FrameworkController, text: str) -> list[AttachedFile]:
    """The resources of servers that a message names; words that name none are just words."""
    hub, caller, found = console.product.services.mcp, console.caller.of_tools(), list[AttachedFile]()
    named = _RESOURCE.findall(text)
    listed = run_blocking(hub.resources, caller) if named else ()
    for server, uri in named:
        for candidate in (uri, uri.rstrip(".,;:!?)")):  # the end of a sentence
            if any(item.server == server and item.covers(candidate) for item in listed):
                name = f"@{server}:{candidate}"
                found.append(AttachedFile(Path(name), name, run_blocking(hub.resource, caller, server, candidate)))
                break
    return found


def completions(console: FrameworkController, sign: str) -> list[str]:
    """What may follow a slash or an `@`, beside commands and files."""
    hub, caller = console.product.services.mcp, console.caller.of_tools()
    if sign == "@":
        found = [f"@{item.server}:{item.uri}" for item in run_blocking(hub.resources, caller)]
    else:
        found = [f"/{skill.name}" for skill in skills(console)]
        found += [f"/{item.server}:{item.name}" for item in run_blocking(hub.prompts, caller)]
    return [name for name in found if name.isprintable() and " " not in name]


def list_skills(console: FrameworkController, argument: str) -> str:
    prompts = run_blocking(console.product.services.mcp.prompts, console.caller.of_tools())
    found = [f"- /{skill.name} ({skill.source}): {skill.description}" for skill in skills(console)]
    found += [f"- /{item.server}:{item.name} (prompt): {item.description}" for item in prompts]
    return "\n".join(map(one_line, found)) or NOTHING
