"""OpenAI's API: chat completions, models and files."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Annotated, Any, Literal
from urllib.parse import quote

from fastapi import Depends, Form, Query, UploadFile
from fastapi import File as FormFile
from starlette.responses import Response

from task.api.edge.failures import failures
from task.api.edge.rendering import ByteStream, stream_of
from task.api.edge.schemas import ResponseModel
from task.api.openai.completions import ChunkBody, CompletionBody, completion, completion_chunks
from task.api.openai.files import MAX_LISTED, UNKNOWN_TYPE, USER_DATA, FileBody, OpenFile, Purpose
from task.api.openai.responses import Order, page_of_items
from task.api.openai.schemas import ChatCompletionRequest
from task.api.service import AGENT, CurrentCaller, CurrentKey, CurrentService, Service, router
from task.errors import NotFound

BYTES = {UNKNOWN_TYPE: {}}


class ModelBody(ResponseModel):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str


class ModelList(ResponseModel):
    object: Literal["list"]
    data: list[ModelBody]


class FileList(ResponseModel):
    object: Literal["list"]
    data: list[FileBody]
    first_id: str | None
    last_id: str | None
    has_more: bool


class FileDeleted(ResponseModel):
    id: str
    object: Literal["file"]
    deleted: bool


routes = router("OpenAI", "/v1")


@routes.post(
    "/chat/completions",
    response_model=CompletionBody,
    responses={**stream_of(ChunkBody), **failures(404, 409, 413, 415)},
)
async def create_chat_completion(
    body: ChatCompletionRequest, key: CurrentKey, service: CurrentService, caller: CurrentCaller
) -> Any:
    """Answer a conversation; with `stream` as server-sent events."""
    async with service.runner.once(caller.owner, key) as run:
        if run is None:
            received = await service.reader.read(caller, body.messages)
            options = await service.completion_options("v1", body, received)
            prepared = await service.preparing.prepare(caller, received.messages, options, body.session_id)
            run = await service.runner.start(prepared, key)
    live = await service.runner.follow(caller.owner, run.run_id)
    if body.stream:
        usage = body.stream_options is not None and bool(body.stream_options.include_usage)
        return await service.answers.stream(live, completion_chunks(service.runner, live, usage=usage))
    await service.answers.wait(live)
    return completion(live)


@routes.get("/models", response_model=ModelList, responses=failures())
async def list_models(service: CurrentService, caller: CurrentCaller) -> Any:
    """The agent under its own name, and the models it can answer with, as their provider lists them."""
    return {"object": "list", "data": [_model(name) for name in await _models(service, caller.core_key)]}


@routes.get("/models/{model:path}", response_model=ModelBody, responses=failures(404))
async def get_model(model: str, service: CurrentService, caller: CurrentCaller) -> Any:
    """One model."""
    if model not in await _models(service, caller.core_key):
        raise NotFound(f"there is no model {model!r}")
    return _model(model)


@routes.post("/files", response_model=FileBody, responses=failures(413, 415))
async def upload_file(
    service: CurrentService,
    caller: CurrentCaller,
    file: Annotated[UploadFile, FormFile()],
    purpose: Annotated[Purpose, Form()] = USER_DATA,
) -> Any:
    """Store a file; messages refer to it by its id."""
    content = await file.read(service.shelf.max_bytes + 1)
    kind = file.content_type or UNKNOWN_TYPE
    return await service.shelf.save(caller, file.filename or "file", content, kind, purpose)


@routes.get("/files", response_model=FileList, responses=failures(404))
async def list_files(
    service: CurrentService,
    caller: CurrentCaller,
    limit: Annotated[int, Query(ge=1, le=MAX_LISTED)] = MAX_LISTED,
    order: Order = "desc",
    after: str | None = None,
    purpose: str | None = None,
) -> Any:
    """The caller's files, those sent and those that tools have made, the newest first unless `order` is `asc`."""
    files = await service.shelf.list(caller)
    found = {file.id: file for file in reversed(files) if purpose in (None, file.purpose)}
    return page_of_items(found, order, limit, after)


@routes.get("/files/{file_id}", response_model=FileBody, responses=failures(404))
async def get_file(file_id: str, service: CurrentService, caller: CurrentCaller) -> Any:
    """A file's name, size, type and purpose."""
    return await service.shelf.find(caller, file_id)


async def _opened(file_id: str, service: CurrentService, caller: CurrentCaller) -> AsyncGenerator[OpenFile]:
    async with service.shelf.opened(caller, file_id) as file:
        yield file


@routes.get(
    "/files/{file_id}/content", response_class=Response, responses={200: {"content": BYTES}, **failures(404)}
)  # fmt: skip
async def read_file(file: Annotated[OpenFile, Depends(_opened)]) -> Response:
    """A file's content, as a download: a browser opens nothing of it."""
    headers = {"Content-Disposition": f"attachment; filename*=UTF-8''{quote(file.filename, safe='')}"}
    if file.size is not None:
        headers["Content-Length"] = str(file.size)
    return ByteStream(file.content.iter_any(), 200, headers, UNKNOWN_TYPE)


@routes.delete("/files/{file_id}", response_model=FileDeleted, responses=failures(404))
async def delete_file(file_id: str, service: CurrentService, caller: CurrentCaller) -> Any:
    """Remove a file."""
    await service.shelf.delete(caller, file_id)
    return {"id": file_id, "object": "file", "deleted": True}


async def _models(service: Service, key: str) -> list[str]:
    profile = service.profile
    return list(dict.fromkeys([AGENT, profile.model, *await profile.listed_models(key)]))


def _model(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "dial"}
