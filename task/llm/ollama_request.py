"""Build chat requests in Ollama's own shape: arguments as objects, pictures as base64, schemas that it understands."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import orjson

from task.conversation.messages import Message, Role
from task.llm.base import ModelOptions, ToolSchema
from task.llm.failures import unsendable
from task.llm.schemas import asked_for_json, simple_schema, wanted_schema

_OPTIONS = {"temperature": "temperature", "top_p": "top_p", "seed": "seed", "max_tokens": "num_predict", "stop": "stop"}
_MORE_OPTIONS = ("top_k", "presence_penalty", "frequency_penalty")
_THINK: Mapping[str, bool | str] = {"none": False, "minimal": "low", "xhigh": "max"}
SMALL_PARAMETERS = 4_000_000_000  # fewer make a small model: it does not follow long prompts and full tool schemas
SMALL_CONTEXT = 8192  # what it reads at most: more would take memory, and a machine without a GPU minutes


@dataclass(frozen=True, slots=True)
class OllamaModel:
    """What a server reports of a model; `context` is the `num_ctx` of every request to it.

    `capabilities` is None where an older server lists none. `parameters` counts the weights, if that is known;
    `remote`: the server passes requests on to Ollama's cloud.
    """

    name: str
    context: int
    capabilities: frozenset[str] | None = None
    parameters: int | None = None
    remote: bool = False

    def is_named(self, name: str) -> bool:
        """Whether the name, with or without its tag and in whichever letters, is this model's."""
        mine, other = (each if ":" in each.rsplit("/", 1)[-1] else f"{each}:latest" for each in (self.name, name))
        return mine.casefold() == other.casefold()

    def can(self, capability: str) -> bool:
        """Whether the model has it: `tools`, `vision`, `thinking`; believed where the server does not say."""
        return self.capabilities is None or capability in self.capabilities

    @property
    def is_small(self) -> bool:
        """Whether it gets the small models' profile; Ollama's cloud does not constrain answers, as that requires."""
        return not self.remote and self.parameters is not None and self.parameters < SMALL_PARAMETERS


def chat_body(
    model: OllamaModel,
    messages: Sequence[Message],
    tools: Sequence[ToolSchema],
    options: ModelOptions,
    *,
    keep_alive: str | None = None,
) -> bytes:
    """The request as JSON. A prompt that is too long is an error instead of being cut, and so is an answer.

    Raises:
        ProviderError: the messages have a picture that the model cannot see.
    """
    offered, schema = offered_tools(model, tools, options), wanted_schema(options)
    if schema is not None and not _constrains(model, offered):
        messages = asked_for_json(messages, schema)
    names = {call.id: call.name for message in messages for call in message.tool_calls}
    given = {wire: getattr(options, name) for name, wire in _OPTIONS.items()}
    given |= {name: options.extra.get(name) for name in _MORE_OPTIONS}
    body: dict[str, Any] = {
        "model": model.name,
        "messages": [_wire_message(message, model, names) for message in messages],
        "stream": True,
        "truncate": False,
        "shift": False,
        "options": {"num_ctx": model.context} | {name: each for name, each in given.items() if each is not None},
    }
    if offered:
        body["tools"] = [wire_tool(tool) for tool in offered]
    if (thinking := options.reasoning_effort) is not None and model.can("thinking"):
        body["think"] = _THINK.get(thinking, thinking)
    if schema is not None and _constrains(model, offered):
        body["format"] = schema or "json"
    if (likeliest := options.extra.get("top_logprobs")) is not None:
        body |= {"logprobs": True, "top_logprobs": likeliest}
    if keep_alive is not None:
        body["keep_alive"] = keep_alive
        with suppress(ValueError):  # Ollama takes "5m" as text and seconds, or -1 for ever, as a number
            body["keep_alive"] = float(keep_alive)
    return orjson.dumps(body)


def without_effect(model: OllamaModel, tools: Sequence[ToolSchema], options: ModelOptions) -> list[str]:
    """What this model does not take of a request, for the trace; the profile `OLLAMA` has what none does."""
    found: list[str] = []
    if tools and not model.can("tools"):
        found.append(f"the tools had no effect: {model.name} cannot call tools")
    if options.reasoning_effort not in (None, "none") and not model.can("thinking"):
        found.append(f"reasoning_effort had no effect: {model.name} does not think before it answers")
    if wanted_schema(options) is not None and not _constrains(model, offered_tools(model, tools, options)):
        found.append(
            "response_format is part of the prompt only: nothing enforces it beside tools or in Ollama's cloud"
        )
    return found


def _constrains(model: OllamaModel, tools: Sequence[ToolSchema]) -> bool:
    # Whether `format` can be sent: it would make calls impossible, and Ollama's cloud does not support it.
    return not tools and not model.remote


def offered_tools(model: OllamaModel, tools: Sequence[ToolSchema], options: ModelOptions) -> Sequence[ToolSchema]:
    """The tools that are sent with a request."""
    if not model.can("tools"):
        return ()
    wanted = options.tool_choice
    if isinstance(wanted, Mapping):  # no call can be forced; a single tool is the nearest to it
        return [tool for tool in tools if tool["function"]["name"] == wanted["function"]["name"]]
    return () if wanted == "none" else tools


def _wire_message(message: Message, model: OllamaModel, names: Mapping[str, str]) -> dict[str, Any]:
    role = Role.SYSTEM if message.role is Role.DEVELOPER else message.role
    wire: dict[str, Any] = {"role": role.value, "content": message.text()}
    parts = message.content if isinstance(message.content, list) else []
    if urls := [str(part["image_url"]["url"]) for part in parts if part.get("type") == "image_url"]:
        if not model.can("vision"):
            raise unsendable(f"The model {model.name} cannot see pictures. Choose a model that can, or leave them out.")
        if any(not url.startswith("data:") for url in urls):
            raise unsendable("Ollama does not fetch pictures from the web. Attach the picture itself.")
        wire["images"] = [url.partition(",")[2] for url in urls]
    if message.tool_calls:
        wire["tool_calls"] = []
        for call in message.tool_calls:
            found: Any = None
            with suppress(orjson.JSONDecodeError):  # arguments in a history that a caller sends
                found = orjson.loads(call.function.arguments)
            # The server refuses a string here.
            arguments = found if isinstance(found, dict) else {"arguments": call.function.arguments}
            wire["tool_calls"].append({"id": call.id, "function": {"name": call.name, "arguments": arguments}})
        if message.reasoning_content:
            wire["thinking"] = message.reasoning_content
    if message.tool_call_id is not None:
        name = names.get(message.tool_call_id) or message.name
        wire |= {"tool_call_id": message.tool_call_id} | ({"tool_name": name} if name else {})
    return wire


def wire_tool(tool: ToolSchema) -> dict[str, Any]:
    """The tool in the shape that the server reads."""
    function = tool["function"]
    found = simple_schema(function.get("parameters") or {})
    parameters = {"type": "object", "properties": found.get("properties", {}), "required": found.get("required", [])}
    named = {"name": function["name"], "description": function.get("description") or ""}
    return {"type": "function", "function": {**named, "parameters": parameters}}
