"""Messages of OpenAI's API as the agent's messages, their files stored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from task.api.edge.identity import ApiCaller
from task.api.openai import schemas as chat
from task.api.openai.files import FileShelf, decoded
from task.conversation.inputs import Incoming, user_message
from task.conversation.messages import Attachment, FunctionCall, Message, Role, ToolCall
from task.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class IncomingMessages:
    """A request's messages without the system prompt that stood in front, which is `prompt`."""

    messages: tuple[Message, ...]
    prompt: str | None = None


@dataclass(frozen=True, slots=True)
class MessageReader:
    """Reads messages; files they carry go to `shelf`."""

    shelf: FileShelf

    async def read(self, caller: ApiCaller, bodies: Sequence[chat.ChatMessage]) -> IncomingMessages:
        """The messages.

        Raises:
            InvalidRequest: they end with an answer, or a file in them cannot be read.
        """
        first, prompt = bodies[0], None
        if isinstance(bodies[-1], chat.AssistantMessage):
            raise InvalidRequest("The last message must be the user's, a system's, or the result of a tool of yours.")
        if isinstance(first, chat.SystemMessage) and len(bodies) > 1:
            prompt, bodies = _text(first.content), bodies[1:]
        messages = [replace(await self._message(caller, body), scrub_pii=bool(body.scrub_pii)) for body in bodies]
        return IncomingMessages(tuple(messages), prompt)

    async def _message(self, caller: ApiCaller, body: chat.ChatMessage) -> Message:
        match body:
            case chat.SystemMessage():
                return Message(Role(body.role), _text(body.content))
            case chat.ToolMessage():
                return Message(Role.TOOL, _text(body.content), tool_call_id=body.tool_call_id)
            case chat.AssistantMessage():
                calls = tuple(
                    ToolCall(call.id, FunctionCall(call.function.name, call.function.arguments))
                    for call in body.tool_calls or ()
                )
                text = _text(body.content) or body.refusal
                # Where the store has this answer, its own message with the results behind it takes this one's place.
                return Message(Role.ASSISTANT, text or (None if calls else ""), tool_calls=calls, unsourced=True)
            case chat.UserMessage():
                return await self._users(caller, body)

    async def _users(self, caller: ApiCaller, body: chat.UserMessage) -> Message:
        if isinstance(body.content, str):
            return Message(Role.USER, body.content)
        parts: list[dict[str, Any]] = []
        files: list[Attachment] = []
        for part in body.content:
            match part:
                case chat.TextPart():
                    parts.append({"type": "text", "text": part.text})
                case chat.ImagePart():
                    parts.append(_picture(part))
                case chat.FilePart():
                    files.append(await self._file(caller, part))
        plain = all(part["type"] == "text" for part in parts)
        content = "\n".join(part["text"] for part in parts) if plain else parts
        return user_message(Incoming(Role.USER, content, tuple(files)))

    async def _file(self, caller: ApiCaller, part: chat.FilePart) -> Attachment:
        given = part.file
        if given.file_id is not None:
            found = await self.shelf.find(caller, given.file_id)
        elif given.file_data is not None:
            content, kind = decoded(given.file_data)
            found = await self.shelf.save(caller, given.filename or "file", content, kind)
        else:
            raise InvalidRequest("A file part needs file_id or file_data.")
        return Attachment(found.content_type, given.filename or found.filename, url=found.url)


def _picture(part: chat.ImagePart) -> dict[str, Any]:
    url = part.image_url.url
    if url.startswith("data:"):
        _, kind = decoded(url)
        if not kind.startswith("image/"):
            raise InvalidRequest("The data URL of a picture must be of an image type.")
    elif not url.startswith(("http://", "https://")):
        raise InvalidRequest("A picture's URL must begin with https:// or data:image/.")
    return {"type": "image_url", "image_url": part.image_url.model_dump(exclude_none=True)}


def _text(content: str | Sequence[chat.TextPart | chat.RefusalPart] | None) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    return "\n".join(part.text for part in content)
