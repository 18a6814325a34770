"""The helper that holds answers to the OpenAPI document closes what is answered, and not what is sent."""

from __future__ import annotations

from typing import Any

from tests.support.openapi_document import faults, strict

OPEN: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": True}
SENT = {"$ref": "#/components/schemas/Sent"}
FREE = {"type": "object", "additionalProperties": True}
DOCUMENT: dict[str, Any] = {
    "paths": {"/": {"post": {"requestBody": {"content": {"application/json": {"schema": SENT}}}}, "get": {}}},
    "components": {
        "schemas": {
            "Sent": {**OPEN, "properties": {"b": {"$ref": "#/components/schemas/Part"}}},
            "Part": {**OPEN},
            "Told": {**OPEN},
            "Free": FREE,
        }
    },
}


def test_only_what_is_answered_is_closed() -> None:
    schemas = strict(DOCUMENT)["components"]["schemas"]
    assert {name: schema["additionalProperties"] for name, schema in schemas.items()} == {
        "Sent": True, "Part": True, "Told": False, "Free": True,
    }  # fmt: skip


def test_a_field_that_is_not_described_is_a_fault() -> None:
    assert faults(DOCUMENT, "Told", {"a": 1}) == []
    assert "'c'" in faults(DOCUMENT, "Told", {"a": 1, "c": 2})[0]
