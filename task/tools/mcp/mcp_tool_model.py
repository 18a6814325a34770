"""The tools of an MCP server as models can use them: metadata, names that fit, schemas that are safe."""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from dataclasses import dataclass, replace
from hashlib import sha256
from inspect import cleandoc
from typing import TYPE_CHECKING, Any

from task.llm.schemas import plain_schema

if TYPE_CHECKING:
    import mcp.types as wire

LONGEST_NAME = 64
LONGEST_DESCRIPTION = 8_000
LONGEST_SCHEMA = 100_000  # characters of JSON
_NOT_IN_NAMES = re.compile(r"[^a-zA-Z0-9_-]+")


@dataclass(frozen=True, slots=True)
class MCPToolModel:
    """Metadata of one tool. Source: API reference, MCPToolModel.

    `parameters` is a JSON Schema of an object. `read_only` and `repeatable` are the server's own claims; a tool
    that is not repeatable is never called a second time when a connection breaks.
    """

    name: str
    description: str
    parameters: dict[str, Any]
    read_only: bool = False
    repeatable: bool = False


def model_of(tool: wire.Tool) -> MCPToolModel:
    """The tool as its server describes it."""
    hints, described = tool.annotations, cleandoc(tool.description or tool.title or tool.name)
    read_only, idempotent = bool(hints and hints.read_only_hint), bool(hints and hints.idempotent_hint)
    return MCPToolModel(tool.name, described, tool.input_schema, read_only, read_only or idempotent)


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


def usable(tool: MCPToolModel, longest: int = LONGEST_SCHEMA) -> MCPToolModel | None:
    """The tool with a description of bounded length and a schema that is safe to check; None if that is too large."""
    try:
        if len(json.dumps(tool.parameters)) > longest:
            return None
        parameters = {"properties": {}, **plain_schema(tool.parameters), "type": "object"}
        if len(json.dumps(parameters)) > longest:
            return None
    except RecursionError:
        return None
    return replace(tool, description=tool.description[:LONGEST_DESCRIPTION], parameters=parameters)
