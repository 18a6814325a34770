"""Turn Python functions into tools, and load tools from settings paths and entry points."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import update_wrapper
from importlib import import_module, util
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any, cast, overload

from task.blocking import in_own_thread
from task.conversation.messages import Message
from task.errors import SettingsError
from task.tools.base import BaseTool
from task.tools.models import Effect, ToolCallParams
from task.tools.signature import signature_of

ENTRY_POINTS = "dial_agent.tools"


class FunctionTool(BaseTool):
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
        self._is_async = inspect.iscoroutinefunction(function)
        self._name = name or function.__name__
        self._effects = frozenset(effects)
        self._timeout = timeout
        self._signature = signature_of(function)
        update_wrapper(cast("Callable[..., Any]", self), function, updated=())

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._function(*args, **kwargs)

    @property
    def name(self) -> str:
        return self._name

    @property
    def description(self) -> str:
        return self._signature.description

    @property
    def parameters(self) -> dict[str, Any]:
        return self._signature.parameters

    @property
    def effects(self) -> frozenset[Effect]:
        return self._effects

    @property
    def timeout(self) -> float | None:
        return self._timeout

    async def _execute(self, tool_call_params: ToolCallParams) -> str | Message:
        arguments = self._signature.typed(self.name, tool_call_params.arguments or {})
        arguments |= dict.fromkeys(self._signature.injected, tool_call_params)
        if self._is_async:
            return _as_result(await self._function(**arguments))
        return _as_result(await in_own_thread(self._function, **arguments))


@overload
def tool(function: Callable[..., Any], /) -> FunctionTool: ...
@overload
def tool(
    *, name: str | None = None, effects: Iterable[Effect] = ..., timeout: float | None = None
) -> Callable[[Callable[..., Any]], FunctionTool]: ...
def tool(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    effects: Iterable[Effect] = (Effect.READ,),
    timeout: float | None = None,
) -> FunctionTool | Callable[[Callable[..., Any]], FunctionTool]:
    """Turn a function into a tool: `@tool` or `@tool(effects={Effect.WRITE}, name="…", timeout=seconds)`.

    The docstring describes the tool and its arguments, the type hints become the schema. A synchronous function runs
    in its own thread. A parameter annotated `ToolCallParams` receives them. A result that is not text becomes JSON.

    Raises:
        TypeError: the function has no docstring, or a parameter without a schema.
    """

    def decorated(function: Callable[..., Any]) -> FunctionTool:
        return FunctionTool(function, name=name, effects=effects, timeout=timeout)

    return decorated if function is None else decorated(function)


def _as_result(value: Any) -> str | Message:
    if isinstance(value, str | Message):
        return value
    from pydantic_core import to_json

    return to_json(value, fallback=str, bytes_mode="base64", inf_nan_mode="constants").decode()


def load_tools(paths: Sequence[str]) -> list[BaseTool]:
    """The tools at settings paths, then those of installed packages (entry points in `dial_agent.tools`).

    A path is `package.module:attribute`, `package.module` or a Python file, whose tools are all loaded.

    Raises:
        SettingsError: something cannot be loaded, is not a tool, or two tools have one name.
    """
    found = [(f"tool path {path!r}", found) for path in paths for found in _loaded(path)]
    for entry in entry_points(group=ENTRY_POINTS):
        source = f"entry point {entry.name!r} of {ENTRY_POINTS}"
        found += [(source, item) for item in _tools_in(_attempt(source, entry.load), source)]
    sources: dict[str, str] = {}
    for source, item in found:
        if item.name in sources:
            raise SettingsError(f"{source}: there is already a tool {item.name!r} from {sources[item.name]}")
        sources[item.name] = source
    return [item for _, item in found]


def _loaded(path: str) -> list[BaseTool]:
    source = f"tool path {path!r}"
    if path.endswith(".py"):
        return _tools_in(_attempt(source, lambda: _module_of(Path(path).expanduser())), source)
    module, _, attribute = path.partition(":")
    loaded = _attempt(source, lambda: import_module(module))
    return _tools_in(_attempt(source, lambda: getattr(loaded, attribute)) if attribute else loaded, source)


def _attempt(source: str, load: Callable[[], Any]) -> Any:
    try:
        return load()
    except Exception as error:
        reason = " ".join(str(error).split())
        raise SettingsError(f"{source} cannot be loaded: {type(error).__name__}: {reason}") from error


def _module_of(file: Path) -> ModuleType:
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


def _tools_in(loaded: Any, source: str) -> list[BaseTool]:
    candidates: Iterable[Any] = [loaded]
    if isinstance(loaded, ModuleType):
        candidates = dict.fromkeys(item for item in vars(loaded).values() if isinstance(item, BaseTool))
    elif isinstance(loaded, list | tuple):
        candidates = cast("list[Any]", loaded)
    tools = [item for item in candidates if isinstance(item, BaseTool)]
    if not tools:
        raise SettingsError(f"{source} contains no tool; decorate a function with @tool or make a BaseTool")
    return tools
