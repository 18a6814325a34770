"""Tools that others declare: Python functions, settings paths and entry points, and the caller of a request."""

import inspect
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, update_wrapper
from importlib import import_module, util
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any, cast, get_type_hints, overload

from docstring_parser import parse as parse_docstring
from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from task.closing import in_own_thread
from task.conversation.messages import Message
from task.errors import ArgumentsError, SettingsError, ToolError
from task.llm.schemas import own_schema
from task.permissions.decisions import CallRequest, Decision, Deferred, Gate
from task.permissions.icerc import ICERC
from task.permissions.taint import Origin
from task.tools.base import BaseTool, ToolSpec
from task.tools.models import Effect, ToolCallParams

ENTRY_POINTS = "dial_agent.tools"
CALLER_RUNS = "the caller runs this tool"
NO_RESULT = (
    "Error: the program that runs this tool continued without its result. What the user wants now is in the next "
    "message."
)
_UNNAMED = {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD, inspect.Parameter.POSITIONAL_ONLY}


class DeclaredTool(BaseTool):
    """A Python function as a tool; it can still be called as a function."""

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        name: str | None = None,
        effects: Iterable[Effect] = (Effect.READ,),
        timeout: float | None = None,
    ) -> None:
        self._function = function
        description, self._arguments, self._injected = signature_of(function)
        self._fields = {field.alias or name: name for name, field in self._arguments.model_fields.items()}
        self._is_coroutine = inspect.iscoroutinefunction(function)
        parameters = schema_of(self._arguments)
        self.spec = ToolSpec(name or function.__name__, description, parameters, frozenset(effects), timeout=timeout)
        update_wrapper(cast("Callable[..., Any]", self), function, updated=())

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._function(*args, **kwargs)

    async def _execute(self, tool_call_params: ToolCallParams) -> str | Message:
        try:
            values = self._arguments.model_validate(dict(tool_call_params.arguments or {}))
        except ValidationError as error:
            faults = "; ".join(f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in error.errors()[:5])
            raise ArgumentsError(f"The arguments of {self.name} do not fit: {faults}.") from error
        arguments: dict[str, Any] = {name: getattr(values, field) for name, field in self._fields.items()}
        arguments |= dict.fromkeys(self._injected, tool_call_params)
        if self._is_coroutine:
            result = await self._function(**arguments)
        else:
            result = await in_own_thread(self._function, **arguments)
        if isinstance(result, str | Message):
            return result
        from pydantic_core import to_json

        return to_json(result, fallback=str, bytes_mode="base64", inf_nan_mode="constants").decode()


@overload
def tool(function: Callable[..., Any], /) -> DeclaredTool: ...
@overload
def tool(
    *, name: str | None = None, effects: Iterable[Effect] = ..., timeout: float | None = None
) -> Callable[[Callable[..., Any]], DeclaredTool]: ...
def tool(
    function: Callable[..., Any] | None = None, /, **options: Any
) -> DeclaredTool | Callable[[Callable[..., Any]], DeclaredTool]:
    """Turn a function into a tool: `@tool` or `@tool(effects={Effect.WRITE}, name="…", timeout=seconds)`.

    The docstring describes the tool and its arguments, the type hints become the schema. A synchronous function runs
    in its own thread. A parameter annotated `ToolCallParams` receives them. A result that is not text becomes JSON.

    Raises:
        TypeError: the function has no docstring, or a parameter without a schema.
    """

    return partial(DeclaredTool, **options) if function is None else DeclaredTool(function, **options)


def load_tools(paths: Sequence[str]) -> list[BaseTool]:
    """The tools at settings paths, then those of installed packages (entry points in `dial_agent.tools`).

    A path is `package.module:attribute`, `package.module` or a Python file, whose tools are all loaded.

    Raises:
        SettingsError: something cannot be loaded, is not a tool, or two tools have one name.
    """
    loaders: list[tuple[str, Callable[[], Any]]] = [(f"tool path {path!r}", partial(_at_path, path)) for path in paths]
    loaders += [(f"entry point {it.name!r} of {ENTRY_POINTS}", it.load) for it in entry_points(group=ENTRY_POINTS)]
    found: list[BaseTool] = []
    sources: dict[str, str] = {}
    for source, load in loaders:
        try:
            loaded = load()
        except Exception as error:
            reason = " ".join(str(error).split())
            raise SettingsError(f"{source} cannot be loaded: {type(error).__name__}: {reason}") from error
        candidates: Iterable[Any] = [loaded]
        if isinstance(loaded, ModuleType):
            candidates = dict.fromkeys(item for item in loaded.__dict__.values() if isinstance(item, BaseTool))
        elif isinstance(loaded, list | tuple):
            candidates = cast("list[Any]", loaded)
        tools = [item for item in candidates if isinstance(item, BaseTool)]
        if not tools:
            raise SettingsError(f"{source} contains no tool; decorate a function with @tool or make a BaseTool")
        for item in tools:
            if item.name in sources:
                raise SettingsError(f"{source}: there is already a tool {item.name!r} from {sources[item.name]}")
            sources[item.name] = source
            found.append(item)
    return found


