"""The base class of every tool: name, schema with the question for a call's purpose, execution that never raises."""

import json
import logging
import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, cast

from task.conversation.messages import Attachment, FunctionCall, Message, Role, ToolCall, tool_message
from task.errors import ArgumentsError, ToolError
from task.llm.base import ToolSchema
from task.permissions.decisions import WorkspaceAccess
from task.permissions.icerc import Brief
from task.permissions.names import ALIASES, own_name
from task.permissions.taint import Origin
from task.tools.models import Effect, ToolCallParams

logger = logging.getLogger(__name__)

_ASKED = {
    "intent": "Why you make this call, in one sentence for the user who may have to approve it",
    "expected_outcome": "What will be different afterwards, in one sentence for the user",
}
_WHOLE = ("icerc", "icerc_full_text")
_BRIEFS = re.compile(rf'"({"|".join((*_ASKED, *_WHOLE))})(?=")')
_TYPES = {"string": (str,), "integer": (int,), "number": (int, float), "boolean": (bool,)}
_READ = frozenset({"type", "title", "description", "default", "examples", "format"})  # of these only the type checks
_OF_OBJECTS = _READ | {"properties", "required", "additionalProperties"}


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """What a model reads about a tool, what its calls do, and how its results are shown; see `BaseTool`.

    `offloads`: a long result may be stored as a file and shortened for the model. One call may take `timeout` seconds,
    if the tool has a limit of its own; the operator's and the run's hold besides.
    """

    name: str
    description: str
    parameters: dict[str, Any]
    effects: frozenset[Effect] = frozenset({Effect.READ})
    origin: Origin | None = None
    show_in_stage: bool = True
    offloads: bool = True
    timeout: float | None = None


