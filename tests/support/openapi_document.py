"""Validate answers by the OpenAPI document: they have every described field and no other."""

import re
from copy import deepcopy
from typing import Any

_NAMED = re.compile(r"'#/components/schemas/(\w+)'")


def strict(document: dict[str, Any]) -> dict[str, Any]:
    """The document, made stricter than what clients are promised: answers have the described fields and no others."""
    closed = deepcopy(document)
    sent = _sent(document)
    for name, schema in closed["components"]["schemas"].items():
        if name not in sent and schema.get("additionalProperties", True) is True and "properties" in schema:
            schema["additionalProperties"] = False
    return closed


def _sent(document: dict[str, Any]) -> set[str]:
    """The names of the schemas that requests are made of."""
    bodies = [call.get("requestBody") for methods in document["paths"].values() for call in methods.values()]
    found, fresh = set[str](), set(_NAMED.findall(str(bodies)))
    while fresh:
        found |= fresh
        fresh = {name for one in fresh for name in _NAMED.findall(str(document["components"]["schemas"][one]))} - found
    return found


def faults(document: dict[str, Any], name: str, body: Any) -> list[str]:
    """Where the body does not match the schema of this name."""
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import best_match

    schema = {"$ref": f"#/components/schemas/{name}", "components": strict(document)["components"]}
    found = [best_match([fault]) for fault in Draft202012Validator(schema).iter_errors(body)]
    return [f"{fault.json_path}: {fault.message}"[:1000] for fault in found if fault is not None]
