"""`/v1/chat/completions` and `/v1/models`: the answer of a run as OpenAI's completion, or as its chunks."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Literal

from pydantic import Field

from task.api.failures import failures
from task.api.messages import ChatCompletionRequest
from task.api.schemas import AttachmentBody, ResponseModel, ToolCallBody, UsageBody
from task.api.service import AGENT, DONE, CurrentKey, CurrentService, Service, router, sse, stream_of
from task.api.traces import TraceBody
from task.errors import NotFound
from task.runs.events import FinishReason
from task.runs.request import RunState
from task.runs.runner import LiveRun, Runner
from task.store.records import RunStatus


class AnswerBody(ResponseModel):
    role: Literal["assistant"]
    content: str | None
    refusal: str | None
    tool_calls: list[ToolCallBody] | None = None
    custom_content: dict[Literal["attachments"], list[AttachmentBody]] | None = None  # DIAL's field


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


class DeltaChoice(ResponseModel):
    index: int
    delta: dict[str, Any] = Field(description="OpenAI's, with `custom_content.attachments` in the last chunk.")
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


def completion(live: LiveRun) -> dict[str, Any]:
    """The `CompletionBody` of a run that has ended."""
    state = live.state
    message: dict[str, Any] = {"role": "assistant", "content": state.answer, "refusal": None}
    if state.calls:
        message["tool_calls"] = state.calls
        message["content"] = message["content"] or None
    if state.attachments:
        message["custom_content"] = {"attachments": state.attachments}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": state.finish_reason}
    return {
        **_head(state, "chat.completion"),
        "choices": [choice],
        "usage": _tokens(state),
        "status": state.run.status,
        **state.ids,
        "trace": live.trace,
    }


async def completion_chunks(runner: Runner, live: LiveRun, *, usage: bool) -> AsyncGenerator[bytes]:
    """The run's `ChunkBody`s as server-sent events; with `usage` the last one has the tokens."""
    state = live.state
    head = {**_head(state, "chat.completion.chunk"), **({"usage": None} if usage else {})}

    def chunk(delta: Mapping[str, Any], reason: str | None = None, **more: Any) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}
        return sse({**head, "choices": [choice], **more})

    started = False
    async with aclosing(runner.events(live.run.owner, live.run.run_id)) as events:
        async for event in events:
            if event.type in ("text", "approval", "tool_calls", "finished") and not started:
                started = True
                yield chunk({"role": "assistant", "content": ""}, **state.ids)
            match event.type:
                case "text":
                    yield chunk({"content": event.data["text"]})
                case "approval":
                    separator = "\n\n" if state.written else ""
                    yield chunk({"content": f"{separator}{event.data['text']}"})
                case "tool_calls":
                    yield chunk({"tool_calls": _numbered(event.data["tool_calls"])})
                case "finished" if state.failed and state.failure is not None:
                    yield sse({"error": state.failure["error"], **state.ids})
                case "finished":
                    # DIAL's place for attachments; clients merge the pieces of a list by their index.
                    files = _numbered(state.attachments)
                    delta = {"custom_content": {"attachments": files}} if files else {}
                    yield chunk(delta, state.finish_reason, status=state.run.status, **state.ids)
                    if usage:
                        yield sse({**head, "choices": [], "usage": _tokens(state)})
                case _:
                    pass
    yield DONE


def _numbered(items: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [{"index": number, **item} for number, item in enumerate(items)]


def _tokens(state: RunState) -> dict[str, Any]:
    counted = state.usage or {}
    return {name: counted[name] for name in UsageBody.model_fields if name in counted}


def _head(state: RunState, kind: str) -> dict[str, Any]:
    name = f"chatcmpl-{state.run.run_id.removeprefix('run_')}"
    return {"id": name, "object": kind, "created": int(state.run.started_at), "model": state.options.model}


class ModelBody(ResponseModel):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str


class ModelList(ResponseModel):
    object: Literal["list"]
    data: list[ModelBody]


routes = router("OpenAI", "/v1")


@routes.post(
    "/chat/completions",
    response_model=CompletionBody,
    responses={**stream_of(ChunkBody), **failures(404, 409, 413, 415)},
)
async def create_chat_completion(body: ChatCompletionRequest, key: CurrentKey, service: CurrentService) -> Any:
    """Answer a conversation; with `stream` as server-sent events."""
    async with service.runner.once(service.owner, key) as run:
        if run is None:
            sent, options = await service.completion("v1", body)
            prepared = await service.preparing.prepare(service.caller, sent, options, body.session_id)
            run = await service.runner.start(prepared, key)
    live = await service.runner.follow(service.owner, run.run_id)
    if body.stream:
        usage = body.stream_options is not None and bool(body.stream_options.include_usage)
        return service.stream(live, completion_chunks(service.runner, live, usage=usage))
    await service.wait(live)
    return completion(live)


@routes.get("/models", response_model=ModelList, responses=failures())
async def list_models(service: CurrentService) -> Any:
    """The agent under its own name, and the models it can answer with, as their provider lists them."""
    return {"object": "list", "data": [_model(name) for name in await _models(service)]}


@routes.get("/models/{model:path}", response_model=ModelBody, responses=failures(404))
async def get_model(model: str, service: CurrentService) -> Any:
    """One model."""
    if model not in await _models(service):
        raise NotFound(f"there is no model {model!r}")
    return _model(model)


async def _models(service: Service) -> list[str]:
    listed = await service.profile.listed_models(service.caller.core_key)
    return list(dict.fromkeys([AGENT, service.profile.model, *listed]))


def _model(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "dial"}
