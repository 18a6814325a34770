"""Which tools of foreign servers may be offered to a model as they are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, cast

from task.tools.mcp.mcp_tool_model import MCPToolModel

LONGEST_DESCRIPTION = 8_000


def usable(tool: MCPToolModel) -> MCPToolModel | None:
    """The tool with a description of bounded length, or None when its schema cannot be used safely."""
    if not _is_object_schema(tool.parameters):
        return None
    parameters = {"properties": {}, **tool.parameters, "type": "object"}
    return replace(tool, description=tool.description[:LONGEST_DESCRIPTION], parameters=parameters)


def _is_object_schema(schema: dict[str, Any]) -> bool:
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import SchemaError

    # A reference to somewhere else would be fetched by the validator, wherever it points.
    if schema.get("type", "object") != "object" or any(not ref.startswith("#") for ref in _references(schema)):
        return False
    try:
        Draft202012Validator.check_schema(schema)
    except (SchemaError, RecursionError):
        return False
    return True


def _references(node: Any, depth: int = 0) -> Iterator[str]:
    if depth > 60:
        yield "too deep"
    elif isinstance(node, dict):
        for key, value in cast("dict[str, Any]", node).items():
            if key in ("$ref", "$dynamicRef", "$schema", "$id") and isinstance(value, str):
                yield "#" if key == "$schema" else value
            else:
                yield from _references(value, depth + 1)
    elif isinstance(node, list):
        for item in cast("list[Any]", node):
            yield from _references(item, depth + 1)
