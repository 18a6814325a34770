"""`/v1/chat/completions`: the answer of a run as OpenAI's completion, or as its chunks."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Literal

from pydantic import Field

from task.api.edge.rendering import DONE, sse
from task.api.edge.schemas import AttachmentBody, ResponseModel, ToolCallBody, UsageBody, usage_data
from task.api.platform.runner import ActiveRun, Runner
from task.api.platform.schemas import TraceBody
from task.store.records import Event, RunStatus, json_bytes

FinishReason = Literal["stop", "length", "tool_calls", "content_filter"]


class CustomContentBody(ResponseModel):
    """What DIAL carries beside a message's text; absent where there is nothing."""

    attachments: list[AttachmentBody]


class AnswerBody(ResponseModel):
    role: Literal["assistant"]
    content: str | None
    refusal: str | None
    tool_calls: list[ToolCallBody] | None = None
    custom_content: CustomContentBody | None = None


class ChoiceBody(ResponseModel):
    index: int
    message: AnswerBody
    logprobs: None
    finish_reason: FinishReason


class CompletionBody(ResponseModel):
    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChoiceBody]
    usage: UsageBody
    status: RunStatus
    session_id: str | None
    run_id: str
    trace_id: str
    trace: TraceBody | None


class FunctionDelta(ResponseModel):
    name: str | None = None
    arguments: str | None = None


class CallDelta(ResponseModel):
    index: int
    id: str | None = None
    type: Literal["function"] | None = None
    function: FunctionDelta


class AttachmentDelta(AttachmentBody):
    index: int


class CustomContentDelta(ResponseModel):
    attachments: list[AttachmentDelta]


class DeltaBody(ResponseModel):
    role: Literal["assistant"] | None = None
    content: str | None = None
    tool_calls: list[CallDelta] | None = None
    custom_content: CustomContentDelta | None = None


class DeltaChoice(ResponseModel):
    index: int
    delta: DeltaBody
    logprobs: None
    finish_reason: FinishReason | None


class ChunkBody(ResponseModel):
    """One chunk of a streamed completion; the stream ends with `data: [DONE]`."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    choices: list[DeltaChoice]
    usage: UsageBody | None = None
    status: RunStatus | None = Field(default=None, description="In the last chunk with a choice.")
    session_id: str | None = None
    run_id: str | None = None
    trace_id: str | None = None


def completion(active: ActiveRun) -> dict[str, Any]:
    """The `CompletionBody` of a run that has ended: OpenAI's, with the session, the run and its trace."""
    result = active.result
    assert result is not None
    message: dict[str, Any] = {"role": "assistant", "content": active.text, "refusal": None}
    if result.calls:
        message["tool_calls"] = [call.as_dict() for call in result.calls]
        message["content"] = message["content"] or None
    if active.attachments:
        message["custom_content"] = {"attachments": active.attachments}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": result.finish_reason}
    return {
        **_head(active, "chat.completion"),
        "choices": [choice],
        "usage": usage_data(active.usage),
        "status": result.status,
        **active.ids,
        "trace": active.trace,
    }


async def completion_chunks(runner: Runner, active: ActiveRun, *, usage: bool) -> AsyncGenerator[bytes]:
    """The run's `ChunkBody`s as server-sent events; with `usage` the last one has the tokens."""
    chunks = _Chunks(active, usage=usage)
    async with aclosing(runner.events(active.run.owner, active.run.run_id)) as events:
        async for event in events:
            if part := chunks.render(event):
                yield part
    yield DONE


class _Chunks:
    def __init__(self, active: ActiveRun, *, usage: bool) -> None:
        self._active, self._usage = active, usage
        self._head = {**_head(active, "chat.completion.chunk"), **({"usage": None} if usage else {})}
        self._started = self._failed = False
        # Made once, because there are many chunks of text.
        self._before, _, self._after = self._chunk({"content": "@@"}).partition(b'"@@"')

    def render(self, event: Event) -> bytes:
        match event.type:
            case "text":
                return self._start() + self._before + json_bytes(event.data["text"]) + self._after
            case "approval":
                result = self._active.result
                separator = "\n\n" if result is not None and result.text else ""
                return self._start() + self._chunk({"content": f"{separator}{event.data['text']}"})
            case "tool_calls":
                return self._start() + self._chunk({"tool_calls": _numbered(event.data["tool_calls"])})
            case "error" if self._active.failed:
                self._failed = True
                return sse({"error": event.data["error"], **self._active.ids})
            case "finished":
                return self._start() + self._end()
            case _:
                return b""

    def _start(self) -> bytes:
        if self._started:
            return b""
        self._started = True
        return self._chunk({"role": "assistant", "content": ""}, **self._active.ids)

    def _end(self) -> bytes:
        result = self._active.result
        assert result is not None
        if result.finish_reason is None:
            failure = result.failure  # an answer that could not be stored fails after its last event
            return sse({**failure.body(), **self._active.ids}) if failure is not None and not self._failed else b""
        # DIAL's place for attachments; clients merge the pieces of a list by their index.
        files = _numbered(self._active.attachments)
        delta = {"custom_content": {"attachments": files}} if files else {}
        last = self._chunk(delta, result.finish_reason, status=result.status, **self._active.ids)
        return last + (
            sse({**self._head, "choices": [], "usage": usage_data(self._active.usage)}) if self._usage else b""
        )

    def _chunk(self, delta: Mapping[str, Any], reason: str | None = None, **more: Any) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}
        return sse({**self._head, "choices": [choice], **more})


def _numbered(items: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [{"index": number, **item} for number, item in enumerate(items)]


def _head(active: ActiveRun, kind: str) -> dict[str, Any]:
    number = active.run.run_id.removeprefix("run_")
    return {"id": f"chatcmpl-{number}", "object": kind, "created": int(active.run.started_at), "model": active.model}
