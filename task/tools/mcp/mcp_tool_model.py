"""The tools of an MCP server as models can use them: metadata, names that fit, schemas that are safe."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from hashlib import sha256
from inspect import cleandoc
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    import mcp.types as wire

LONGEST_NAME = 64
LONGEST_DESCRIPTION = 8_000
_NOT_IN_NAMES = re.compile(r"[^a-zA-Z0-9_-]+")


@dataclass(frozen=True, slots=True)
class MCPToolModel:
    """Metadata of one tool. Source: API reference, MCPToolModel.

    `parameters` is a JSON Schema of an object. `read_only` and `idempotent` are the server's own claims; only a tool
    with one of them is called a second time when a connection breaks.
    """

    name: str
    description: str
    parameters: dict[str, Any]
    read_only: bool = False
    idempotent: bool = False

    @property
    def repeatable(self) -> bool:
        return self.read_only or self.idempotent


def model_of(tool: wire.Tool) -> MCPToolModel:
    """The tool as its server describes it."""
    hints, described = tool.annotations, cleandoc(tool.description or tool.title or tool.name)
    read_only, idempotent = bool(hints and hints.read_only_hint), bool(hints and hints.idempotent_hint)
    return MCPToolModel(tool.name, described, tool.input_schema, read_only, idempotent)


def model_name(tool: str, server: str, taken: Collection[str]) -> str:
    """A name of `[a-zA-Z0-9_-]{1,64}` that is not `taken`: the tool's own if possible, else with the server's."""
    for candidate in (fit(tool), fit(f"{server}_{tool}")):
        if candidate not in taken:
            return candidate
    return fit(f"{server}_{tool}", digest=True)


def fit(name: str, *, digest: bool = False) -> str:
    """The name in the characters that models accept; a name that is cut ends with a digest, to stay unique."""
    cleaned = _NOT_IN_NAMES.sub("_", name).strip("_") or "tool"
    if len(cleaned) <= LONGEST_NAME and not digest:
        return cleaned
    mark = sha256(name.encode(errors="replace")).hexdigest()[:8]
    return f"{cleaned[: LONGEST_NAME - 9]}_{mark}"


def usable(tool: MCPToolModel) -> MCPToolModel | None:
    """The tool with a description of bounded length, or None if its schema is not safe."""
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import SchemaError

    schema = tool.parameters
    # The validator would fetch a reference to another document, wherever it points.
    if schema.get("type", "object") != "object" or any(not ref.startswith("#") for ref in _references(schema)):
        return None
    try:
        Draft202012Validator.check_schema(schema)
    except (SchemaError, RecursionError):
        return None
    parameters = {"properties": {}, **schema, "type": "object"}
    return replace(tool, description=tool.description[:LONGEST_DESCRIPTION], parameters=parameters)


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
