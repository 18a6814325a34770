"""Write JSON Schemas in the few keywords that every model server reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import orjson

_DEPTH = 12  # of a schema
_KINDS: Mapping[str, Any] = {  # what servers can read; anything else there would make one refuse the whole request
    "type": (str, list),
    "description": str,
    "enum": list,
    "required": list,
    "items": (dict, bool),
    "anyOf": list,
    "oneOf": list,
    "properties": dict,
}


def simple_schema(schema: Any) -> dict[str, Any]:
    """The schema with its references and `allOf` put in their place; defaults become part of descriptions."""
    return _Schemas(schema).simple(schema)


def flat_schema(schema: Any) -> dict[str, Any] | None:
    """The schema with one type at every level and no alternatives, null apart: what may be null need not be there.

    None: it has others.
    """
    return _flat(simple_schema(schema))


@dataclass(slots=True)
class _Schemas:
    """Writes the parts of the schema `root` in the few keywords that model servers read.

    References are put in their place. What contains itself, and what comes after `left` parts, may be anything there:
    the toolbox checks arguments against the whole schema.
    """

    root: Mapping[str, Any]
    left: int = 1000

    def simple(self, schema: Any, within: tuple[str, ...] = (), depth: int = _DEPTH) -> dict[str, Any]:
        self.left -= 1
        if not depth or self.left < 0:
            return {}
        shape, within = self._resolved(schema, within, depth)
        shape = {key: value for key, value in shape.items() if isinstance(value, _KINDS.get(key, object))}

        def inner(part: Any) -> dict[str, Any]:
            return self.simple(part, within, depth - 1)

        simple = {key: shape[key] for key in ("type", "description", "enum", "required") if shape.get(key)}
        if "const" in shape:
            simple["enum"] = [shape["const"]]
        if "default" in shape:
            default = f"Default: {orjson.dumps(shape['default']).decode()}."
            simple["description"] = f"{simple.get('description', '')} {default}".lstrip()
        if "items" in shape:
            simple["items"] = inner(shape["items"])
        if options := _array(shape.get("anyOf") or shape.get("oneOf")):
            simple["anyOf"] = [inner(option) for option in options]
        if properties := _object(shape.get("properties")):
            simple["properties"] = {name: inner(value) for name, value in properties.items()}
        return simple

    def _resolved(self, schema: Any, within: tuple[str, ...], depth: int) -> tuple[dict[str, Any], tuple[str, ...]]:
        # The schema with what it refers to and all its `allOf`, and the references that led there.
        if not depth:
            return {}, within
        shape = dict(_object(schema))
        if (reference := shape.pop("$ref", None)) is not None:
            if reference in within:
                return {}, within
            target: Any = self.root
            for key in filter(None, str(reference).removeprefix("#").split("/")):
                target = _object(target).get(key)
            referred, within = self._resolved(target, (*within, reference), depth - 1)
            shape = {**referred, **shape}
        for part in _array(shape.pop("allOf", None)):
            found, within = self._resolved(part, within, depth - 1)
            properties = {**_object(found.get("properties")), **_object(shape.get("properties"))}
            required = [*_array(shape.get("required")), *_array(found.get("required"))]
            shape = {**found, **shape, "properties": properties, "required": required}
        return shape, within


def _object(value: Any) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _array(value: Any) -> list[Any]:
    return cast("list[Any]", value) if isinstance(value, list) else []


def _flat(simple: dict[str, Any]) -> dict[str, Any] | None:
    shape = _without_null(simple)
    kind = shape.get("type") or ("object" if "properties" in shape else None)
    if not isinstance(kind, str) or "anyOf" in shape:
        return None
    flat: dict[str, Any] = {key: shape[key] for key in ("description", "enum") if key in shape} | {"type": kind}
    if kind == "array" and "items" in shape:
        flat["items"] = _flat(shape["items"])
    if kind == "object":
        properties = _object(shape.get("properties"))
        if not properties:  # any may be meant, and none would be allowed
            return None
        flat["properties"] = {name: _flat(part) for name, part in properties.items()}
        flat["required"] = []
        for name in shape.get("required", ()):
            part = properties.get(name, {})
            kinds = [option.get("type") for option in (part, *part.get("anyOf", ()))]
            may_be_null = any(kind == "null" or "null" in _array(kind) for kind in kinds)
            if not may_be_null and None not in part.get("enum", ()):
                flat["required"].append(name)
        flat["additionalProperties"] = False
    parts = [*flat.get("properties", {}).values(), flat.get("items", {})]
    return None if None in parts else flat


def _without_null(simple: dict[str, Any]) -> dict[str, Any]:
    shape = dict(simple)
    others = [option for option in shape.get("anyOf", ()) if option.get("type") != "null"]
    if len(others) == 1:
        del shape["anyOf"]
        shape = {**others[0], **shape}
    kinds = [kind for kind in _array(shape.get("type")) if kind != "null"]
    if len(kinds) == 1:
        shape["type"] = kinds[0]
    if "enum" not in shape:
        return shape
    # Dapr makes texts of the other values, which nothing could match.
    values = [value for value in shape.pop("enum") if value is not None]
    if all(isinstance(value, str) for value in values):
        return {"type": "string", **shape, "enum": values}
    kind = "integer" if all(type(value) is int for value in values) else "number"
    typed = {"type": kind} if all(type(value) in (int, float) for value in values) else {}
    listed = f"One of: {', '.join(orjson.dumps(value).decode() for value in values)}."
    return {**typed, **shape, "description": f"{shape.get('description', '')} {listed}".lstrip()}
