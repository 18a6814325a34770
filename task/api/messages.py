"""The bodies of chat requests, and their messages as the agent's own, with the files in them stored."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import ConfigDict, Field

from task.api.identity import ApiCaller
from task.api.schemas import UNKNOWN_TYPE, Filled, Json, RequestModel, Seed, Text, TextOr, Tokens, Tools
from task.conversation.inputs import MOST_MESSAGES, user_message
from task.conversation.messages import Attachment, FunctionCall, Message, Role, ToolCall
from task.errors import InvalidRequest

if TYPE_CHECKING:
    from task.api.files import FileShelf

Mode = Literal["default", "ask", "read_only"]
Name = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
SessionId = Annotated[str, Field(min_length=1, max_length=100)]
MOST_SKILLS = 10  # of one message
Label = Annotated[str, Field(min_length=1, max_length=200)]


class TextPart(RequestModel):
    type: Literal["text"]
    text: Text


class RefusalPart(RequestModel):
    """The assistant's refusal, in place of an answer."""

    type: Literal["refusal"]
    refusal: Text

    @property
    def text(self) -> str:
        return self.refusal


class ImageUrl(RequestModel):
    url: Filled
    detail: Text | None = None


class ImagePart(RequestModel):
    type: Literal["image_url"]
    image_url: ImageUrl


class FileContent(RequestModel):
    """A file of ours by `file_id`, or a new one: `file_data` is a data URL or Base64."""

    file_id: Text | None = None
    file_data: Text | None = None
    filename: str | None = Field(default=None, max_length=255)


class FilePart(RequestModel):
    type: Literal["file"]
    file: FileContent


class QuotePart(RequestModel):
    """Text that the user quotes, such as a resource of an MCP server: read as text from outside."""

    type: Literal["quote"]
    title: Label
    text: Annotated[str, Field(min_length=1, max_length=100_000)]


Part = Annotated[TextPart | ImagePart | FilePart | QuotePart, Field(discriminator="type")]
Parts = Annotated[list[Part], Field(min_length=1)]


class CalledFunction(RequestModel):
    name: Filled
    arguments: Text = "{}"


class CallBody(RequestModel):
    id: Filled
    type: Literal["function"] = "function"
    function: CalledFunction


class Function(RequestModel):
    name: Name
    description: Text | None = None
    parameters: Json | None = None
    strict: bool | None = None


class FunctionTool(RequestModel):
    type: Literal["function"]
    function: Function

    @property
    def name(self) -> str:
        return self.function.name


class MessageFields(RequestModel):
    """What every message may have: `scrub_pii` removes personal data from it where the model's provider can."""

    scrub_pii: bool | None = None


class SystemMessage(MessageFields):
    role: Literal["system", "developer"]
    content: TextOr[list[TextPart]]


class UserMessage(MessageFields):
    """The user's message; `tools` in it are offered beside those of the request."""

    role: Literal["user"]
    content: TextOr[Parts]
    tools: Tools[FunctionTool] | None = None


class AssistantMessage(MessageFields):
    role: Literal["assistant"]
    content: TextOr[list[Annotated[TextPart | RefusalPart, Field(discriminator="type")]]] | None = None
    refusal: Text | None = None
    tool_calls: list[CallBody] | None = None


class ToolMessage(MessageFields):
    role: Literal["tool"]
    content: TextOr[list[TextPart]]
    tool_call_id: Filled


ChatMessage = Annotated[SystemMessage | UserMessage | AssistantMessage | ToolMessage, Field(discriminator="role")]


class NamedFunction(RequestModel):
    name: Text


class NamedTool(RequestModel):
    type: Literal["function"]
    function: NamedFunction


class StreamOptions(RequestModel):
    include_usage: bool | None = None


class AnswerRequest(RequestModel):
    """The fields of every request for an answer. It may have others that we do not know: its trace warns of those
    without effect.

    Ours are `experiment` (a label), `permission_mode`, `persona` (one of `GET /personas`), `skills` for the newest
    message (names of `GET /skills`, or addresses of skills in DIAL), and `scrub_pii`, which removes personal data from
    the model's answers where its provider can.
    """

    model_config = ConfigDict(extra="allow")

    model: str | None = Field(default=None, max_length=200)
    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, ge=0, le=1)
    experiment: Label | None = None
    permission_mode: Mode = "default"
    persona: Label | None = None
    skills: list[Annotated[str, Field(min_length=1, max_length=500)]] = Field(default=[], max_length=MOST_SKILLS)
    scrub_pii: bool | None = None

    @property
    def unknown(self) -> list[str]:
        """The names of the fields that we do not know; those that are off or empty ask for nothing."""
        return sorted(name for name, value in (self.model_extra or {}).items() if value)


class ChatFields(AnswerRequest):
    """The fields of both chat endpoints. A `max_tokens` above 4096 is accepted with a warning.

    Ours are `session_id`, the session to continue, and `system_prompt`.
    """

    messages: list[ChatMessage] = Field(min_length=1, max_length=MOST_MESSAGES)
    max_tokens: Tokens | None = None
    session_id: SessionId | None = None
    system_prompt: Text | None = None


class ProviderFields(RequestModel):
    """The fields that OpenAI's two endpoints share."""

    stream: bool | None = None
    parallel_tool_calls: bool | None = None
    user: Text | None = None
    service_tier: Text | None = None
    prompt_cache_key: Text | None = None
    prompt_cache_options: Json | None = None
    safety_identifier: Text | None = None


