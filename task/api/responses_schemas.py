"""The bodies of the Responses API, and the events of its streams."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from task.api.schemas import AttachmentBody, CachedTokens, ReasoningTokens, ResponseModel


class FileCitation(ResponseModel):
    """A file that the answer carries or quotes; `file_id` is its name at `/v1/files`."""

    type: Literal["file_citation"]
    file_id: str
    filename: str
    index: int


class UrlCitation(ResponseModel):
    """A page that the answer carries or quotes."""

    type: Literal["url_citation"]
    url: str
    title: str
    start_index: int
    end_index: int


class OutputPart(ResponseModel):
    type: Literal["output_text"]
    text: str
    annotations: list[FileCitation | UrlCitation]
    logprobs: list[dict[str, Any]]


class OutputMessage(ResponseModel):
    id: str
    type: Literal["message"]
    status: Literal["in_progress", "completed", "incomplete"]
    role: Literal["assistant"]
    content: list[OutputPart]


class OutputCall(ResponseModel):
    """A call of one of the request's own tools."""

    id: str
    type: Literal["function_call"]
    status: Literal["in_progress", "completed"]
    call_id: str
    name: str
    arguments: str


class ResponseUsage(ResponseModel):
    input_tokens: int
    input_tokens_details: CachedTokens
    output_tokens: int
    output_tokens_details: ReasoningTokens
    total_tokens: int


class ResponseError(ResponseModel):
    code: str
    message: str


class IncompleteDetails(ResponseModel):
    reason: Literal["max_output_tokens", "content_filter"]


class FunctionToolBody(ResponseModel):
    type: Literal["function"]
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ToolNamed(ResponseModel):
    type: Literal["function"]
    name: str


class TextSettings(ResponseModel):
    format: dict[str, Any]
    verbosity: str | None = None


class ReasoningSettings(ResponseModel):
    effort: str | None
    summary: str | None


class ResponseBody(ResponseModel):
    """OpenAI's response. In a stream every event is a ResponseEvent; the last one holds this body."""

    id: str
    object: Literal["response"]
    created_at: int
    status: Literal["completed", "incomplete", "failed", "cancelled", "in_progress"]
    model: str
    output: list[OutputMessage | OutputCall]
    attachments: list[AttachmentBody] = Field(description="All that the answer carries beside its text.")
    usage: ResponseUsage | None
    error: ResponseError | None
    incomplete_details: IncompleteDetails | None
    instructions: str | None
    previous_response_id: str | None
    store: bool
    temperature: float | None
    top_p: float | None
    max_output_tokens: int | None
    tools: list[FunctionToolBody]
    tool_choice: str | ToolNamed
    parallel_tool_calls: bool
    text: TextSettings
    reasoning: ReasoningSettings
    background: bool
    metadata: dict[str, str]
    session_id: str | None
    run_id: str
    trace_id: str


class ResponseDeleted(ResponseModel):
    id: str
    object: Literal["response"]
    deleted: bool


class ResponseEvent(ResponseModel):
    """One event of a streamed response, with the fields that OpenAI's event of this type has. The first events hold the
    response as it starts, the last one as it ended."""

    type: Literal[
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.annotation.added",
        "response.output_text.done",
        "response.content_part.done",
        "response.function_call_arguments.delta",
        "response.function_call_arguments.done",
        "response.output_item.done",
        "response.completed",
        "response.incomplete",
        "response.failed",
    ]
    sequence_number: int
    response: ResponseBody | None = None
    output_index: int | None = None
    item: OutputMessage | OutputCall | None = None
    item_id: str | None = None
    content_index: int | None = None
    part: OutputPart | None = None
    delta: str | None = None
    text: str | None = None
    logprobs: list[None] | None = None
    annotation_index: int | None = None
    annotation: FileCitation | UrlCitation | None = None
    name: str | None = None
    arguments: str | None = None
