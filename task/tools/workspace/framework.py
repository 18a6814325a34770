"""The framework's tools `bash`, `file_read` and `file_write`: the workspace's tools with its sentences and results."""

import json
import os
from collections.abc import Mapping
from typing import Any

from task.conversation.messages import ToolCall
from task.errors import ArgumentsError, ToolError
from task.permissions.decisions import WorkspaceAccess
from task.tools.base import BaseTool, text
from task.tools.models import Effect
from task.tools.workspace import files
from task.tools.workspace.commands import Commands, ShellResult
from task.tools.workspace.files import FSResult
from task.tools.workspace.root import PathEscape, Workspace
from task.tools.workspace.tools import (
    FsEditTool,
    FsListTool,
    FsReadTool,
    FsSearchTool,
    FsWriteTool,
    PythonRunTool,
    ShellRunTool,
    WorkspaceTool,
)

OUTSIDE = "Access to path '{path}' is denied. Operation confined to project directory."


def framework_tools(
    workspace: Workspace, commands: Commands | None = None, directory: str = ".", machine: Workspace | None = None
) -> list[BaseTool]:
    """The tools of a workspace as the framework has them; commands run in its folder `directory`.

    `machine` is the whole machine, where files outside the workspace may be reached.
    """
    return [
        FileReadTool(workspace, machine),
        FileWriteTool(workspace, machine),
        FsListTool(workspace),
        FileEditTool(workspace, machine),
        FsSearchTool(workspace),
        *([BashTool(commands, directory), PythonRunTool(commands)] if commands is not None else []),
    ]


class _FileTool(WorkspaceTool):
    """A tool for one file, which is refused before the user is asked where the framework's settings forbid it."""

    reads = True

    def __init__(self, workspace: Workspace, machine: Workspace | None = None) -> None:
        super().__init__(workspace)
        self.machine = machine

    def parse(self, call: ToolCall) -> dict[str, Any]:
        arguments = BaseTool.parse(self, call)
        path = str(arguments["path"])
        try:
            real = self.workspace.normalised(path)
        except PathEscape:
            if self.machine is None:
                raise ArgumentsError(OUTSIDE.format(path=path)) from None
            real = os.path.realpath(self.workspace.path / os.path.expanduser(path))
        except (ToolError, OSError, ValueError):
            return arguments  # the call itself is refused with the reason
        try:
            if self.reads:
                self.workspace.limits.check(real)
            if Effect.WRITE in self.effects:
                self.workspace.limits.check(real, len(str(arguments.get("content", "")).encode(errors="replace")))
        except ToolError as error:
            raise ArgumentsError(f"{self.name}: {error}: {path}") from error
        return {**arguments, "path": real}

    def workspace_access(self, arguments: Mapping[str, Any]) -> WorkspaceAccess | None:
        return super().workspace_access(arguments) if self._place(arguments) is self.workspace else None

    def _place(self, arguments: Mapping[str, Any]) -> Workspace:
        return self.machine if self.machine is not None and arguments["path"].startswith("/") else self.workspace


class FileReadTool(_FileTool, FsReadTool):
    """Reads a text file; the result is `{file_path, content}`, with `is_binary` for what is not text."""

    def _work(self, workspace: Workspace, arguments: dict[str, Any]) -> FSResult:
        result, named = super()._work(workspace, arguments), {"file_path": arguments["path"]}
        if result.ok:
            return FSResult(True, _json({**named, "content": result.detail}))
        binary = files.NOT_TEXT in result.detail
        return FSResult(True, _json({**named, "content": "", "is_binary": True})) if binary else result

    def shown(self, result: str) -> str:
        found = _parsed(result)
        return result if found is None else "(not text)" if "is_binary" in found else found["content"]


class FileWriteTool(_FileTool, FsWriteTool):
    """Writes a text file; the result is `{file_path, status, bytes_written}`."""

    reads = False

    def _rendered(self, arguments: dict[str, Any], result: FSResult) -> str:
        size = len(arguments["content"].encode())
        return _json({"file_path": arguments["path"], "status": "success", "bytes_written": size})

    def shown(self, result: str) -> str:
        found = _parsed(result)
        return result if found is None else f"wrote {found['bytes_written']:,} bytes"


class FileEditTool(_FileTool, FsEditTool):
    """Replaces a text in a file that may be read and written."""


class BashTool(ShellRunTool):
    """Runs a command line; the result is `{stdout, stderr, exit_code}`."""

    def __init__(self, commands: Commands, directory: str = ".") -> None:
        super().__init__(commands)
        self._directory = directory

    @property
    def parameters(self) -> dict[str, Any]:
        own, folder = super().parameters, text("The folder of the workspace in which it runs", minLength=1)
        return {**own, "properties": {**own["properties"], "working_directory": folder}}

    def parse(self, call: ToolCall) -> dict[str, Any]:
        arguments = super().parse(call)
        if "working_directory" not in arguments:
            return arguments
        path = arguments["working_directory"]
        try:
            found = self.commands.workspace.normalised(path)
            self.commands.workspace.entries(found)
        except PathEscape:
            raise ArgumentsError(OUTSIDE.format(path=path)) from None
        except (ToolError, OSError, ValueError) as error:
            raise ArgumentsError(f"There is no folder {path!r} in the workspace.") from error
        return {**arguments, "working_directory": found}

    async def _run(self, arguments: dict[str, Any]) -> ShellResult:
        directory = arguments.get("working_directory", self._directory)
        return await self.commands.run(arguments["cmd"], directory=directory)

    def _rendered(self, result: ShellResult) -> str:
        return _json({"stdout": result.stdout, "stderr": result.stderr, "exit_code": result.code})

    def shown(self, result: str) -> str:
        found = _parsed(result)
        if found is None:
            return result
        ended = f"(exit code {found['exit_code']})" if found["exit_code"] else ""
        return "\n".join(filter(None, (found["stdout"].rstrip(), found["stderr"].rstrip(), ended)))


def _parsed(result: str) -> dict[str, Any] | None:
    return json.loads(result) if result.startswith("{") else None


def _json(value: Mapping[str, Any]) -> str:
    return json.dumps(value, ensure_ascii=False)
