"""The bodies of requests. What OpenAI's API knows and we do not is let through, and its trace says so."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from task.api.edge.values import Filled, Json, Seed, Text, TextOr, Tokens, check_names

Role = Literal["system", "developer", "user", "assistant", "tool"]
Mode = Literal["default", "ask", "read_only"]
Name = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
SessionId = Annotated[str, Field(min_length=1, max_length=100)]
Label = Annotated[str, Field(min_length=1, max_length=200)]


class Body(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True)


class TextPart(Body):
    type: Literal["text"]
    text: Text


class RefusalPart(Body):
    """What the assistant said instead of an answer."""

    type: Literal["refusal"]
    refusal: Text

    @property
    def text(self) -> str:
        return self.refusal


class ImageUrl(Body):
    url: Filled
    detail: Text | None = None


class ImagePart(Body):
    type: Literal["image_url"]
    image_url: ImageUrl


class FileContent(Body):
    """A file of ours by `file_id`, or a new one: `file_data` is a data URL or Base64."""

    file_id: Text | None = None
    file_data: Text | None = None
    filename: str | None = Field(default=None, max_length=255)


class FilePart(Body):
    type: Literal["file"]
    file: FileContent


Part = Annotated[TextPart | ImagePart | FilePart, Field(discriminator="type")]
Parts = Annotated[list[Part], Field(min_length=1)]


class CalledFunction(Body):
    name: Filled
    arguments: Text = "{}"


class CallBody(Body):
    id: Filled
    type: Literal["function"] = "function"
    function: CalledFunction


class SystemMessage(Body):
    role: Literal["system", "developer"]
    content: TextOr[list[TextPart]]


class UserMessage(Body):
    role: Literal["user"]
    content: TextOr[Parts]


class AssistantMessage(Body):
    role: Literal["assistant"]
    content: TextOr[list[Annotated[TextPart | RefusalPart, Field(discriminator="type")]]] | None = None
    refusal: Text | None = None
    tool_calls: list[CallBody] | None = None


class ToolMessage(Body):
    role: Literal["tool"]
    content: TextOr[list[TextPart]]
    tool_call_id: Filled


ChatMessage = Annotated[SystemMessage | UserMessage | AssistantMessage | ToolMessage, Field(discriminator="role")]


class Function(Body):
    name: Name
    description: Text | None = None
    parameters: Json | None = None
    strict: bool | None = None


class FunctionTool(Body):
    type: Literal["function"]
    function: Function


def _told_apart(tools: list[FunctionTool]) -> list[FunctionTool]:
    check_names([tool.function.name for tool in tools])
    return tools


class NamedFunction(Body):
    name: Text


class NamedTool(Body):
    type: Literal["function"]
    function: NamedFunction


class StreamOptions(Body):
    include_usage: bool | None = None


class Open(Body):
    """A request that may say more than we know: what has no effect is told in its trace."""

    model_config = ConfigDict(extra="allow")

    @property
    def unknown(self) -> list[str]:
        """Names of what the request says and we do not know; what is off or empty asks for nothing."""
        return sorted(name for name, value in (self.model_extra or {}).items() if value)


class Sampling(Open):
    """What both chat endpoints know of sampling. A `max_tokens` above 4096 is let through with a warning."""

    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, ge=0, le=1)
    max_tokens: Tokens | None = None


class Ours(Body):
    """What only we know: the session to go on with, the system prompt, a label for comparisons, what tools may do."""

    model: str | None = Field(default=None, max_length=200)
    session_id: SessionId | None = None
    system_prompt: Text | None = None
    experiment: Label | None = None
    permission_mode: Mode = "default"


class ChatCompletionRequest(Sampling, Ours):
    """`POST /v1/chat/completions`."""

    messages: list[ChatMessage] = Field(min_length=1)
    max_completion_tokens: Tokens | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    tools: Annotated[list[FunctionTool], Field(max_length=128), AfterValidator(_told_apart)] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    stop: TextOr[list[Text]] | None = None
    seed: Seed | None = None
    n: Literal[1] | None = None
    reasoning_effort: Text | None = None
    response_format: Json | None = None
    frequency_penalty: float | None = Field(default=None, ge=-2, le=2)
    presence_penalty: float | None = Field(default=None, ge=-2, le=2)
    parallel_tool_calls: bool | None = None
    logit_bias: dict[Text, Annotated[float, Field(ge=-100, le=100)]] | None = None
    user: Text | None = None
    verbosity: Text | None = None
    service_tier: Text | None = None
    prompt_cache_key: Text | None = None
    safety_identifier: Text | None = None


class ChatRequest(Sampling, Ours):
    """`POST /chat`."""

    messages: list[ChatMessage] = Field(min_length=1)


class RunStart(ChatCompletionRequest):
    """`POST /runs`: a run that is followed by its events; without `session_id` it gets a session of its own."""


class SessionStart(Body):
    title: str = Field(default="", max_length=500)


class SessionEnd(Body):
    session_id: SessionId


class SessionChange(Body):
    title: str = Field(max_length=500)


class SessionBranch(Body):
    """`keep`: how many of the session's messages the branch begins with, as `/session/{id}/messages` counts them."""

    keep: int = Field(ge=0)


class ApprovalAnswer(Body):
    """`always` also allows what the card's `grant_told` names; `arguments` replace those of the call."""

    decision: Literal["approve", "always", "deny"]
    reason: str = Field(default="", max_length=1000)
    arguments: Json | None = None
