"""Hold answers to the OpenAPI document: what it describes must be there, and nothing that it does not describe."""

from __future__ import annotations

from copy import deepcopy
from typing import Any


def strict(document: dict[str, Any]) -> dict[str, Any]:
    """The document in which objects have the fields that are described and no others; clients are promised less."""
    closed = deepcopy(document)
    for schema in closed["components"]["schemas"].values():
        if schema.get("additionalProperties") is True and "properties" in schema:
            schema["additionalProperties"] = False
    return closed


def faults(document: dict[str, Any], name: str, body: Any) -> list[str]:
    """Where the body is not as the schema of this name says."""
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import best_match

    schema = {"$ref": f"#/components/schemas/{name}", "components": strict(document)["components"]}
    found = [best_match([fault]) for fault in Draft202012Validator(schema).iter_errors(body)]
    return [f"{fault.json_path}: {fault.message}"[:1000] for fault in found if fault is not None]
