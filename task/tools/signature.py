"""A Python function's parameters as a JSON Schema, and a call's arguments as the function's own types."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast, get_type_hints

from docstring_parser import parse as parse_docstring
from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from task.errors import ArgumentsError
from task.tools.models import ToolCallParams

_UNNAMED = {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD, inspect.Parameter.POSITIONAL_ONLY}


@dataclass(frozen=True, slots=True)
class Signature:
    """A function's description and schema; `injected` parameters receive the call's `ToolCallParams` instead."""

    description: str
    parameters: dict[str, Any]
    injected: tuple[str, ...]
    _model: type[BaseModel]
    _fields: tuple[tuple[str, str], ...]

    def typed(self, tool: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments in the types of the function's hints.

        Raises:
            ArgumentsError: a value does not fit its type.
        """
        try:
            values = self._model.model_validate(dict(arguments))
        except ValidationError as error:
            faults = "; ".join(f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in error.errors()[:5])
            raise ArgumentsError(f"The arguments of {tool} do not fit: {faults}.") from error
        return {argument: getattr(values, name) for name, argument in self._fields}


def signature_of(function: Callable[..., Any]) -> Signature:
    """Read a function's type hints and docstring.

    Raises:
        TypeError: there is no docstring, a hint cannot be resolved or has no schema, or a parameter has no name.
    """
    name = function.__name__
    docstring = parse_docstring(inspect.getdoc(function) or "")
    if not docstring.short_description:
        raise TypeError(f"{name} needs a docstring: the model chooses a tool by its description")
    described = {item.arg_name: item.description or "" for item in docstring.params}
    hints = _hints(function, name)
    injected: list[str] = []
    fields: dict[str, Any] = {}
    for index, parameter in enumerate(inspect.signature(function).parameters.values()):
        if parameter.kind in _UNNAMED:
            raise TypeError(f"{name}: parameter {parameter} has no fixed name; a tool's arguments come by name")
        hint = hints.get(parameter.name, Any)
        if hint is ToolCallParams:
            injected.append(parameter.name)
        else:
            # Fields are numbered and aliased, so that an argument may be called `schema` or `model_config`.
            fields[f"argument{index}"] = (hint, _field(parameter, described.get(parameter.name)))
    model = _model(name, fields)
    description = "\n\n".join(filter(None, [docstring.short_description, docstring.long_description]))
    names = tuple((name, field.alias or name) for name, field in model.model_fields.items())
    return Signature(description, schema_of(model), tuple(injected), model, names)


def _hints(function: Callable[..., Any], name: str) -> dict[str, Any]:
    try:
        return get_type_hints(function, include_extras=True)
    except NameError as error:
        raise TypeError(f"{name}: a type hint cannot be resolved: {error}") from error


def _field(parameter: inspect.Parameter, description: str | None) -> Any:
    default = ... if parameter.default is inspect.Parameter.empty else parameter.default
    # None in place of a description would hide the one an Annotated hint carries.
    described: dict[str, Any] = {"description": description} if description else {}
    return Field(default, alias=parameter.name, **described)


def _model(name: str, fields: dict[str, Any]) -> type[BaseModel]:
    config = ConfigDict(extra="forbid")
    try:
        return create_model(name, __config__=config, **fields)
    except Exception as error:
        raise TypeError(f"{name}: a parameter's type has no JSON Schema: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    return str(error).split("\n", maxsplit=1)[0]


def schema_of(model: type[BaseModel]) -> dict[str, Any]:
    """The model's JSON Schema without titles, and with every definition in its place unless it contains itself."""
    raw = model.model_json_schema(by_alias=True)
    definitions = raw.pop("$defs", {})
    raw.pop("description", None)
    try:
        return cast("dict[str, Any]", _inlined(raw, definitions, ()))
    except RecursionError:
        kept = {name: _inlined(shape, {}, ()) for name, shape in definitions.items()}
        return {**cast("dict[str, Any]", _inlined(raw, {}, ())), "$defs": kept}


def _inlined(node: Any, definitions: dict[str, Any], within: tuple[str, ...]) -> Any:
    if isinstance(node, list):
        return [_inlined(item, definitions, within) for item in cast("list[Any]", node)]
    if not isinstance(node, dict):
        return node
    shape = cast("dict[str, Any]", node)
    target = str(shape.get("$ref", "")).rpartition("/")[2]
    if target in within:
        raise RecursionError(target)
    if target in definitions:
        beside = {key: value for key, value in shape.items() if key != "$ref"}
        return _inlined({**definitions[target], **beside}, definitions, (*within, target))
    return {key: _kept(key, value, definitions, within) for key, value in shape.items() if not _is_noise(key, value)}


def _kept(key: str, value: Any, definitions: dict[str, Any], within: tuple[str, ...]) -> Any:
    if key in ("default", "enum", "const", "examples", "required"):
        return value
    if key in ("properties", "patternProperties"):
        return {name: _inlined(shape, definitions, within) for name, shape in value.items()}
    return _inlined(value, definitions, within)


def _is_noise(key: str, value: Any) -> bool:
    # A discriminator maps to definitions that are no longer there.
    return (key == "title" and isinstance(value, str)) or key == "discriminator"
