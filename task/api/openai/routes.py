"""OpenAI's API: chat completions, models and files."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import quote

from fastapi import APIRouter, Form, Query, Request, UploadFile
from fastapi import File as FormFile
from starlette.responses import Response

from task.api.edge.rendering import json_response
from task.api.openai.documents import CompletionBody, FileBody, FileDeleted, FileList, ModelBody, ModelList, failures
from task.api.openai.files import MOST_LISTED, USER_DATA, Purpose
from task.api.openai.responses_items import Order, page_of_items
from task.api.openai.schemas import ChatCompletionRequest
from task.api.service import AGENT, Service
from task.errors import NotFound

STREAM = {"text/event-stream": {}}


def openai_routes(service: Service) -> APIRouter:
    """The routes below `/v1`, the Responses API aside."""
    routes = service.routes("OpenAI", "/v1")

    @routes.post(
        "/chat/completions", response_model=None,
        responses={200: {"model": CompletionBody, "content": STREAM}, **failures(400, 404, 409, 413, 415)},
    )  # fmt: skip
    async def create_chat_completion(body: ChatCompletionRequest, request: Request) -> Response:
        """Answer a conversation; with `stream` as server-sent events."""
        caller = await service.caller(request)
        received = await service.received(request, caller, body)
        ask = await service.preparing.ask(
            caller, received, service.completion_options("v1", body, received), body.session_id
        )
        active = await service.started(ask)
        if not body.stream:
            return await service.answers.whole(active, request)
        usage = body.stream_options is not None and bool(body.stream_options.include_usage)
        return await service.answers.streamed(active, usage=usage)

    @routes.get("/models", response_model=None, responses={200: {"model": ModelList}, **failures()})
    async def list_models(request: Request) -> Response:
        """The agent under its own name, and the chat models it can answer with."""
        caller = await service.caller(request)
        names = await _models(service, caller.core_key)
        return json_response({"object": "list", "data": [_model(name) for name in names]})

    @routes.get("/models/{model:path}", response_model=None, responses={200: {"model": ModelBody}, **failures(404)})
    async def get_model(model: str, request: Request) -> Response:
        """One model."""
        caller = await service.caller(request)
        if model not in await _models(service, caller.core_key):
            raise NotFound(f"there is no model {model!r}")
        return json_response(_model(model))

    _file_routes(routes, service)
    return routes


def _file_routes(routes: APIRouter, service: Service) -> None:
    shelf = service.shelf

    @routes.post("/files", response_model=None, responses={200: {"model": FileBody}, **failures(400, 413, 415)})
    async def upload_file(
        request: Request, file: Annotated[UploadFile, FormFile()], purpose: Annotated[Purpose, Form()] = USER_DATA
    ) -> Response:
        """Store a file; its id stands in messages."""
        caller = await service.caller(request)
        content = await file.read(shelf.max_bytes + 1)
        kind = file.content_type or "application/octet-stream"
        return json_response((await shelf.save(caller, file.filename or "file", content, kind, purpose)).as_dict())

    @routes.get("/files", response_model=None, responses={200: {"model": FileList}, **failures(400, 404)})
    async def list_files(
        request: Request,
        limit: Annotated[int, Query(ge=1, le=MOST_LISTED)] = MOST_LISTED,
        order: Order = "desc",
        after: str | None = None,
        purpose: str | None = None,
    ) -> Response:
        """The caller's files, those sent and those that tools have made, the newest first unless `order` is `asc`."""
        files = await shelf.list(await service.caller(request))
        told = [file.as_dict() for file in reversed(files) if purpose in (None, file.purpose)]
        return json_response(page_of_items(told, order, limit, after))

    @routes.get("/files/{file_id}", response_model=None, responses={200: {"model": FileBody}, **failures(404)})
    async def get_file(file_id: str, request: Request) -> Response:
        """What is known about a file."""
        return json_response((await shelf.find(await service.caller(request), file_id)).as_dict())

    @routes.get(
        "/files/{file_id}/content", response_model=None, response_class=Response,
        responses={200: {"content": {"application/octet-stream": {}}}, **failures(404)},
    )  # fmt: skip
    async def read_file(file_id: str, request: Request) -> Response:
        """A file's content, as a download: a browser opens nothing of it."""
        file, content = await shelf.read(await service.caller(request), file_id)
        name = quote(file.title, safe="")
        headers = {"Content-Disposition": f"attachment; filename*=UTF-8''{name}"}
        return Response(content, 200, headers, "application/octet-stream")

    @routes.delete("/files/{file_id}", response_model=None, responses={200: {"model": FileDeleted}, **failures(404)})
    async def delete_file(file_id: str, request: Request) -> Response:
        """Remove a file."""
        await shelf.delete(await service.caller(request), file_id)
        return json_response({"id": file_id, "object": "file", "deleted": True})


async def _models(service: Service, key: str) -> list[str]:
    product = service.product
    return list(dict.fromkeys([AGENT, product.model, *await product.chat_models(key)]))


def _model(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "dial"}