def _at_path(path: str) -> Any:
    if not path.endswith(".py"):
        name, _, attribute = path.partition(":")
        module = import_module(name)
        return getattr(module, attribute) if attribute else module
    file = Path(path).expanduser()
    name = f"dial_agent_tools_{file.stem}"
    spec = util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None or not file.is_file():
        raise FileNotFoundError(f"there is no file {file}")
    module = util.module_from_spec(spec)
    # Dataclasses and type hints look their module up by name.
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def signature_of(function: Callable[..., Any]) -> tuple[str, type[BaseModel], Sequence[str]]:
    """A function's description, its arguments as a model, and the parameters that receive `ToolCallParams` instead.

    Raises:
        TypeError: there is no docstring, a hint cannot be resolved or has no schema, or a parameter has no name.
    """
    name = function.__name__
    docstring = parse_docstring(inspect.getdoc(function) or "")
    if not docstring.short_description:
        raise TypeError(f"{name} needs a docstring: the model chooses a tool by its description")
    described = {item.arg_name: item.description or "" for item in docstring.params}
    try:
        hints = get_type_hints(function, include_extras=True)
    except NameError as error:
        raise TypeError(f"{name}: a type hint cannot be resolved: {error}") from error
    injected: list[str] = []
    fields: dict[str, Any] = {}
    for index, parameter in enumerate(inspect.signature(function).parameters.values()):
        if parameter.kind in _UNNAMED:
            raise TypeError(f"{name}: parameter {parameter} has no fixed name; a tool's arguments come by name")
        hint = hints.get(parameter.name, Any)
        if hint is ToolCallParams:
            injected.append(parameter.name)
        else:
            default = ... if parameter.default is inspect.Parameter.empty else parameter.default
            # None in place of a description would hide the one an Annotated hint carries.
            description = described.get(parameter.name)
            text: dict[str, Any] = {"description": description} if description else {}
            # Fields are numbered and aliased, so that an argument may be called `schema` or `model_config`.
            fields[f"argument{index}"] = (hint, Field(default, alias=parameter.name, **text))
    try:
        model = create_model(name, __config__=ConfigDict(extra="forbid"), **fields)
    except Exception as error:
        reason = str(error).split("\n", maxsplit=1)[0]
        raise TypeError(f"{name}: a parameter's type has no JSON Schema: {reason}") from error
    description = "\n\n".join(filter(None, [docstring.short_description, docstring.long_description]))
    return description, model, injected


def schema_of(model: type[BaseModel]) -> dict[str, Any]:
    """The model's JSON Schema without titles, and with every definition in its place; what contains itself may be
    anything in itself."""
    raw = model.model_json_schema(by_alias=True)
    raw.pop("description", None)
    return {"properties": {}, **own_schema(raw)}


class ClientTool(BaseTool):
    """A function as the caller of a request describes it; its arguments are the caller's business."""

    def __init__(self, function: Mapping[str, Any]) -> None:
        parameters = function.get("parameters") or {"type": "object", "properties": {}}
        self.spec = ToolSpec(function["name"], function.get("description") or "", parameters, origin=Origin.OUTSIDE)

    def checked(self, arguments: dict[str, Any]) -> dict[str, Any]:
        return arguments

    async def _execute(self, tool_call_params: ToolCallParams) -> str:
        raise ToolError(f"{self.name} is run by the caller")


@dataclass(frozen=True, slots=True)
class ClientToolsGate:
    """Leaves the calls of the caller's tools to the caller, and all others to `gate`."""

    gate: Gate
    names: Collection[str]

    async def decide(self, request: CallRequest) -> Decision:
        if request.call.name in self.names:
            return Deferred(ICERC("", request.call.name, ""), "", CALLER_RUNS)
        return await self.gate.decide(request)
