"""Write JSON Schemas in the few keywords that every model server reads, and ask for JSON where none is enforced."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast
from urllib.parse import unquote

import orjson

from task.conversation.messages import Message, Role, system
from task.llm.base import ModelOptions

_DEPTH, _PARTS = 12, 1000  # of a schema
_TYPES = frozenset({"string", "number", "integer", "boolean", "object", "array", "null"})
_KINDS: Mapping[str, Any] = {  # what servers can read; anything else there would make one refuse the whole request
    "type": (str, list),
    "description": str,
    "enum": list,
    "required": list,
    "items": (dict, bool),
    "anyOf": list,
    "oneOf": list,
    "properties": dict,
    "additionalProperties": (dict, bool),
}
_SIMPLE = ("type", "description", "enum", "required")
# A schema of OpenAPI 3.0 may have `exclusiveMinimum: true`.
_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
# What else can be checked in time that grows with the value only: not a pattern, and nothing that is compared in pairs.
_PLAIN: Mapping[str, Any] = {
    **dict.fromkeys(("title", "format"), str),
    **dict.fromkeys(_BOUNDS, (int, float)),
    **dict.fromkeys(("minLength", "maxLength", "minItems", "maxItems"), int),
    "default": object,
}
STRANGERS = (*_SIMPLE, *_PLAIN)
_OWN = (*(name for name in _PLAIN if name != "title"), "pattern", "multipleOf", "uniqueItems", "examples")


def simple_schema(schema: Any) -> dict[str, Any]:
    """The schema with its references and `allOf` put in their place; defaults become part of descriptions."""
    return Schemas(schema).simple(schema)


def plain_schema(schema: Any) -> dict[str, Any]:
    """The schema of a stranger in keywords that are safe to check: a positive list, its references put in their place.

    What it does not understand, and what comes after its bounds, may be anything.
    """
    return Schemas(schema, STRANGERS).simple(schema)


def own_schema(schema: Any) -> dict[str, Any]:
    """The schema of a function of the operator's, without titles: with the patterns that a stranger's must not have."""
    return Schemas(schema, (*_SIMPLE, *_OWN)).simple(schema)


def wanted_schema(options: ModelOptions) -> dict[str, Any] | None:
    """The schema of the JSON that is wanted as an answer, empty for any object; None where text is."""
    match options.extra.get("response_format"):
        case {"type": "json_object"}:
            return {}
        case {"type": "json_schema", "json_schema": {"schema": dict(schema)}}:
            return cast("dict[str, Any]", schema)
        case _:
            return None


def asked_for_json(messages: Sequence[Message], schema: Mapping[str, Any]) -> list[Message]:
    """The messages with the wanted schema in their instructions, for a provider that does not enforce it."""
    shape = f" that matches this JSON Schema: {orjson.dumps(schema).decode()}" if schema else ""
    text = f"Write your final answer as one JSON object{shape}, without any text around it."
    first = messages[0]
    if first.role is Role.SYSTEM and isinstance(first.content, str):
        return [replace(first, content=f"{first.content}\n\n{text}"), *messages[1:]]
    return [system(text), *messages]


@dataclass(slots=True)
class Schemas:
    """Writes the parts of the schema `root` in the few keywords that model servers read.

    References are put in their place. What contains itself, and what comes after `left` parts, may be anything there:
    the toolbox checks arguments against the whole schema. `external`: one of the references led out of `root`.
    """

    root: Any
    kept: Sequence[str] = _SIMPLE
    left: int = _PARTS
    external: bool = False

    def resolved(self, part: Any) -> dict[str, Any]:
        """The object that the part of the root is or refers to; empty if there is none."""
        return self._resolved(part, (), _DEPTH)[0]

    def simple(self, schema: Any, within: tuple[str, ...] = (), depth: int = _DEPTH) -> dict[str, Any]:
        if self.left < 0:
            return {}
        shape, within = self._resolved(schema, within, depth)
        kinds = {**_PLAIN, **_KINDS}
        shape = {key: value for key, value in shape.items() if isinstance(value, kinds.get(key, object))}
        shape = {key: value for key, value in shape.items() if key not in _BOUNDS or not isinstance(value, bool)}
        if not _TYPES.issuperset(map(str, [kind] if isinstance(kind := shape.get("type"), str) else kind or ())):
            del shape["type"]

        def inner(part: Any) -> dict[str, Any]:
            return self.simple(part, within, depth - 1)

        # Of the others, falsy values count: `"minimum": 0`.
        simple = {key: shape[key] for key in self.kept if key in shape and (shape[key] or key in _PLAIN)}
        if "const" in shape:
            simple["enum"] = [shape["const"]]
        if "required" in simple:
            simple["required"] = [*dict.fromkeys(map(str, simple["required"]))]
        if "default" in shape and "default" not in self.kept:
            default = f"Default: {orjson.dumps(shape['default']).decode()}."
            simple["description"] = f"{simple.get('description', '')} {default}".lstrip()
        if "items" in shape:
            simple["items"] = inner(shape["items"])
        if "additionalProperties" in shape and "default" in self.kept:
            more = shape["additionalProperties"]
            simple["additionalProperties"] = more if isinstance(more, bool) else inner(more)
        if options := _array(shape.get("anyOf") or shape.get("oneOf")):
            simple["anyOf"] = [inner(option) for option in options]
        if properties := _object(shape.get("properties")):
            simple["properties"] = {name: inner(value) for name, value in properties.items()}
        return simple

    def _resolved(self, schema: Any, within: tuple[str, ...], depth: int) -> tuple[dict[str, Any], tuple[str, ...]]:
        # The schema with what it refers to and all its `allOf`, and the references that led there.
        self.left -= 1
        if not depth or self.left < 0:
            return {}, within
        shape = dict(_object(schema))
        if (reference := shape.pop("$ref", None)) is not None:
            if reference in within:
                return {}, within
            self.external = self.external or not str(reference).startswith("#")
            target: Any = self.root
            for key in filter(None, str(reference).removeprefix("#").split("/", _DEPTH)):
                target = _object(target).get(unquote(key).replace("~1", "/").replace("~0", "~"))
            referred, within = self._resolved(target, (*within, reference), depth - 1)
            shape = {**referred, **shape}
        for part in _array(shape.pop("allOf", None)):
            found, within = self._resolved(part, within, depth - 1)
            properties = {**_object(found.get("properties")), **_object(shape.get("properties"))}
            required = [*_array(shape.get("required")), *_array(found.get("required"))]
            shape = {**found, **shape, "properties": properties, "required": required}
            self.left -= len(properties) + len(required)  # which were copied
        return shape, within


def _object(value: Any) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _array(value: Any) -> list[Any]:
    return cast("list[Any]", value) if isinstance(value, list) else []