class BaseTool(ABC):
    """A tool the model may call. Source: API reference, BaseTool.

    A subclass sets `spec`, or overrides name, description and JSON Schema, and implements `_execute`, which returns
    text or a message and raises `ToolError` with a sentence for the model when it cannot do what was asked.
    """

    spec = ToolSpec("", "", {})
    by_name = False  # of a deployment, application or toolset that is named as a tool, and of all that such one offers
    offered_by = ""  # the server or document whose tool it is: many such tools are not sent, but found by `find_tools`

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def description(self) -> str:
        return self.spec.description

    @property
    def parameters(self) -> dict[str, Any]:
        return self.spec.parameters

    @property
    def show_in_stage(self) -> bool:
        """Whether the toolbox writes arguments and result into the stage; if not, the tool does."""
        return self.spec.show_in_stage

    @property
    def effects(self) -> frozenset[Effect]:
        return self.spec.effects

    async def effects_now(self, arguments: Mapping[str, Any]) -> frozenset[Effect]:
        """The effects of a call with these arguments, which may depend on a server too; the gate decides by these."""
        return self.effects

    @property
    def origin(self) -> Origin:
        """Who wrote the text of the results; derived from the effects unless overridden."""
        if self.spec.origin is not None or not self.effects:  # what only computes is our own
            return self.spec.origin or Origin.OWN
        return Origin.MADE if self.effects & {Effect.WRITE, Effect.EXECUTE} else Origin.OUTSIDE

    def workspace_access(self, arguments: Mapping[str, Any]) -> WorkspaceAccess | None:
        """What the call names in the tool's workspace, its paths normalised; None: the tool has no workspace."""
        return None

    def prepare(self, attached: Sequence[Attachment]) -> None:  # noqa: B027 - most tools have nothing to prepare
        """Called when a turn begins with these files in its conversation; a tool may get ready in the background."""

    def title(self, arguments: dict[str, Any]) -> str:
        """The stage's title: the name and the first argument with text."""
        first = next((value.strip() for value in arguments.values() if isinstance(value, str) and value.strip()), "")
        return f"{self.name}: {first.splitlines()[0][:60]}" if first else self.name

    def shown(self, result: str) -> str:
        """A result as its stage shows it to the user."""
        return result

    @cached_property
    def schema(self) -> dict[str, Any]:
        """The OpenAI function-calling schema; always the same object, so that a request's prefix stays stable."""
        function = {"name": self.name, "description": self.description, "parameters": self.parameters}
        return {"type": "function", "function": function}

    @cached_property
    def briefed_schema(self) -> dict[str, Any]:
        """The schema, which for a tool that writes also asks for the purpose of the call."""
        if Effect.WRITE not in self.effects:
            return self.schema
        function, own = self.schema["function"], self.parameters.get("properties", {})
        asked = {name: text(question) for name, question in _ASKED.items() if name not in own}
        parameters = {**function["parameters"], "properties": {**own, **asked}}
        return {**self.schema, "function": {**function, "parameters": parameters}}

    def parse(self, call: ToolCall) -> dict[str, Any]:
        """The call's arguments, checked against the schema, with the schema's defaults filled in.

        Raises:
            ArgumentsError: they are not JSON, not an object, or do not match the schema.
        """
        if call.problem:
            raise ArgumentsError(f"{call.problem} Send the arguments of {self.name} again.")
        try:
            arguments = json.loads(call.function.arguments or "{}")
        except (json.JSONDecodeError, RecursionError) as fault:
            raise ArgumentsError(
                f"The arguments of {self.name} are not valid JSON: {fault}. Send them again."
            ) from fault
        if not isinstance(arguments, dict):
            raise ArgumentsError(f"The arguments of {self.name} must be a JSON object.")
        return self.checked(cast("dict[str, Any]", arguments))

    def checked(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """The arguments, checked against the schema, with its defaults. Raises: ArgumentsError."""
        fits = {(name, type(value)) for name, value in arguments.items()} <= self._plain
        fits = fits and bool(arguments) and arguments.keys() >= set(self.parameters.get("required", ()))
        faults = () if fits else self._validator.iter_errors(arguments)
        if faults := sorted(faults, key=lambda fault: [*map(str, fault.path)])[:5]:
            named = "; ".join(f"{'.'.join(map(str, fault.path)) or 'arguments'}: {fault.message}" for fault in faults)
            schema = json.dumps(self.parameters)
            raise ArgumentsError(f"The arguments of {self.name} do not fit: {named}. Schema: {schema}")
        return {**self._defaults, **arguments} if self._defaults else arguments

    @cached_property
    def _plain(self) -> frozenset[tuple[str, type]]:
        # The arguments whose type is all that the schema asks, with the types they may have: they need no validator,
        # which takes 0.05 ms for one number.
        schema, shapes = self.parameters, self.parameters.get("properties")
        if schema.keys() - _OF_OBJECTS or schema.get("type") != "object" or not isinstance(shapes, dict):
            return frozenset()
        return frozenset(
            (name, kind)
            for name, shape in cast("dict[str, Any]", shapes).items()
            if isinstance(shape, dict) and shape.keys() <= _READ
            for kind in _TYPES.get(str(shape.get("type")), ())
        )

    @cached_property
    def _validator(self) -> Any:
        from jsonschema import Draft202012Validator

        return Draft202012Validator(self.parameters)

    @cached_property
    def _defaults(self) -> dict[str, Any]:
        shapes = cast("dict[str, Any]", self.parameters.get("properties", {}))  # a shape may also be true or false
        return {name: item["default"] for name, item in shapes.items() if isinstance(item, dict) and "default" in item}

    async def execute(self, tool_call_params: ToolCallParams) -> Message:
        """Run the tool and answer its call with exactly one tool message; a failure becomes the message's text."""
        call = tool_call_params.tool_call
        try:
            if tool_call_params.arguments is None:
                tool_call_params.arguments = self.parse(call)
            return as_tool_message(call, await self._execute(tool_call_params))
        except ToolError as error:
            return tool_message(call, f"Error: {error}", failed=True)
        except (Exception, SystemExit):  # a tool that calls sys.exit must not end the process
            reference = tool_call_params.reference
            logger.exception("%s failed unexpectedly (reference %s)", self.name, reference)
            notice = f"{self.name} failed unexpectedly (reference {reference}). Try another way or tell the user."
            return tool_message(call, f"Error: {notice}", failed=True)

    async def close(self) -> None:
        """Close what the tool has opened."""
        return

    @abstractmethod
    async def _execute(self, tool_call_params: ToolCallParams) -> str | Message: ...


def object_schema(*required: str, **properties: Mapping[str, Any]) -> dict[str, Any]:
    """The JSON Schema of a tool's arguments."""
    return {"type": "object", "properties": properties, "required": list(required)}


def text(description: str, **constraints: Any) -> dict[str, Any]:
    """The JSON Schema of an argument that is text."""
    return {"type": "string", **constraints, "description": description}


def as_tool_message(call: ToolCall, result: Any) -> Message:
    """The tool message that answers `call`, from text, our own message or one of the DIAL SDK."""
    if isinstance(result, Message):
        answer = {"role": Role.TOOL, "content": result.text(), "tool_call_id": call.id, "name": call.name}
        return replace(result, tool_calls=(), **answer)
    content = getattr(result, "content", result)
    shown = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False, default=str)
    foreign = getattr(getattr(result, "custom_content", None), "attachments", None) or ()
    return Message(
        Role.TOOL, shown, tool_call_id=call.id, name=call.function.name, attachments=tuple(map(Attachment.of, foreign))
    )


