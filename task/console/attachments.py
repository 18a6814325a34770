"""Local files: attached to the next message, and written from the attachments of an answer."""

import asyncio
import base64
import binascii
import re
import stat
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from mimetypes import guess_extension, guess_type
from pathlib import Path, PurePosixPath
from urllib.parse import unquote

from task.conversation.inputs import user_message
from task.conversation.messages import Attachment, Message, Role
from task.core_client.files import DialFiles
from task.errors import InvalidRequest, ToolError
from task.llm.pictures import MAX_IMAGE_BYTES
from task.product.framework import ConsoleProduct
from task.runs.request import RunCaller

MAX_BYTES = 200 * 2**20  # of a file that is saved
IN_FOLDER = "Files in the working directory:"
_ADVICE = "Without one the model reads files of the working directory only, where its tools may."
_MENTION = re.compile(r'(?:^|(?<=\s))@(?:"([^"\n]+)"|((?:\\.|[^\s\\])+))')


@dataclass(frozen=True, slots=True)
class AttachedFile:
    """A local file of the next message. Without `stored` it stays where it is, and tools of the workspace read it."""

    path: Path
    name: str
    stored: Attachment | None = None


def message_with(text: str, files: Sequence[AttachedFile]) -> Message:
    """The user's message with these files."""
    local = [f"- {file.name}" for file in files if file.stored is None]
    whole = "\n\n".join(filter(None, (text, "\n".join([IN_FOLDER, *local]) if local else "")))
    return user_message(Message(Role.USER, whole, attachments=tuple(file.stored for file in files if file.stored)))


def mentioned(text: str, folder: Path) -> list[Path]:
    """The files that a message names as `@path` or `@"a path"`; words that name no file are just words."""
    found: dict[Path, None] = {}
    for quoted, plain in _MENTION.findall(text):
        name = quoted or unquoted(plain)
        for candidate in (name, name.rstrip(".,;:!?)")):  # the end of a sentence
            try:
                if candidate and (path := local_path(candidate, folder)).is_file():
                    found[path] = None
                    break
            except (OSError, ValueError):
                break
    return list(found)


async def attach(product: ConsoleProduct, caller: RunCaller, path: Path) -> AttachedFile:
    """The file at `path`, ready for a message.

    It is uploaded where there is a DIAL Core. Otherwise a picture travels in the message, and a file in the working
    directory stays there, if the model has tools to read it.

    Raises:
        InvalidRequest: it cannot be read, or there is no way to give it to the model; a sentence for the user.
    """
    most = product.settings.limits.max_upload_bytes
    name, size = await asyncio.to_thread(_inspected, path, product.tools.folder, most)
    kind = guess_type(path.name)[0] or "application/octet-stream"
    no_core = "there is no DIAL Core to store it"
    if caller.core_key:
        content = await asyncio.to_thread(path.read_bytes)
        try:
            url = await product.services.files.upload(path.name, content, kind, caller.core_key)
            return AttachedFile(path, name, Attachment(kind, path.name, url=url))
        except ToolError as error:
            no_core = f"DIAL Core did not take it: {error}"
    if size <= MAX_IMAGE_BYTES and Attachment(kind, path.name, data="").is_picture:
        data = base64.b64encode(await asyncio.to_thread(path.read_bytes)).decode()
        return AttachedFile(path, name, Attachment(kind, path.name, data=data))
    if not Path(name).is_absolute():
        tools = await product.profile.workspace_tools(caller.of_tools())
        if any(product.profile.rules.policy.offers(tool.name) for tool in tools):
            return AttachedFile(path, name)
    raise InvalidRequest(f"{name} cannot be attached: {no_core.removesuffix('.')}. {_ADVICE}")


def _inspected(path: Path, folder: Path, most: int) -> tuple[str, int]:
    try:
        name = str(path.resolve().relative_to(folder.resolve()))
    except (OSError, ValueError, RuntimeError):
        name = str(path)
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):
            raise InvalidRequest(f"{name} is not a file; name files one by one.")
        path.open("rb").close()
    except (OSError, ValueError) as error:
        raise InvalidRequest(f"{name} cannot be read: {getattr(error, 'strerror', None) or error}.") from error
    if found.st_size > most:
        raise InvalidRequest(f"{name} has {found.st_size:,} bytes, {most:,} are allowed; attach the part that matters.")
    return name, found.st_size


def unquoted(name: str) -> str:
    """A file's name without quotes around it or backslashes in it."""
    if len(name) > 1 and name[0] == name[-1] and name[0] in "\"'":
        return name[1:-1]
    return re.sub(r"\\(.)", r"\1", name)


def local_path(name: str, folder: Path) -> Path:
    """The file that a user means by `name`, `~` included."""
    try:
        return folder / Path(name).expanduser()
    except RuntimeError:  # a home that is not there
        return folder / name


async def saved(files: DialFiles, api_key: str, attachment: Attachment, folder: Path) -> Path | None:
    """Where the attachment was written; None: it is only an address.

    Raises:
        InvalidRequest: the folder cannot be written.
        ToolError: DIAL Core does not give the file.
    """
    url, data, kind = attachment.url or "", attachment.data, attachment.type or ""
    if url.startswith("files/") and api_key:
        content = (await files.download(url, api_key, MAX_BYTES)).content
    elif data is None or attachment.reference_url is not None:
        return None
    else:
        content = data.encode()
        if not kind.startswith("text/") and not kind.endswith("json"):
            with suppress(binascii.Error):  # a text after all
                content = base64.b64decode(data, validate=True)

    # Titles of charts and pictures have no extension: their file has one, or their type.
    name = attachment.title or unquote(url) or "attachment"
    usual = ".json" if kind.endswith("+json") else guess_extension(kind) or ""
    if not guess_type(name)[0]:
        name = name.removesuffix(extension := PurePosixPath(unquote(url)).suffix or usual) + extension

    def written() -> Path:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # parts of conversations
        path = _free_path(folder, name)
        path.write_bytes(content)
        return path

    try:
        return await asyncio.to_thread(written)
    except OSError as error:
        raise InvalidRequest(f"{folder} cannot be written: {error.strerror}.") from error


def _free_path(folder: Path, title: str) -> Path:
    # A title is the model's words: only its last part may name a file, and nothing is written over.
    name = "".join(c for c in title.replace("\\", "/").rsplit("/", 1)[-1] if c.isprintable()).strip(". ") or "file"
    wanted = Path(name[-150:])
    number, target = 1, folder / wanted
    while target.exists():
        number += 1
        target = folder / f"{wanted.stem}-{number}{wanted.suffix}"
    return target
