"""The OpenAPI document: what the routes say of themselves, and what no route can say."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel
from pydantic.json_schema import JsonSchemaMode, models_json_schema

from task.api.edge.identity import Mode
from task.api.openai.documents import REFERENCE, ChunkBody, ErrorBody
from task.api.openai.documents_events import ResponseEvent, RunEvent

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
    """Have the application's document tell keys, the failures that really are, and the events of streams."""
    made = app.openapi

    def described() -> dict[str, Any]:
        document = made()
        if "security" not in document:
            document["security"] = [*([{}] if mode == "open" else []), *({name: []} for name in SCHEMES)]
            _complete(document)
        return document

    app.openapi = described


def _complete(document: dict[str, Any]) -> None:
    components = document["components"]
    components["securitySchemes"] = SCHEMES
    for name in _NEVER_SENT:
        components["schemas"].pop(name, None)
    named = (ErrorBody, *_EVENTS.values())
    models: list[tuple[type[BaseModel], JsonSchemaMode]] = [(model, "serialization") for model in named]
    _, told = models_json_schema(models, ref_template=REFERENCE)
    components["schemas"] = told["$defs"] | components["schemas"]
    for path, methods in document["paths"].items():
        for operation in methods.values():
            operation["responses"].pop("422", None)
            content = operation["responses"].get("200", {}).get("content", {})
            if EVENT_STREAM in content:
                # OpenAPI 3.1 has no word for the events of a stream.
                content[EVENT_STREAM] = {"x-event": {"$ref": REFERENCE.format(model=_EVENTS[path].__name__)}}
