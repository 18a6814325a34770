"""A tool's schema as OpenAI, Ollama, Dapr and MCP write it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

from task.llm.base import ToolSchema
from task.llm.ollama_request import wire_tool

Format = Literal["openai", "ollama", "dapr", "mcp"]


def in_format(tool: ToolSchema, form: Format) -> dict[str, Any]:
    """The tool in the format's JSON. Ollama's takes a few keywords of JSON Schema only, the others all of them."""
    return _WRITERS[form](tool)


def _dapr(tool: ToolSchema) -> dict[str, Any]:
    # As the sidecar's HTTP API takes it; over gRPC it is the message of the same name.
    return {"function": tool["function"]}


def _mcp(tool: ToolSchema) -> dict[str, Any]:
    function = tool["function"]
    return {"name": function["name"], "description": function["description"], "inputSchema": function["parameters"]}


_WRITERS: Mapping[str, Callable[[ToolSchema], dict[str, Any]]] = {
    "openai": dict,
    "ollama": wire_tool,
    "dapr": _dapr,
    "mcp": _mcp,
}
