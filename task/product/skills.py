"""The skills of a turn: folders of the operator and the workspace, resources of DIAL Core, what the user picked."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

import aiohttp
from yarl import URL

from task.conversation.messages import FunctionCall, Message, Role, ToolCall, assistant, unanswered
from task.core_client.files import OwnersKey, is_path
from task.errors import InvalidRequest, ToolError
from task.llm.base import new_call_id
from task.llm.dial import core_headers
from task.llm.transport import fetched
from task.skills.skill import (
    INSTRUCTIONS,
    MOST_BYTES,
    MOST_BYTES_IN_ALL,
    READ_SKILL,
    Skill,
    Source,
    catalogue,
    skill_of,
    skills_read,
    unpacked,
    within_bounds,
)
from task.tools.base import BaseTool
from task.tools.models import Caller
from task.tools.skills.read_skill_tool import WORKSPACE_FOLDER, ReadSkillTool
from task.tools.workspace.root import FileLimits, Workspace

if TYPE_CHECKING:
    from task.product.profile import Profile, Services
    from task.settings import Settings

logger = logging.getLogger(__name__)

MOST_SKILLS, MOST_PICKED = 100, 10  # of one folder, and for one message
MOST_BYTES_OF_FOLDER, MOST_BYTES_OF_TURN = 32 * 2**20, 16 * 2**20  # the second of skills of DIAL Core
SECONDS = 10.0  # for all skills that a turn reads from Core
_ADDRESS = re.compile(r"skills/[^/]+/")
PICKED = "pick_"  # begins the ids of calls that the user's choice makes, by which the page shows what was chosen
TRUSTED = "skills.trusted"  # in the data folder: digests of workspaces' skills, with + or - in front as the user agreed


def skills_in(root: Path, source: Source) -> list[Skill]:
    """The skills in the folders of `root`, a real path, with all their files as they are now.

    What cannot be used is left out, links out of `root` too; the log has the reason.
    """
    found, room = list[Skill](), MOST_BYTES_OF_FOLDER
    try:
        with Workspace(root, limits=FileLimits(read_bytes=MOST_BYTES)) as folder:
            if folder.path != root:
                raise ToolError("a link leads there")
            for name in [item[:-1] for item in folder.entries(".") if item.endswith("/")]:
                try:
                    if len(found) == MOST_SKILLS or INSTRUCTIONS not in folder.entries(name):
                        continue
                    real = folder.normalised(name)
                    paths = (INSTRUCTIONS, *(path.removeprefix(f"{real}/") for path in folder.files(real)))
                    content = within_bounds(paths, lambda path, name=name: folder.read(f"{name}/{path}"))
                    skill = skill_of(name, content, source)
                    if skill.size > room:
                        raise ValueError("the skills of this folder take more than there is room for")
                    room -= skill.size
                    found.append(skill)
                except (OSError, ValueError, ToolError) as error:
                    logger.warning("the skill %s/%s is left out: %s", root, name, error)
    except (OSError, ToolError) as error:
        logger.warning("the folder of skills %s cannot be read: %s", root, error)
    return found


def operator_skills(folders: Iterable[Path]) -> list[Skill]:
    """The skills in the folders of the settings."""
    roots = [Path(os.path.realpath(folder)) for folder in folders]
    return catalogue(skill for root in roots for skill in skills_in(root, "operator"))


def workspace_skills(
    settings: Settings, folder: Path, ask: Callable[[Sequence[Skill]], bool] | None = None
) -> list[Skill]:
    """The skills that a workspace brings, if the user has agreed to exactly these files.

    Where that is open, `ask` is called, and its answer is kept.
    """
    root, kept = Path(os.path.realpath(folder)) / WORKSPACE_FOLDER, settings.data_dir / TRUSTED
    if not settings.skills.workspace or not root.is_dir():
        return []
    skills = skills_in(root, "workspace")
    digest = sha256(repr([(skill.name, skill.content) for skill in skills]).encode()).hexdigest()
    answers = kept.read_text("ascii", "replace").split() if kept.is_file() else []
    answer = next((item[0] for item in reversed(answers) if item[1:] == digest), "")
    if skills and not answer and ask is not None:
        answer = "+" if ask(skills) else "-"
        kept.parent.mkdir(parents=True, exist_ok=True)
        with open(kept, "a", encoding="ascii") as file:
            file.write(f"{answer}{digest}\n")
    return skills if answer == "+" else []


async def dial_skill(session: aiohttp.ClientSession, endpoint: str, url: str, api_key: str) -> Skill | None:
    """The skill at `skills/{bucket}/{path}`; None where DIAL Core has none there for this key, or it cannot be used."""
    # A key that several owners share could read the skills of all of them.
    if not _ADDRESS.match(url) or not is_path(url) or isinstance(api_key, OwnersKey):
        return None
    place = URL(f"{endpoint.rstrip('/')}/v2/{url}", encoded=True)
    try:
        # Longer than the caller waits for all: aiohttp would take an end at the same moment for its own.
        status, packed, _ = await fetched(session, place, core_headers(api_key), 2 * SECONDS, MOST_BYTES_IN_ALL)
        name = unquote(url.rpartition("/")[2])
        return await asyncio.to_thread(lambda: skill_of(name, unpacked(packed), "dial", url)) if status == 200 else None
    except (aiohttp.ClientError, TimeoutError, OverflowError, ValueError) as error:
        logger.info("a skill of DIAL Core is left out: %s", error)
        return None


async def skills_of(
    services: Services,
    profile: Profile,
    caller: Caller,
    picked: Sequence[str] = (),
    messages: Sequence[Message] = (),
) -> list[Skill]:
    """The skills of a conversation, by precedence: those that the user picks now by name or address, those picked
    earlier in its `messages`, and those of the profile.

    Those of an application that DIAL Core does not give the caller in time, or does not know yet, are left out.

    Raises:
        InvalidRequest: the user picks too many, or one that is not there.
    """
    if len(picked) > MOST_PICKED:
        raise InvalidRequest(f"At most {MOST_PICKED} skills can be picked for one message.")
    earlier = catalogue(skill for skill in skills_read(messages) if skill.source == "picked")[:MOST_PICKED]
    chosen = [*(url for url in picked if "/" in url), *(skill.url for skill in earlier)]
    found, room = dict[str, Skill](), MOST_BYTES_OF_TURN
    with suppress(TimeoutError):
        async with asyncio.timeout(SECONDS):
            for url in dict.fromkeys((*chosen, *profile.skill_urls)):
                skill = await dial_skill(services.session, services.endpoint, url, caller.api_key)
                if skill is not None and skill.size <= room:
                    room -= skill.size
                    found[url] = skill.model_copy(update={"source": "picked"}) if url in chosen else skill
    skills = catalogue([*found.values(), *earlier, *profile.skills])
    known = {*found, *(skill.name for skill in skills)}
    if unknown := next((one for one in picked if one not in known), None):
        raise InvalidRequest(f"There is no skill {unknown[:80]!r} for you. There are: {', '.join(known) or 'none'}.")
    return skills


async def prompts_of(services: Services, profile: Profile, caller: Caller) -> list[Skill]:
    """The prompts of MCP servers as skills; an application has none, as it names what it has."""
    items = [] if profile.application else await services.mcp.prompts(caller)
    known = [(item.pick[1:], item) for item in items]
    return [
        Skill(name=name, description=item.description or item.title, source="mcp", url=item.pick)
        for name, item in known
        if name.partition(":")[0] != profile.withheld
    ]


def skill_tools(services: Services, profile: Profile, skills: Sequence[Skill]) -> list[BaseTool]:
    """The tool that reads the skills, where operator and application let the turn have it."""
    if profile.builtin is not None and not profile.kept([ReadSkillTool(())]):
        skills = [skill for skill in skills if skill.source == "dial"]  # which the application names
    allowed = skills and (not profile.application or services.applications.allows(READ_SKILL))
    return [ReadSkillTool(skills, services.mcp.picked)] if allowed and profile.rules.policy.offers(READ_SKILL) else []


def picked_calls(messages: Sequence[Message], picked: Sequence[str], tools: Sequence[BaseTool]) -> list[Message]:
    """The message with the calls that read what the user picked; none where the turn only continues another.

    Of two skills of one name only the first is read.

    Raises:
        InvalidRequest: the turn has no tool for them.
    """
    if unanswered(messages) or messages[-1].role is not Role.USER:
        return []
    readable = [skill for tool in tools if isinstance(tool, ReadSkillTool) for skill in tool.skills.values()]
    named = {place: skill.name for skill in readable for place in (skill.name, skill.url)}
    if not (names := dict.fromkeys(named[item] for item in picked if item in named)):
        raise InvalidRequest("Skills cannot be picked here: read_skill is not among the tools that may be offered.")
    calls = [ToolCall(PICKED + new_call_id(), FunctionCall(READ_SKILL, json.dumps({"name": name}))) for name in names]
    return [assistant(None, calls)]
