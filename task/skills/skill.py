"""A skill as the Agent Skills standard describes it: a folder with instructions, read leniently and within bounds."""

import json
import logging
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from io import BytesIO
from itertools import islice
from typing import Any, Literal, cast, get_args
from zipfile import ZIP_DEFLATED, ZIP_STORED, BadZipFile, ZipFile

import yaml
from pydantic import BaseModel, Field, ValidationError

from task.conversation.messages import Message, Role
from task.errors import ToolError

logger = logging.getLogger(__name__)

Source = Literal["picked", "workspace", "dial", "operator", "mcp"]  # of two skills of one name, the earlier source's

READ_SKILL = "read_skill"
INSTRUCTIONS = "SKILL.md"
MOST_BYTES = 2**20  # of one file
MOST_FILES, MOST_BYTES_IN_ALL = 100, 8 * 2**20  # of one skill
_MOST_INSTRUCTIONS, _MOST_HEADER, _MOST_DESCRIPTION = 128 * 2**10, 8 * 2**10, 1_024
_HEADER = re.compile(r"\A\ufeff?---[ \t]*\r?\n(.*?)^---[ \t]*\r?$\n?", re.DOTALL | re.MULTILINE)
_NAME = re.compile(r"(?=.{1,64}\Z)[a-z0-9]+(?:-[a-z0-9]+)*")
_BRACKET, _MOST_BRACKETS = re.compile(r"[\[{]"), 100
_FIELD = re.compile(r"^([\w-]+):[ \t]+([^\s\"'|>\[{&*!#].*)$", re.MULTILINE)
_TOOL = re.compile(r"([\w.-]+)(?:\([^()]*\))?")


class Skill(BaseModel, frozen=True):
    """One skill, as its source describes it; its JSON is what the conversation remembers of it.

    `content` are its files by their paths, with its instructions at `SKILL.md`; a skill that is gone has none.
    `allowed_tools` are the tools that its author restricts it to, None where it names none. Only what the operator
    wrote is trusted; everything else is text from outside. `url` is its address in DIAL, if it has one, or how users
    pick it of an MCP server, which has the text.
    """

    name: str
    description: str
    source: Source
    content: dict[str, bytes] = Field(default={}, exclude=True)
    allowed_tools: tuple[str, ...] | None = None
    url: str = ""

    @property
    def files(self) -> list[str]:
        """The paths of its files without the instructions."""
        return sorted(self.content.keys() - {INSTRUCTIONS})

    @property
    def size(self) -> int:
        """The bytes of all its files."""
        return sum(map(len, self.content.values()))


def skill_of(folder: str, content: dict[str, bytes], source: Source, url: str = "") -> Skill:
    """The skill in a folder of this name that has these files.

    Raises:
        ValueError: it cannot be used; the text says why.
    """
    header = _header(content.get(INSTRUCTIONS, b""))
    name, given = header.get("name"), header.get("description")
    if (used := next((one for one in (name, folder) if _NAME.fullmatch(str(one))), None)) is None:
        raise ValueError("its name may have lower-case letters, digits and single hyphens only, at most 64")
    # Invisible letters could show users something else than the model.
    letters = given if isinstance(given, str) else ""
    shown = "".join(letter for letter in letters if letter.isprintable() or letter.isspace())
    if not (description := " ".join(shown.split())[:_MOST_DESCRIPTION]):
        raise ValueError("it has no description")
    allowed = _allowed(header.get("allowed-tools"))
    return Skill(name=used, description=description, source=source, content=content, allowed_tools=allowed, url=url)


def instructions_of(content: bytes) -> str:
    """The text of a `SKILL.md` behind its header."""
    text = content.decode(errors="replace")
    return text[found.end() :].strip() if (found := _HEADER.match(text)) else text


