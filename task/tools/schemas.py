"""How others see the tools: under documented aliases, and in the formats of other APIs."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

from task.conversation.messages import FunctionCall, Message, ToolCall
from task.llm.base import ToolSchema
from task.permissions.names import ALIASES, own_name

Format = Literal["openai", "ollama", "dapr", "mcp"]


@dataclass(frozen=True, slots=True)
class Alias:
    """Another name of a tool; `arguments` maps the alias's names of arguments to the tool's own."""

    name: str
    arguments: Mapping[str, str]

    @property
    def tool(self) -> str:
        return ALIASES[self.name]

    def applied(self, schema: dict[str, Any]) -> dict[str, Any]:
        """The tool's function-calling schema under the alias."""
        function = schema["function"]
        parameters = function["parameters"]
        aliases = {own: alias for alias, own in self.arguments.items()}
        properties = {aliases.get(name, name): shape for name, shape in parameters.get("properties", {}).items()}
        renamed: dict[str, Any] = {**parameters, "properties": properties}
        if "required" in parameters:
            renamed["required"] = [aliases.get(name, name) for name in parameters["required"]]
        return {**schema, "function": {**function, "name": self.name, "parameters": renamed}}


WEB_SEARCH = Alias("web_search", {"num_results": "max_results"})
_FILE = {"file_path": "path"}
# The names by which the framework's reference calls its tools.
FRAMEWORK = (Alias("bash", {"command": "cmd"}), Alias("file_read", _FILE), Alias("file_write", _FILE), WEB_SEARCH)
KNOWN: Mapping[str, Alias] = {alias.name: alias for alias in FRAMEWORK}


class ToolNames:
    """The names by which a model knows the `tools`: those of `aliases`, else their own."""

    def __init__(self, tools: Collection[str], aliases: Sequence[Alias] = ()) -> None:
        self._tools = tools
        self._aliases = {alias.tool: alias for alias in aliases if alias.tool in tools and alias.name not in tools}

    def offered(self, name: str) -> str:
        """The name by which the model knows the tool."""
        own = name if name in self._tools else own_name(name)
        return self._aliases[own].name if own in self._aliases else own

    def schema(self, schema: dict[str, Any]) -> dict[str, Any]:
        """The tool's schema as the model gets it."""
        alias = self._aliases.get(schema["function"]["name"])
        return alias.applied(schema) if alias is not None else schema

    def resolved(self, call: ToolCall) -> ToolCall:
        """The model's call under the tool's own name; a tool that has the name of an alias is itself."""
        alias = KNOWN.get(call.name) if call.name not in self._tools else None
        return _renamed(call, alias.tool, alias.arguments) if alias is not None and alias.tool in self._tools else call

    def as_offered(self, messages: list[Message]) -> list[Message]:
        """The conversation with the names by which the model knows the tools."""
        if not self._aliases:
            return messages
        shown: list[Message] = []
        for message in messages:
            if message.name in self._aliases:
                message = replace(message, name=self._aliases[message.name].name)
            elif any(call.name in self._aliases for call in message.tool_calls):
                calls = list(message.tool_calls)
                for place, call in enumerate(calls):
                    if alias := self._aliases.get(call.name):
                        names = {own: theirs for theirs, own in alias.arguments.items()}
                        calls[place] = _renamed(call, alias.name, names)
                message = replace(message, tool_calls=tuple(calls))
            shown.append(message)
        return shown


def _renamed(call: ToolCall, tool: str, names: Mapping[str, str]) -> ToolCall:
    text = call.function.arguments
    if any(f'"{name}"' in text for name in names):
        with suppress(ValueError):  # reported where the arguments are parsed
            given = json.loads(text)
            if isinstance(given, dict):
                arguments = {names.get(name, name): value for name, value in cast("dict[str, Any]", given).items()}
                text = json.dumps(arguments, ensure_ascii=False)
    return replace(call, function=FunctionCall(tool, text))


def in_format(tool: ToolSchema, form: Format) -> dict[str, Any]:
    """The tool's schema as OpenAI, Ollama, Dapr or MCP writes it.

    Ollama's takes a few keywords of JSON Schema only, the others all of them. Dapr's is that of the sidecar's HTTP API;
    over gRPC it is the message of the same name.
    """
    from task.llm.ollama_request import wire_tool

    function = tool["function"]
    match form:
        case "openai":
            return dict(tool)
        case "ollama":
            return wire_tool(tool)
        case "dapr":
            return {"function": function}
        case "mcp":
            named = {name: function[name] for name in ("name", "description")}
            return {**named, "inputSchema": function["parameters"]}
