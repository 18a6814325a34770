"""The body of `/v1/responses`, and its input as messages of chat completions."""

from __future__ import annotations

from itertools import groupby
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from task.api import messages as chat
from task.api.schemas import Filled, Json, RequestModel, Text, TextOr, Tokens, Tools
from task.errors import InvalidRequest

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


class InputFile(RequestModel):
    type: Literal["input_file"]
    file_id: Text | None = None
    file_data: Text | None = None
    filename: str | None = Field(default=None, max_length=255)


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

    input: TextOr[Annotated[list[InputItem], Field(min_length=1)]]
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
