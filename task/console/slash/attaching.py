"""Attach local files to the next message: uploaded to DIAL Core, or left where the model's own tools read them."""

from __future__ import annotations

import asyncio
import base64
import re
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from mimetypes import guess_type
from pathlib import Path

from task.conversation.inputs import Incoming, user_message
from task.conversation.messages import Attachment, Message, Role
from task.errors import InvalidRequest, ToolError
from task.pictures import MAX_IMAGE_BYTES
from task.product.framework import ConsoleProduct
from task.runs.request import RunCaller
from task.tools.models import Caller

_ADVICE = "Without one the model reads files of the working directory only, where its tools may."
IN_FOLDER = "Files in the working directory:"
_MENTION = re.compile(r'(?:^|(?<=\s))@(?:"([^"\n]+)"|((?:\\.|[^\s\\])+))')


@dataclass(frozen=True, slots=True)
class AttachedFile:
    """A local file of the next message. Without `stored` it stays where it is, and tools of the workspace read it."""

    path: Path
    name: str
    stored: Attachment | None = None
    note: str = ""


def message_with(text: str, files: Sequence[AttachedFile]) -> Message:
    """The user's message with these files."""
    local = [f"- {file.name}" for file in files if file.stored is None]
    whole = "\n\n".join(filter(None, (text, "\n".join([IN_FOLDER, *local]) if local else "")))
    return user_message(Incoming(Role.USER, whole, tuple(file.stored for file in files if file.stored is not None)))


def mentioned(text: str, folder: Path) -> list[Path]:
    """The files that a message names as `@path` or `@"a path"`; words that are no file's name are just words."""
    names = [quoted or unquoted(plain) for quoted, plain in _MENTION.findall(text)]
    paths = [found for name in names if (found := _mentioned_file(name, folder)) is not None]
    return list(dict.fromkeys(paths))


async def attach(product: ConsoleProduct, caller: RunCaller, path: Path) -> AttachedFile:
    """The file at `path`, ready for a message.

    It is uploaded where there is a DIAL Core. Otherwise a picture travels in the message, and a file in the working
    directory stays there, if the model has tools to read it.

    Raises:
        InvalidRequest: it cannot be read, or there is no way to give it to the model; a sentence for people.
    """
    name = _shown(path, product.folder)
    size = await asyncio.to_thread(_size, path, name, product.upload_bytes)
    kind = guess_type(path.name)[0] or "application/octet-stream"
    no_core = "there is no DIAL Core to store it"
    if caller.core_key:
        content = await asyncio.to_thread(path.read_bytes)
        try:
            url = await product.services.files.upload(path.name, content, kind, caller.core_key)
            return AttachedFile(path, name, Attachment(kind, path.name, url=url))
        except ToolError as error:
            no_core = f"DIAL Core did not take it: {error}"
    picture = Attachment(kind, path.name, data="")
    if picture.is_picture and size <= MAX_IMAGE_BYTES:
        data = base64.b64encode(await asyncio.to_thread(path.read_bytes)).decode()
        return AttachedFile(path, name, Attachment(kind, path.name, data=data))
    if not Path(name).is_absolute() and await _reads_files(product, caller):
        return AttachedFile(path, name, note="the model reads it in the working directory")
    raise InvalidRequest(f"{name} cannot be attached: {no_core.removesuffix('.')}. {_ADVICE}")


async def _reads_files(product: ConsoleProduct, caller: RunCaller) -> bool:
    async def principal() -> str:
        return caller.owner

    tools = await product.profile.workspace_tools(Caller(caller.core_key, principal))
    return any(product.profile.rules.policy.offers(tool.name) for tool in tools)


def _size(path: Path, name: str, most: int) -> int:
    try:
        found = path.stat()
        if stat.S_ISDIR(found.st_mode):
            raise InvalidRequest(f"{name} is a folder; name the files in it one by one.")
        if not stat.S_ISREG(found.st_mode):
            raise InvalidRequest(f"{name} is not a file; save what it gives and attach that.")
        path.open("rb").close()
    except (OSError, ValueError) as error:
        raise InvalidRequest(f"{name} cannot be read: {getattr(error, 'strerror', None) or error}.") from error
    if found.st_size > most:
        raise InvalidRequest(f"{name} has {found.st_size:,} bytes, {most:,} are allowed; attach the part that matters.")
    return found.st_size


def _shown(path: Path, folder: Path) -> str:
    try:
        return str(path.resolve().relative_to(folder.resolve()))
    except (OSError, ValueError, RuntimeError):
        return str(path)


def unquoted(name: str) -> str:
    """A file's name without quotes around it or backslashes in it."""
    if len(name) > 1 and name[0] == name[-1] and name[0] in "\"'":
        return name[1:-1]
    return re.sub(r"\\(.)", r"\1", name)


def local_path(name: str, folder: Path) -> Path:
    """The file that a person means by `name`, `~` included."""
    try:
        return folder / Path(name).expanduser()
    except RuntimeError:  # a home that is not there
        return folder / name


def _mentioned_file(name: str, folder: Path) -> Path | None:
    for candidate in (name, name.rstrip(".,;:!?)")):  # the end of a sentence
        try:
            if candidate and (path := local_path(candidate, folder)).is_file():
                return path
        except (OSError, ValueError):
            return None
    return None