def split_brief(call: ToolCall, parameters: dict[str, Any]) -> tuple[ToolCall, Brief]:
    """The call with the tool's own arguments only, and the model's words about it."""
    raw, own = call.function.arguments, parameters.get("properties", {})
    asked = [name for name in _BRIEFS.findall(raw) if name not in own]
    given = _given(raw) if asked else {}
    extra = {name: given.pop(name) for name in asked if name in given}
    if not extra:
        return call, Brief()
    whole = next((Brief.read(extra[name]) for name in _WHOLE if name in extra), Brief())
    single = Brief.read(extra)
    brief = Brief(single.intent or whole.intent, single.expected_outcome or whole.expected_outcome)
    return replace(call, function=FunctionCall(call.name, json.dumps(given, ensure_ascii=False))), brief


def _given(arguments: str) -> dict[str, Any]:
    with suppress(ValueError):  # reported where the arguments are parsed
        if isinstance(given := json.loads(arguments), dict):
            return cast("dict[str, Any]", given)
    return {}


@dataclass(frozen=True, slots=True)
class Alias:
    """Another name of a tool; `arguments` maps the alias's names of arguments to the tool's own."""

    name: str
    arguments: Mapping[str, str]

    @property
    def tool(self) -> str:
        return ALIASES[self.name]

    @property
    def offered_arguments(self) -> dict[str, str]:
        """The alias's names of arguments, by the tool's own."""
        return {own: alias for alias, own in self.arguments.items()}

    def applied(self, schema: dict[str, Any]) -> dict[str, Any]:
        """The tool's function-calling schema under the alias."""
        function, aliases = schema["function"], self.offered_arguments
        parameters = function["parameters"]
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

        def offered(call: ToolCall) -> ToolCall:
            alias = self._aliases.get(call.name)
            return _renamed(call, alias.name, alias.offered_arguments) if alias is not None else call

        shown: list[Message] = []
        for message in messages:
            if message.name in self._aliases:
                message = replace(message, name=self._aliases[message.name].name)
            elif any(call.name in self._aliases for call in message.tool_calls):
                message = replace(message, tool_calls=tuple(map(offered, message.tool_calls)))
            shown.append(message)
        return shown


def _renamed(call: ToolCall, tool: str, names: Mapping[str, str]) -> ToolCall:
    text = call.function.arguments
    if any(f'"{name}"' in text for name in names) and (given := _given(text)):
        arguments = {names.get(name, name): value for name, value in given.items()}
        text = json.dumps(arguments, ensure_ascii=False)
    return replace(call, function=FunctionCall(tool, text))


Format = Literal["openai", "ollama", "dapr", "mcp"]


def in_format(tool: ToolSchema, form: Format) -> dict[str, Any]:
    """The tool's schema as OpenAI, Ollama, Dapr or MCP writes it.

    Ollama's takes a few keywords of JSON Schema only, the others all of them. Dapr's is that of the sidecar's HTTP API;
    over gRPC it is the message of the same name.
    """
    from task.llm.ollama_request import wire_tool

    function = tool["function"]
    if form == "mcp":
        return {**{name: function[name] for name in ("name", "description")}, "inputSchema": function["parameters"]}
    return {"openai": dict(tool), "ollama": wire_tool(tool), "dapr": {"function": function}}[form]
