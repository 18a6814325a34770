"""Compare a documented name with the code: every difference is one sentence."""

import ast
import importlib
import inspect
import json
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

Entry = Mapping[str, Any]
EXAMPLES = Path(__file__).parents[1] / "contract" / "tool_calling.json"
Parameters = list[tuple[str, str | None]]
PLACEHOLDER = "http://localhost:8080"


def tool_calling_examples() -> dict[str, Any]:
    """The JSON examples of the design of tool calling over Dapr, word for word, by the headings they stand under."""
    return json.loads(EXAMPLES.read_text(encoding="utf-8"))


def differences(name: str, entry: Entry) -> list[str]:
    """What the code lacks of what is documented under `module`, `module:Class` or `module:Class.member`."""
    try:
        return list(_differences(name, entry))
    except (ImportError, AttributeError) as error:
        return [f"{name} is missing: {error}"]


def _differences(name: str, entry: Entry) -> Iterator[str]:
    module_name, _, qualified = name.partition(":")
    module = importlib.import_module(module_name)
    class_name, _, member = qualified.partition(".")
    if entry["kind"] == "module":
        return
    documented = getattr(module, class_name)
    match entry["kind"]:
        case "class":
            yield from _class(documented, entry)
        case "function":
            yield from _function(documented, entry)
        case "method":
            yield from _method(documented, member, entry)
        case "property":
            yield from _property(documented, member, entry)
        case "attribute":
            if not hasattr(documented, member) and member not in _assigned(documented):
                yield "no method assigns it and the class does not declare it"
        case kind:
            yield f"{name} has the unknown kind {kind}"


def _class(documented: type[Any], entry: Entry) -> Iterator[str]:
    ancestors = {ancestor.__name__ for ancestor in documented.__mro__}
    yield from (f"it does not derive from {base}" for base in entry["bases"] if base not in ancestors)
    if "fields" in entry:
        yield from _parameters(entry["fields"], inspect.signature(documented))
        known = {field.name for field in fields(documented)}
        yield from (f"it has no field {name}" for name, _ in entry["fields"] if name not in known)
    if "schema" in entry:
        yield from _schema(entry["schema"], _instance(documented).parameters)


def _function(documented: Any, entry: Entry) -> Iterator[str]:
    if inspect.iscoroutinefunction(documented) != entry["async"]:
        yield f"it is {'not ' if entry['async'] else ''}asynchronous"
    yield from _parameters(entry["parameters"], inspect.signature(documented))


def _method(documented: type[Any], member: str, entry: Entry) -> Iterator[str]:
    raw = inspect.getattr_static(documented, member)
    function = getattr(documented, member)
    if isinstance(raw, staticmethod) != entry["static"]:
        yield f"it is {'not ' if entry['static'] else ''}a static method"
    if inspect.iscoroutinefunction(function) != entry["async"]:
        yield f"it is {'not ' if entry['async'] else ''}asynchronous"
    signature = inspect.signature(function)
    bound = list(signature.parameters.values())[0 if isinstance(raw, staticmethod | classmethod) else 1 :]
    yield from _parameters(entry["parameters"], signature.replace(parameters=bound))


def _parameters(documented: Parameters, signature: inspect.Signature) -> Iterator[str]:
    """Documented parameters come first and in order; whatever else there is must be optional."""
    ours = list(signature.parameters.values())
    for position, (name, default) in enumerate(documented):
        if position >= len(ours) or ours[position].name != name:
            yield f"parameter {position + 1} is not {name}: {signature}"
            return
        found = None if ours[position].default is inspect.Parameter.empty else repr(ours[position].default)
        if found != default:
            yield f"{name} defaults to {found}, documented is {default}"
        if ours[position].kind is inspect.Parameter.KEYWORD_ONLY:
            yield f"{name} cannot be given by position"
    for extra in ours[len(documented) :]:
        named = extra.kind not in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        if named and extra.default is inspect.Parameter.empty:
            yield f"{extra.name} is required and not documented"


def _property(documented: type[Any], member: str, entry: Entry) -> Iterator[str]:
    inspect.getattr_static(documented, member)
    if "value" in entry and (found := getattr(_instance(documented), member)) != entry["value"]:
        yield f"it is {found!r}, documented is {entry['value']!r}"


def _assigned(documented: type[Any]) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(documented)))):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            names.add(node.attr)
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.add(node.target.id)
    return names


def _schema(documented: Entry, ours: Entry) -> Iterator[str]:
    if documented["required"] != ours.get("required"):
        yield f"required is {ours.get('required')}, documented is {documented['required']}"
    for name, shape in documented["properties"].items():
        found = ours["properties"].get(name, {})
        expected = {key: value for key, value in shape.items() if key != "description"}
        if {key: found.get(key) for key in expected} != expected:
            yield f"parameter {name} is {found}, documented is {expected}"


def _instance(documented: type[Any]) -> Any:
    parameters = inspect.signature(documented).parameters.values()
    return documented(*(PLACEHOLDER for each in parameters if each.default is inspect.Parameter.empty))