def within_bounds(paths: Iterable[str], read: Callable[[str], bytes]) -> dict[str, bytes]:
    """The files at these paths with plain names, as far as `read` can give them; too large ones are left out.

    Raises:
        ValueError: together they have more than 8 MiB.
    """
    content, room = dict[str, bytes](), MOST_BYTES_IN_ALL
    for path in islice(filter(_is_usable, paths), MOST_FILES + 1):
        try:
            data = read(path)
            if len(data) > MOST_BYTES:
                raise ToolError(f"it has more than {MOST_BYTES:,} bytes")
        except (OSError, ToolError) as error:
            logger.warning("the file %s of a skill is left out: %s", path, error)
            continue
        if (room := room - len(data)) < 0:
            raise ValueError("its files take more than there is room for")
        content[path] = data
    return content


def unpacked(packed: bytes) -> dict[str, bytes]:
    """The files of a ZIP archive `within_bounds`; those of its one folder, if it has only that.

    Raises:
        ValueError: it cannot be read, or is too large.
    """
    try:
        with ZipFile(BytesIO(packed)) as archive:
            names = [item.filename for item in archive.infolist() if item.compress_type in (ZIP_STORED, ZIP_DEFLATED)]
            # What the archive says of sizes may be a lie.
            content = within_bounds(names, lambda name: archive.open(name).read(MOST_BYTES + 1))
    except (BadZipFile, RuntimeError, zlib.error, EOFError, OSError) as error:
        raise ValueError("its archive is broken") from error
    if INSTRUCTIONS in content or len({path.partition("/")[0] for path in content}) != 1:
        return content
    return {path.partition("/")[2]: data for path, data in content.items()}


def catalogue(skills: Iterable[Skill]) -> list[Skill]:
    """The skills by precedence of their sources; of those with one name only the first."""
    found = dict[str, Skill]()
    for skill in sorted(skills, key=lambda skill: get_args(Source).index(skill.source)):
        found.setdefault(skill.name, skill)
    return list(found.values())


def skills_read(messages: Sequence[Message]) -> Iterator[Skill]:
    """The skills that `read_skill` has read in the messages, the latest first; not their text."""
    for message in reversed(messages):
        if message.role is Role.TOOL and message.name == READ_SKILL and message.memo:
            try:
                yield Skill.model_validate_json(message.memo)
            except ValidationError:  # of another version
                continue


class _Plain(yaml.BaseLoader):
    """Makes text, lists and mappings only; refuses what refers to another part, which could grow without bounds."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("aliases are not read")
        return super().compose_node(parent, index)


def _header(content: bytes) -> dict[str, Any]:
    found = _HEADER.match(content[: _MOST_HEADER + 100].decode(errors="replace"))
    # YAML's own reader takes quadratic time for brackets in brackets.
    if not found or len(content) > _MOST_INSTRUCTIONS or len(_BRACKET.findall(found[1])) > _MOST_BRACKETS:
        raise ValueError(
            f"its {INSTRUCTIONS} has no header, or one of more than {_MOST_HEADER:,} bytes, or is too long"
        )
    # Many authors write a colon where YAML needs quotes.
    for text in (found[1], _FIELD.sub(lambda field: f"{field[1]}: {json.dumps(field[2].strip())}", found[1])):
        try:
            header = _Plain(text).get_single_data()
        except (yaml.YAMLError, RecursionError):
            continue
        if isinstance(header, dict):
            return cast("dict[str, Any]", header)
    raise ValueError(f"the header of its {INSTRUCTIONS} is not YAML")


def _is_usable(path: str) -> bool:
    parts = path.split("/")
    plain = all(part.isprintable() and part[:1] not in ("", ".") and part != "__pycache__" for part in parts)
    return plain and len(parts) <= 8 and len(path.encode(errors="replace")) <= 200 and "\\" not in path


def _allowed(given: Any) -> tuple[str, ...] | None:
    if not given and not isinstance(given, list):
        return None
    listed = cast("list[Any]", given) if isinstance(given, list) else [given]
    return tuple(_TOOL.findall(" ".join(item for item in listed if isinstance(item, str))))[:100]
