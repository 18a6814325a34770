"""Local files that go with the next message of a user, at the doors that work in a folder."""

import asyncio
import base64
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from mimetypes import guess_type
from pathlib import Path

from task.conversation.inputs import user_message
from task.conversation.messages import Attachment, Message, Role
from task.core_client.models import Caller
from task.errors import InvalidRequest, ToolError
from task.llm.pictures import MAX_IMAGE_BYTES
from task.product.framework import ConsoleProduct

IN_FOLDER = "Files in the working directory:"
_ADVICE = "Without one the model reads files of the working directory only, where its tools may."


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


async def attach(product: ConsoleProduct, caller: Caller, path: Path) -> AttachedFile:
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
    if caller.api_key:
        content = await asyncio.to_thread(path.read_bytes)
        try:
            url = await product.services.files.upload(path.name, content, kind, caller.api_key)
            return AttachedFile(path, name, Attachment(kind, path.name, url=url))
        except ToolError as error:
            no_core = f"DIAL Core did not take it: {error}"
    if size <= MAX_IMAGE_BYTES and Attachment(kind, path.name, data="").is_picture:
        data = base64.b64encode(await asyncio.to_thread(path.read_bytes)).decode()
        return AttachedFile(path, name, Attachment(kind, path.name, data=data))
    if not Path(name).is_absolute():
        tools = await product.profile.workspace_tools(caller)
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
