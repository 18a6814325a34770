"""The OpenAPI document: completed by what the routes cannot say."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel
from pydantic.json_schema import JsonSchemaMode, models_json_schema

from task.api.edge.failures import SCHEMA_REFERENCE, ErrorBody
from task.api.edge.identity import Mode
from task.api.openai.completions import ChunkBody
from task.api.openai.responses_schemas import ResponseEvent
from task.api.platform.events import RunEvent

EVENT_STREAM = "text/event-stream"
SCHEMES = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "apiKey": {"type": "apiKey", "in": "header", "name": "Api-Key"},
}
_EVENTS: dict[str, type[BaseModel]] = {
    "/v1/chat/completions": ChunkBody,
    "/v1/responses": ResponseEvent,
    "/runs/{run_id}/events": RunEvent,
}
_NEVER_SENT = ("HTTPValidationError", "ValidationError")  # FastAPI's 422; ours is a 400


def describe(app: FastAPI, mode: Mode) -> None:
    """Add keys, the failures that really occur, and the events of streams to the application's document."""
    generate = app.openapi

    def complete() -> dict[str, Any]:
        document = generate()
        if "security" not in document:
            document["security"] = [*([{}] if mode == "open" else []), *({name: []} for name in SCHEMES)]
            _complete(document)
        return document

    app.openapi = complete


def _complete(document: dict[str, Any]) -> None:
    components = document["components"]
    components["securitySchemes"] = SCHEMES
    for name in _NEVER_SENT:
        components["schemas"].pop(name, None)
    named = (ErrorBody, *_EVENTS.values())
    models: list[tuple[type[BaseModel], JsonSchemaMode]] = [(model, "serialization") for model in named]
    _, schemas = models_json_schema(models, ref_template=SCHEMA_REFERENCE)
    components["schemas"] = schemas["$defs"] | components["schemas"]
    for path, methods in document["paths"].items():
        for operation in methods.values():
            operation["responses"].pop("422", None)
            content = operation["responses"].get("200", {}).get("content", {})
            if EVENT_STREAM in content:
                # OpenAPI 3.1 cannot describe the events of a stream.
                content[EVENT_STREAM] = {"x-event": {"$ref": SCHEMA_REFERENCE.format(model=_EVENTS[path].__name__)}}
