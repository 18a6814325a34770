"""Local files: named in a message, and written from the attachments of an answer."""

import asyncio
import base64
import binascii
import re
from contextlib import suppress
from mimetypes import guess_extension, guess_type
from pathlib import Path, PurePosixPath
from urllib.parse import unquote

from task.conversation.messages import Attachment
from task.core_client.files import DialFiles
from task.errors import InvalidRequest

MAX_BYTES = 200 * 2**20  # of a file that is saved
_MENTION = re.compile(r'(?:^|(?<=\s))@(?:"([^"\n]+)"|((?:\\.|[^\s\\])+))')


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
