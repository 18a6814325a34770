"""The body of `/v1/responses`, its input as messages of chat completions, and messages and answers as items."""

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Annotated, Any, Literal
from urllib.parse import unquote

from pydantic import Discriminator, Field, Tag

from task.api import messages as chat
from task.api.schemas import Filled, Json, RequestModel, Text, TextOr, Tokens, Tools
from task.conversation.inputs import MOST_MESSAGES, attachment_note
from task.conversation.messages import Attachment, Message, Role
from task.conversation.sources import marker_of, number_of
from task.core_client.files import file_id_of
from task.errors import InvalidRequest
from task.store.records import Run

UNREAD = "[A picture or a file stands here; only the text is read.]"


class InputText(RequestModel):
    type: Literal["input_text", "output_text"]
    text: Text


class InputImage(RequestModel):
    """A picture by its address, or a file of ours."""

    type: Literal["input_image"]
    image_url: Filled | None = None
    file_id: Filled | None = None
    detail: Text | None = None


class InputFile(chat.FileContent):
    type: Literal["input_file"]


MessagePart = Annotated[InputText | chat.RefusalPart | InputImage | InputFile, Field(discriminator="type")]


class InputMessage(chat.MessageFields):
    """A message; `type` may be left out."""

    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: TextOr[Annotated[list[MessagePart], Field(min_length=1)]]


class InputCall(RequestModel):
    type: Literal["function_call"]
    call_id: Filled
    name: Filled
    arguments: Text


class InputResult(chat.MessageFields):
    type: Literal["function_call_output"]
    call_id: Filled
    output: TextOr[list[MessagePart]]


def _kind(item: Any) -> str:
    kind = item.get("type", "message") if isinstance(item, dict) else getattr(item, "type", "")
    return f"({kind})"


InputItem = Annotated[
    Annotated[InputMessage, Tag("(message)")]
    | Annotated[InputCall, Tag("(function_call)")]
    | Annotated[InputResult, Tag("(function_call_output)")],
    Discriminator(
        _kind,
        custom_error_type="item_type",
        custom_error_message="An item is a message, a function_call or a function_call_output",
    ),
]


class ResponseFunction(chat.Function):
    type: Literal["function"]


class NamedResponseTool(chat.NamedFunction):
    type: Literal["function"]


class Reasoning(RequestModel):
    """`summary` has no effect: the model's reasoning is not part of a response."""

    effort: Text | None = None
    summary: Text | None = None


class PlainFormat(RequestModel):
    type: Literal["text", "json_object"]


class SchemaFormat(RequestModel):
    type: Literal["json_schema"]
    name: chat.Name
    description: Text | None = None
    given: Json = Field(alias="schema")
    strict: bool | None = None


class TextConfig(RequestModel):
    format: Annotated[PlainFormat | SchemaFormat, Field(discriminator="type")] | None = None
    verbosity: Text | None = None


Metadata = Annotated[
    dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]], Field(max_length=16)
]


class ResponseRequest(chat.AnswerRequest, chat.ProviderFields):
    """`POST /v1/responses`. `previous_response_id` continues the conversation that ended with that response; with
    `store: false` the response cannot be fetched or continued. `conversation`, `prompt` and `background` are not
    supported."""

    input: TextOr[Annotated[list[InputItem], Field(min_length=1, max_length=MOST_MESSAGES)]]
    instructions: Text | None = None
    previous_response_id: str | None = Field(default=None, max_length=100)
    store: bool | None = None
    max_output_tokens: Tokens | None = None
    metadata: Metadata | None = None
    background: Literal[False] | None = None
    conversation: None = None
    prompt: None = None
    reasoning: Reasoning | None = None
    text: TextConfig | None = None
    tools: Tools[ResponseFunction] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedResponseTool | None = None

    @property
    def unknown(self) -> list[str]:
        summary = self.reasoning is not None and self.reasoning.summary is not None
        return sorted([*super().unknown, *(["reasoning.summary"] if summary else [])])


def options_of(body: ResponseRequest) -> dict[str, Any]:
    """The request's options that chat completions call otherwise, as they call them."""
    text, form = body.text or TextConfig(), None
    if isinstance(text.format, SchemaFormat):
        schema = text.format.model_dump(by_alias=True, exclude_none=True, exclude={"type"})
        form = {"type": "json_schema", "json_schema": schema}
    elif text.format is not None and text.format.type == "json_object":
        form = {"type": "json_object"}
    return {
        "max_tokens": body.max_output_tokens,
        "reasoning_effort": body.reasoning.effort if body.reasoning is not None else None,
        "response_format": form,
        "verbosity": text.verbosity,
    }


