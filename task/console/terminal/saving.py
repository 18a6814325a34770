"""Save the attachments of an answer as files."""

from __future__ import annotations

import asyncio
import base64
import binascii
from mimetypes import guess_extension, guess_type
from pathlib import Path, PurePosixPath
from urllib.parse import unquote

from task.conversation.messages import Attachment
from task.core_client.files import DialFiles
from task.errors import InvalidRequest

MAX_BYTES = 200 * 2**20


async def saved(files: DialFiles, api_key: str, attachment: Attachment, folder: Path) -> Path | None:
    """Where the attachment was written; None: it is only an address.

    Raises:
        InvalidRequest: the folder cannot be written.
        ToolError: DIAL Core does not give the file.
    """
    if attachment.url and attachment.url.startswith("files/") and api_key:
        found = await files.download(attachment.url, api_key, MAX_BYTES)
        content = found.content
    elif attachment.data is not None and attachment.reference_url is None:
        content = decoded(attachment.data, attachment.type or "")
    else:
        return None
    try:
        return await asyncio.to_thread(_written, folder, file_name(attachment), content)
    except OSError as error:
        raise InvalidRequest(f"{folder} cannot be written: {error.strerror}.") from error


def file_name(attachment: Attachment) -> str:
    """The attachment's title with an extension."""
    # Titles of charts and pictures have no extension: their file has one, or their type.
    stored, kind = unquote(attachment.url or ""), attachment.type or ""
    title = attachment.title or stored or "attachment"
    extension = PurePosixPath(stored).suffix or (".json" if kind.endswith("+json") else guess_extension(kind) or "")
    return title if guess_type(title)[0] or title.endswith(extension) else title + extension


def free_name(folder: Path, title: str) -> Path:
    """A file in the folder that does not exist yet."""
    # A title is the model's words: only its last part may name a file, and nothing is written over.
    name = "".join(c for c in title.replace("\\", "/").rsplit("/", 1)[-1] if c.isprintable()).strip(". ") or "file"
    wanted = Path(name[-150:])
    number, target = 1, folder / wanted
    while target.exists():
        number += 1
        target = folder / f"{wanted.stem}-{number}{wanted.suffix}"
    return target


def decoded(data: str, kind: str) -> bytes:
    """The content of an attachment that has none but its data."""
    if kind.startswith("text/") or kind.endswith("json"):
        return data.encode()
    try:
        return base64.b64decode(data, validate=True)
    except binascii.Error:
        return data.encode()


def _written(folder: Path, name: str, content: bytes) -> Path:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # parts of conversations
    path = free_name(folder, name)
    path.write_bytes(content)
    return path
