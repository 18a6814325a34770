"""The tools that run commands and Python in a workspace."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

from task.conversation.messages import Message, tool_message
from task.permissions.decisions import WorkspaceAccess
from task.permissions.taint import Origin
from task.tools.base import BaseTool
from task.tools.models import Effect, ToolCallParams
from task.tools.workspace.python_exec import run_python
from task.tools.workspace.shell import Commands, ShellResult

_CONFINED = (
    "It runs in the folder of the workspace, in a sandbox: it cannot change anything outside it, nor git's hooks and "
    "settings, and there is no network. Nothing that it starts outlives it."
)


class CommandTool(BaseTool):
    """A tool that runs a program in a workspace; the calls of one step take their turns."""

    def __init__(self, commands: Commands) -> None:
        self.commands = commands

    @property
    def effects(self) -> frozenset[Effect]:
        unconfined = frozenset[Effect]() if self.commands.confined else frozenset({Effect.NETWORK})
        return frozenset({Effect.WRITE, Effect.EXECUTE}) | unconfined

    @property
    def origin(self) -> Origin:
        """It prints what is in the workspace's files, which the model may have written itself."""
        return Origin.MADE

    def workspace_access(self, arguments: Mapping[str, Any]) -> WorkspaceAccess:
        return WorkspaceAccess(str(self.commands.workspace.path))

    async def _execute(self, tool_call_params: ToolCallParams) -> str | Message:
        arguments = tool_call_params.arguments or self.parse(tool_call_params.tool_call)
        async with self.commands.workspace.changes:
            result = await self._run(arguments)
        text = self._rendered(result)
        return text if result.ok else tool_message(tool_call_params.tool_call, text, failed=True)

    @abstractmethod
    async def _run(self, arguments: dict[str, Any]) -> ShellResult: ...

    def _rendered(self, result: ShellResult) -> str:
        return result.text


class ShellRunTool(CommandTool):
    """Runs a command line."""

    @property
    def name(self) -> str:
        return "shell_run"

    @property
    def description(self) -> str:
        return f"Run a command line of the shell. {_CONFINED}{self.commands.sandbox.notes}"

    @property
    def parameters(self) -> dict[str, Any]:
        cmd = {"type": "string", "minLength": 1, "description": "The command line, such as: git diff --stat"}
        return {"type": "object", "properties": {"cmd": cmd}, "required": ["cmd"]}

    async def _run(self, arguments: dict[str, Any]) -> ShellResult:
        return await self.commands.run(arguments["cmd"])


class PythonRunTool(CommandTool):
    """Runs the tests or a snippet."""

    @property
    def name(self) -> str:
        return "python_run"

    @property
    def description(self) -> str:
        return f"Run pytest, or a snippet of Python that can import the workspace's modules. {_CONFINED}"

    @property
    def parameters(self) -> dict[str, Any]:
        properties = {
            "mode": {"type": "string", "description": "pytest or snippet"},
            "code": {"type": "string", "description": 'The code, for mode "snippet"'},
        }
        return {"type": "object", "properties": properties, "required": ["mode"]}

    async def _run(self, arguments: dict[str, Any]) -> ShellResult:
        return await run_python(self.commands, arguments["mode"], arguments.get("code"))