def messages_of(body: ResponseRequest) -> list[chat.ChatMessage]:
    """The input as messages, the instructions in front; calls that follow each other are one message."""
    messages: list[chat.ChatMessage] = []
    if body.instructions is not None:
        messages.append(chat.SystemMessage(role="system", content=body.instructions))
    if isinstance(body.input, str):
        return [*messages, chat.UserMessage(role="user", content=body.input)]
    for are_calls, items in groupby(body.input, lambda item: isinstance(item, InputCall)):
        if are_calls:
            messages.append(chat.AssistantMessage(role="assistant", tool_calls=[_call(item) for item in items]))
        else:
            messages += map(_message, items)
    return messages


def _call(item: Any) -> chat.CallBody:
    return chat.CallBody(id=item.call_id, function=chat.CalledFunction(name=item.name, arguments=item.arguments))


def _message(item: Any) -> chat.ChatMessage:
    scrub = item.scrub_pii
    match item:
        case InputResult():
            return chat.ToolMessage(role="tool", content=_text(item.output), tool_call_id=item.call_id, scrub_pii=scrub)
        case InputMessage(role="user", content=content):
            sent = content if isinstance(content, str) else [_part(part) for part in content]
            return chat.UserMessage(role="user", content=sent, scrub_pii=scrub)
        case InputMessage(role="assistant"):
            return chat.AssistantMessage(role="assistant", content=_text(item.content), scrub_pii=scrub)
        case _:
            return chat.SystemMessage(role=item.role, content=_text(item.content), scrub_pii=scrub)


def _text(content: str | list[Any]) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(UNREAD if isinstance(part, InputImage | InputFile) else part.text for part in content)


def _part(part: MessagePart) -> chat.Part:
    match part:
        case InputText() | chat.RefusalPart():
            return chat.TextPart(type="text", text=part.text)
        case InputImage(image_url=str(url)):
            return chat.ImagePart(type="image_url", image_url=chat.ImageUrl(url=url, detail=part.detail))
        case InputImage(file_id=None):
            raise InvalidRequest("A picture needs image_url or file_id.")
        case _:
            return chat.FilePart(
                type="file", file=chat.FileContent(**part.model_dump(exclude={"type", "detail", "image_url"}))
            )


def items_of(message: Message) -> list[dict[str, Any]]:
    """The message as items of an input."""
    if message.role is Role.TOOL:
        call_id = message.tool_call_id or ""
        return [{"type": "function_call_output", "call_id": call_id, "output": message.text()}]
    if message.role is Role.ASSISTANT:
        part = {"type": "output_text", "text": message.text(), "annotations": []}
        items = [{"type": "message", "role": "assistant", "content": [part]}] if message.content else []
        for call in message.tool_calls:
            called = {"name": call.name, "arguments": call.function.arguments}
            items.append({"type": "function_call", "call_id": call.id, **called})
        return items
    files = message.attachments
    written = message.text().removesuffix(attachment_note(files)).rstrip()
    parts: list[dict[str, Any]] = [{"type": "input_text", "text": written}] if written else []
    for part in message.content if isinstance(message.content, list) else ():
        if part["type"] == "image_url":
            shown = part["image_url"]
            detail = shown.get("detail") or "auto"
            parts.append({"type": "input_image", "image_url": shown["url"], "detail": detail})
    parts += [{"type": "input_file", "filename": file.title, "file_url": file.url} for file in files]
    return [{"type": "message", "role": message.role.value, "content": parts}]


def item_id(kind: str, run: Run) -> str:
    return f"{kind}_{run.run_id.removeprefix('run_')}"


def message_item(run: Run, text: str, noted: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    head = {"id": item_id("msg", run), "type": "message", "status": "completed", "role": "assistant"}
    return {**head, "content": [text_part(text, noted)]}


def text_part(text: str, noted: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": list(noted), "logprobs": []}


def call_item(call: Mapping[str, Any]) -> dict[str, Any]:
    head = {"id": f"fc_{call['id']}", "type": "function_call", "status": "completed", "call_id": call["id"]}
    return {**head, **call["function"]}


def citations(attachments: Sequence[Mapping[str, str]], text: str) -> list[dict[str, Any]]:
    """What an answer carries beside its text as the annotations that OpenAI's clients read.

    There is one for each attachment that is a file at `/v1/files` or has an address; others have no kind of their own.

    Positions are those of the source's number in the text, else of the address, else the text's end.
    """
    files, pages = list[dict[str, Any]](), list[dict[str, Any]]()
    for item in attachments:
        url = item.get("url") or item.get("reference_url") or ""
        if url.startswith("files/"):
            url = url.partition("#")[0]
            named = {"file_id": file_id_of(url), "filename": unquote(url.rpartition("/")[2]), "index": len(files)}
            files.append({"type": "file_citation", **named})
        elif url.startswith(("http://", "https://")):
            number = number_of(Attachment(**item))
            place = marker_of(number, text) if number is not None else None
            if place is None:
                before, _, after = text.partition(url)
                place = len(before), len(text) - len(after)
            where = {"start_index": place[0], "end_index": place[1]}
            pages.append({"type": "url_citation", "url": url, "title": item.get("title") or url, **where})
    return [*files, *pages]