class ChatCompletionRequest(ChatFields, ProviderFields):
    """`POST /v1/chat/completions`."""

    max_completion_tokens: Tokens | None = None
    stream_options: StreamOptions | None = None
    tools: Tools[FunctionTool] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    stop: TextOr[list[Text]] | None = None
    seed: Seed | None = None
    n: Literal[1] | None = None
    reasoning_effort: Text | None = None
    response_format: Json | None = None
    frequency_penalty: float | None = Field(default=None, ge=-2, le=2)
    presence_penalty: float | None = Field(default=None, ge=-2, le=2)
    logit_bias: dict[Text, Annotated[float, Field(ge=-100, le=100)]] | None = None
    verbosity: Text | None = None

    @property
    def offered_tools(self) -> list[FunctionTool]:
        """The caller's tools; of two with one name the request's own, then the one of the later message."""
        carried = [tool for each in self.messages if isinstance(each, UserMessage) for tool in each.tools or ()]
        return list({tool.name: tool for tool in [*carried, *(self.tools or ())]}.values())


@dataclass(frozen=True, slots=True)
class IncomingMessages:
    """A request's messages and its system prompt, if any, from which personal data is never removed, also where the
    request wants it (`scrubs_prompt`)."""

    messages: tuple[Message, ...]
    prompt: str | None = None
    scrubs_prompt: bool = False


async def read_messages(
    shelf: FileShelf, caller: ApiCaller, bodies: Sequence[ChatMessage], prompt: str | None = None
) -> IncomingMessages:
    """The messages, with this system prompt unless one stands in front; files they carry go to `shelf`.

    Raises:
        InvalidRequest: they end with an answer, or a file in them cannot be read.
    """
    first, scrubs, messages = bodies[0], False, list[Message]()
    if isinstance(bodies[-1], AssistantMessage):
        raise InvalidRequest("The last message must be the user's, a system's, or the result of a tool of yours.")
    if isinstance(first, SystemMessage) and len(bodies) > 1:
        prompt, scrubs, bodies = _text(first.content), bool(first.scrub_pii), bodies[1:]
    for body in bodies:
        match body:
            case SystemMessage():
                message = Message(Role(body.role), _text(body.content))
            case ToolMessage():
                message = Message(Role.TOOL, _text(body.content), tool_call_id=body.tool_call_id)
            case AssistantMessage(tool_calls=called):
                calls = tuple(ToolCall(each.id, FunctionCall(**each.function.model_dump())) for each in called or ())
                text = _text(body.content) or body.refusal or (None if calls else "")
                # Where the store has this answer, its own message with the results behind it takes this one's place.
                message = Message(Role.ASSISTANT, text, tool_calls=calls, unsourced=True)
            case UserMessage(content=sent):
                is_text = isinstance(sent, str)
                message = Message(Role.USER, sent) if is_text else await _with_files(shelf, caller, sent)
        messages.append(replace(message, scrub_pii=True) if body.scrub_pii else message)
    return IncomingMessages(tuple(messages), prompt, scrubs)


async def _with_files(shelf: FileShelf, caller: ApiCaller, content: Sequence[Part]) -> Message:
    parts, files = list[dict[str, Any]](), list[Attachment]()
    for part in content:
        match part:
            case TextPart():
                parts.append({"type": "text", "text": part.text})
            case ImagePart(image_url=picture):
                if picture.url.startswith("data:") and not decoded(picture.url)[1].startswith("image/"):
                    raise InvalidRequest("The data URL of a picture must be of an image type.")
                if not picture.url.startswith(("data:", "http://", "https://")):
                    raise InvalidRequest("A picture's URL must begin with https:// or data:image/.")
                parts.append({"type": "image_url", "image_url": picture.model_dump(exclude_none=True)})
            case QuotePart():
                files.append(Attachment("text/plain", part.title, data=part.text))
            case FilePart(file=given):
                if given.file_id is not None:
                    found = await shelf.find(caller, given.file_id)
                elif given.file_data is not None:
                    found = await shelf.save(caller, given.filename or "file", *decoded(given.file_data))
                else:
                    raise InvalidRequest("A file part needs file_id or file_data.")
                files.append(Attachment(found.content_type, given.filename or found.filename, url=found.url))
    is_plain = all(part["type"] == "text" for part in parts)
    text = "\n".join(part["text"] for part in parts) if is_plain else parts
    return user_message(Message(Role.USER, text, attachments=tuple(files)))


def _text(content: str | Sequence[TextPart | RefusalPart] | None) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    return "\n".join(part.text for part in content)


def decoded(data: str) -> tuple[bytes, str]:
    """Content and type of a data URL, or of plain Base64.

    Raises:
        InvalidRequest: it is neither.
    """
    kind, text = UNKNOWN_TYPE, data
    if data.startswith("data:"):
        head, separator, text = data[5:].partition(",")
        kind, _, coding = head.partition(";")
        if not separator or not (coding == "base64" or coding.endswith(";base64")):
            raise InvalidRequest("a data URL must look like data:TYPE;base64,CONTENT")
    try:
        return base64.b64decode(text, validate=True), kind or "text/plain"
    except (binascii.Error, ValueError) as error:
        raise InvalidRequest("the file's data is not valid Base64") from error
