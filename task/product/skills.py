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
from time import monotonic
from typing import TYPE_CHECKING
from urllib.parse import unquote

import aiohttp
from cachetools import LRUCache
from yarl import URL

from task.conversation.messages import FunctionCall, Message, Role, ToolCall, assistant, unanswered
from task.core_client.files import OwnersKey, is_path
from task.errors import InvalidRequest, ToolError
from task.llm.base import new_call_id
from task.llm.dial import core_headers
from task.llm.transport import fetched
from task.skills.skill import (
    BROKEN,
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
MOST_BYTES_OF_TURN = 16 * 2**20  # of skills of DIAL Core
SECONDS = 10.0  # for all skills that a turn reads from Core
KEPT_BYTES, SKILL_BYTES = 64 * 2**20, 2**14  # of all skills of DIAL Core in this process; of each beside its files
_ADDRESS = re.compile(r"skills/[^/]+/")
PICKED = "pick_"  # begins the ids of calls that the user's choice makes, by which the page shows what was chosen
TRUSTED = "skills.trusted"  # in the data folder: digests of workspaces' skills, with + or - in front as the user agreed


def skills_in(
    root: Path, source: Source, left_out: Callable[[str], object] = logger.warning
) -> tuple[list[Skill], str]:
    """The skills in the folders of `root`, a real path, with all their files as they are now, and a digest of these.

    What cannot be used is left out, links out of `root` too; `left_out` is called with the reason.
    """
    found, digest, room = list[Skill](), sha256(), 4 * MOST_BYTES_IN_ALL
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
                    content = within_bounds(paths, lambda path, name=name: folder.read(f"{name}/{path}"), room)
                    found.append(skill_of(name, content, source))
                    room -= found[-1].size
                    digest.update(repr((name, content)).encode())
                except (OSError, ValueError, ToolError) as error:
                    left_out(f"the skill {root}/{name} is left out: {error}")
    except (OSError, ToolError) as error:
        left_out(f"the folder of skills {root} cannot be read: {error}")
    return found, digest.hexdigest()


def operator_skills(folders: Iterable[Path], left_out: Callable[[str], object] = logger.warning) -> list[Skill]:
    """The skills in the folders of the settings; `left_out` as for `skills_in`."""
    roots = [Path(os.path.realpath(folder)) for folder in folders]
    return catalogue(skill for root in roots for skill in skills_in(root, "operator", left_out)[0])


def workspace_skills(
    settings: Settings, folder: Path, ask: Callable[[Sequence[Skill]], bool] | None = None
) -> list[Skill]:
    """The skills that a workspace brings, if the user has agreed to exactly these files.

    Where that is open, `ask` is called, and its answer is kept.
    """
    root, kept = Path(os.path.realpath(folder)) / WORKSPACE_FOLDER, settings.data_dir / TRUSTED
    if not settings.skills.workspace or not root.is_dir():
        return []
    skills, digest = skills_in(root, "workspace")
    answers = kept.read_text("ascii", "replace").split() if kept.is_file() else []
    answer = next((item[0] for item in reversed(answers) if item[1:] == digest), "")
    if skills and not answer and ask is not None:
        answer = "+" if ask(skills) else "-"
        kept.parent.mkdir(parents=True, exist_ok=True)
        with open(kept, "a", encoding="ascii") as file:
            file.write(f"{answer}{digest}\n")
    return skills if answer == "+" else []


class DialSkills:
    """Skills that are resources of DIAL Core, each read with the key of who uses it.

    What was read is kept by its ETag: Core decides in every turn whether it may be used again.
    """

    def __init__(self, session: aiohttp.ClientSession, endpoint: str) -> None:
        self._session, self._endpoint = session, endpoint.rstrip("/")
        self._kept: LRUCache[str, tuple[str, Skill]] = LRUCache(KEPT_BYTES, lambda kept: kept[1].size + SKILL_BYTES)

    async def read(self, url: str, api_key: str, source: Source, most: int, seconds: float = SECONDS) -> Skill:
        """The skill at `skills/{bucket}/{path}`, of at most `most` bytes, if Core answers within `seconds`.

        Raises:
            ToolError: Core has none there for this key, or it cannot be used.
        """
        etag, skill = self._kept.get(url, ("", None))
        headers = core_headers(api_key) | ({"If-None-Match": etag} if etag else {})
        place, status, packed = URL(f"{self._endpoint}/v2/{url}", encoded=True), 403, b""
        try:
            # A key that several owners share could read the skills of all of them.
            if _ADDRESS.match(url) and is_path(url) and not isinstance(api_key, OwnersKey):
                status, packed, etag = await fetched(self._session, place, headers, seconds, MOST_BYTES_IN_ALL)
            if status == 200:
                name = unquote(url.rpartition("/")[2])
                skill = await asyncio.to_thread(lambda: skill_of(name, unpacked(packed, most), "dial", url))
                self._kept[url] = etag, skill
            if skill is None or status not in (200, 304) or skill.size > most:
                raise ValueError(f"status {status}, or no room")
            return skill.model_copy(update={"source": source})
        except (aiohttp.ClientError, TimeoutError, OverflowError, *BROKEN) as error:
            logger.info("a skill of DIAL Core is left out: %s", error)
            raise ToolError(f"The skill {url[:200]!r} is gone, not yours to use, or cannot be read.") from error


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
    end = monotonic() + SECONDS
    for url in dict.fromkeys((*chosen, *profile.skill_urls)):
        if (left := end - monotonic()) <= 0:
            break
        with suppress(ToolError):
            source: Source = "picked" if url in chosen else "dial"
            found[url] = await services.skills.read(url, caller.api_key, source, room, left)
            room -= found[url].size
    skills = catalogue([*found.values(), *earlier, *profile.skills])
    known = {*found, *(skill.name for skill in skills)}
    if unknown := next((one for one in picked if one not in known), None):
        raise InvalidRequest(f"There is no skill {unknown[:80]!r} for you. There are: {', '.join(known) or 'none'}.")
    return skills


def skill_tools(
    services: Services, profile: Profile, skills: Sequence[Skill], tools: Sequence[BaseTool]
) -> list[BaseTool]:
    """The tool that reads the skills, where operator and application let the turn have it; `tools` are the others."""
    if profile.builtin is not None and not profile.kept([ReadSkillTool((), ())]):
        skills = [skill for skill in skills if skill.source == "dial"]  # which the application names
    allowed = skills and (not profile.application or services.applications.allows(READ_SKILL))
    offered = allowed and profile.rules.policy.offers(READ_SKILL)
    return [ReadSkillTool(skills, [item.name for item in tools])] if offered else []


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
