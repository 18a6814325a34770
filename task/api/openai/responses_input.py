"""The body of `/v1/responses`, and its input as messages of chat completions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from task.api.edge.schemas import Filled, Json, RequestModel, Text, TextOr, Tokens, Tools
from task.api.openai.schemas import (
    AnswerRequest,
    AssistantMessage,
    CallBody,
    CalledFunction,
    ChatMessage,
    FileContent,
    FilePart,
    Function,
    ImagePart,
    ImageUrl,
    MessageFields,
    Name,
    NamedFunction,
    Part,
    ProviderFields,
    RefusalPart,
    SystemMessage,
    TextPart,
    ToolMessage,
    UserMessage,
)
from task.errors import InvalidRequest
from task.llm.base import REQUEST_FIELDS, ModelOptions

UNREAD = "[A picture or a file stands here; of a tool's result only the text is read.]"


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


InputPart = Annotated[InputText | InputImage | InputFile, Field(discriminator="type")]
MessagePart = Annotated[InputText | RefusalPart | InputImage | InputFile, Field(discriminator="type")]


class InputMessage(MessageFields):
    """A message; `type` may be left out."""

    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: TextOr[Annotated[list[MessagePart], Field(min_length=1)]]


class InputCall(RequestModel):
    type: Literal["function_call"]
    call_id: Filled
    name: Filled
    arguments: Text


class InputResult(MessageFields):
    type: Literal["function_call_output"]
    call_id: Filled
    output: TextOr[list[InputPart]]


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


class ResponseFunction(Function):
    type: Literal["function"]


class NamedResponseTool(NamedFunction):
    type: Literal["function"]


class Reasoning(RequestModel):
    """`summary` has no effect: the model's reasoning is not part of a response."""

    effort: Text | None = None
    summary: Text | None = None


class TextFormat(RequestModel):
    """`text`, `json_object`, or `json_schema` with `name` and `schema`."""

    type: Literal["text", "json_object", "json_schema"]
    name: Name | None = None
    description: Text | None = None
    given: Json | None = Field(default=None, alias="schema")
    strict: bool | None = None


class TextConfig(RequestModel):
    format: TextFormat | None = None
    verbosity: Text | None = None


Metadata = Annotated[
    dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]], Field(max_length=16)
]


class ResponseRequest(AnswerRequest, ProviderFields):
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
    def chat_messages(self) -> Sequence[ChatMessage]:
        return messages_of(self)

    @property
    def unknown(self) -> list[str]:
        summary = self.reasoning is not None and self.reasoning.summary is not None
        return sorted([*super().unknown, *(["reasoning.summary"] if summary else [])])


def response_format_of(body: ResponseRequest) -> dict[str, Any] | None:
    """The format of the answer as chat completions name it.

    Raises:
        InvalidRequest: a JSON schema without a name or without the schema.
    """
    wanted = body.text.format if body.text is not None else None
    if wanted is None or wanted.type == "text":
        return None
    if wanted.type == "json_object":
        return {"type": "json_object"}
    if wanted.name is None or wanted.given is None:
        raise InvalidRequest("A format of the type json_schema needs name and schema.")
    return {"type": "json_schema", "json_schema": wanted.model_dump(by_alias=True, exclude_none=True, exclude={"type"})}


def options_of(body: ResponseRequest) -> ModelOptions:
    """The options that the request gives.

    Raises:
        InvalidRequest: a JSON schema without a name or without the schema.
    """
    return ModelOptions.requested(
        {
            **body.model_dump(include=set(REQUEST_FIELDS & ResponseRequest.model_fields.keys())),
            "max_tokens": body.max_output_tokens,
            "reasoning_effort": body.reasoning.effort if body.reasoning is not None else None,
            "response_format": response_format_of(body),
            "verbosity": body.text.verbosity if body.text is not None else None,
        }
    )


def messages_of(body: ResponseRequest) -> list[ChatMessage]:
    """The input as messages, the instructions in front; calls that follow each other are one message."""
    messages: list[ChatMessage] = []
    if body.instructions is not None:
        messages.append(SystemMessage(role="system", content=body.instructions))
    if isinstance(body.input, str):
        return [*messages, UserMessage(role="user", content=body.input)]
    calls: list[CallBody] = []
    for item in body.input:
        if isinstance(item, InputCall):
            function = CalledFunction(name=item.name, arguments=item.arguments)
            calls.append(CallBody(id=item.call_id, function=function))
            continue
        if calls:
            messages.append(AssistantMessage(role="assistant", tool_calls=calls))
            calls = []
        messages.append(_message(item))
    return [*messages, AssistantMessage(role="assistant", tool_calls=calls)] if calls else messages


def _message(item: InputMessage | InputResult) -> ChatMessage:
    if isinstance(item, InputResult):
        text = item.output if isinstance(item.output, str) else "\n".join(map(_result_text, item.output))
        return ToolMessage(role="tool", content=text, tool_call_id=item.call_id, scrub_pii=item.scrub_pii)
    if item.role == "user":
        content = item.content if isinstance(item.content, str) else [_part(part) for part in item.content]
        return UserMessage(role="user", content=content, scrub_pii=item.scrub_pii)
    text = item.content if isinstance(item.content, str) else "\n".join(_texts(item.content))
    if item.role == "assistant":
        return AssistantMessage(role="assistant", content=text, scrub_pii=item.scrub_pii)
    return SystemMessage(role=item.role, content=text, scrub_pii=item.scrub_pii)


def _part(part: MessagePart) -> Part:
    match part:
        case InputText() | RefusalPart():
            return TextPart(type="text", text=part.text)
        case InputImage():
            return _picture(part)
        case InputFile():
            content = FileContent(file_id=part.file_id, file_data=part.file_data, filename=part.filename)
            return FilePart(type="file", file=content)


def _picture(part: InputImage) -> Part:
    if part.image_url is not None:
        return ImagePart(type="image_url", image_url=ImageUrl(url=part.image_url, detail=part.detail))
    if part.file_id is None:
        raise InvalidRequest("A picture needs image_url or file_id.")
    return FilePart(type="file", file=FileContent(file_id=part.file_id))


def _texts(parts: list[MessagePart]) -> list[str]:
    return [part.text for part in parts if isinstance(part, InputText | RefusalPart)]


def _result_text(part: InputPart) -> str:
    return part.text if isinstance(part, InputText) else UNREAD
