"""The tools that work in a workspace."""

from __future__ import annotations

import asyncio
import os
from abc import abstractmethod
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

from task.conversation.messages import Message, ToolCall, tool_message
from task.errors import ToolError
from task.permissions.decisions import WorkspaceAccess
from task.permissions.taint import Origin
from task.tools.base import BaseTool
from task.tools.models import Effect, ToolCallParams
from task.tools.workspace import fs
from task.tools.workspace.command_tools import PythonRunTool, ShellRunTool
from task.tools.workspace.fs import FSResult
from task.tools.workspace.root import PathEscape, Workspace
from task.tools.workspace.search import Query
from task.tools.workspace.shell import Commands


def workspace_tools(workspace: Workspace, commands: Commands | None = None) -> list[BaseTool]:
    """The tools that read and change the files of a workspace, and those that run commands in it if there are any."""
    return [
        FsReadTool(workspace),
        FsWriteTool(workspace),
        FsListTool(workspace),
        FsEditTool(workspace),
        FsSearchTool(workspace),
        *([ShellRunTool(commands), PythonRunTool(commands)] if commands is not None else []),
    ]


class WorkspaceTool(BaseTool):
    """A tool that works on the files of a workspace; the gate, the person and the tool see the same, real path."""

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace

    @property
    def effects(self) -> frozenset[Effect]:
        return frozenset({Effect.READ})

    @property
    def origin(self) -> Origin:
        """A file may hold what the model wrote itself, so no address in it counts as known."""
        return Origin.MADE

    def workspace_access(self, arguments: Mapping[str, Any]) -> WorkspaceAccess | None:
        root, path = self.workspace.path, str(arguments["path"])
        try:
            return WorkspaceAccess(str(root), (self.workspace.normalised(path),))
        except PathEscape:
            return WorkspaceAccess(str(root), (os.path.realpath(root / path.lstrip("/")),))
        except (ToolError, OSError):
            return WorkspaceAccess(str(root))  # no file has this path

    def parse(self, call: ToolCall) -> dict[str, Any]:
        arguments = super().parse(call)
        try:
            return {**arguments, "path": self.workspace.normalised(arguments["path"])}
        except (ToolError, OSError):
            return arguments  # the call itself is refused with the reason

    async def _execute(self, tool_call_params: ToolCallParams) -> str | Message:
        arguments = tool_call_params.arguments or self.parse(tool_call_params.tool_call)
        async with self.workspace.changes if Effect.WRITE in self.effects else nullcontext():
            result = await asyncio.to_thread(self._work, arguments)
        if result.ok:
            return self._rendered(arguments, result)
        return tool_message(tool_call_params.tool_call, f"ERROR: {result.detail}", failed=True)

    @abstractmethod
    def _work(self, arguments: dict[str, Any]) -> FSResult: ...

    def _place(self, arguments: Mapping[str, Any]) -> Workspace:
        return self.workspace

    def _rendered(self, arguments: dict[str, Any], result: FSResult) -> str:
        return result.detail


class FsReadTool(WorkspaceTool):
    """Reads a text file, a page at a time if it is long."""

    @property
    def name(self) -> str:
        return "fs_read"

    @property
    def description(self) -> str:
        return (
            "Read a UTF-8 text file of the workspace. A text of more than 30,000 characters comes in pages: the last "
            "line says how to go on."
        )

    @property
    def parameters(self) -> dict[str, Any]:
        line = {"type": "integer", "minimum": 1}
        return _object(
            path=_PATH,
            first_line={**line, "description": "Where to begin, counted from 1; default: at the start"},
            last_line={**line, "description": "Where to end; default: as much as fits"},
        )

    def _work(self, arguments: dict[str, Any]) -> FSResult:
        return fs.read_page(
            self._place(arguments), arguments["path"], arguments.get("first_line"), arguments.get("last_line")
        )


class FsWriteTool(WorkspaceTool):
    """Makes or replaces a text file."""

    @property
    def name(self) -> str:
        return "fs_write"

    @property
    def description(self) -> str:
        return (
            "Write a UTF-8 text file of the workspace, whole: what was in it is replaced. Folders are made as needed. "
            "To change a part of a file use fs_edit."
        )

    @property
    def parameters(self) -> dict[str, Any]:
        return _object(path=_PATH, content={"type": "string", "description": "The whole new content"})

    @property
    def effects(self) -> frozenset[Effect]:
        return frozenset({Effect.WRITE})

    def _work(self, arguments: dict[str, Any]) -> FSResult:
        return fs.write(self._place(arguments), arguments["path"], arguments["content"])


class FsListTool(WorkspaceTool):
    """Lists a folder."""

    @property
    def name(self) -> str:
        return "fs_list"

    @property
    def description(self) -> str:
        return "List a folder of the workspace. The names of folders end in a slash."

    @property
    def parameters(self) -> dict[str, Any]:
        return _object(path=_FOLDER)

    def _work(self, arguments: dict[str, Any]) -> FSResult:
        return fs.listed(self.workspace, arguments["path"])


class FsEditTool(WorkspaceTool):
    """Replaces a text in a file."""

    @property
    def name(self) -> str:
        return "fs_edit"

    @property
    def description(self) -> str:
        return (
            "Replace a text in a file of the workspace. old_text must be in the file exactly once, to the last space; "
            "add the lines around it until it is, or set replace_all to replace it everywhere. Read the file first."
        )

    @property
    def parameters(self) -> dict[str, Any]:
        return _object(
            path=_PATH,
            old_text={"type": "string", "minLength": 1, "description": "The text to replace, as it is in the file"},
            new_text={"type": "string", "description": "What takes its place; empty to delete it"},
            replace_all={"type": "boolean", "default": False},
        )

    @property
    def effects(self) -> frozenset[Effect]:
        return frozenset({Effect.WRITE})

    def _work(self, arguments: dict[str, Any]) -> FSResult:
        path, old, new = (arguments[name] for name in ("path", "old_text", "new_text"))
        return fs.edit(self._place(arguments), path, old, new, replace_all=arguments["replace_all"])


class FsSearchTool(WorkspaceTool):
    """Finds lines in files."""

    @property
    def name(self) -> str:
        return "fs_search"

    @property
    def description(self) -> str:
        return (
            "Find the lines in the files of the workspace that contain a text, each with its file and number. Folders "
            "of dependencies, caches and git are left out."
        )

    @property
    def parameters(self) -> dict[str, Any]:
        return _object(
            pattern={"type": "string", "minLength": 1, "description": "The text that a line contains"},
            path=_FOLDER,
            regex={"type": "boolean", "default": False, "description": "Whether pattern is a regular expression"},
            glob={"type": "string", "default": "", "description": "Only files whose name or path fits, such as *.py"},
            ignore_case={"type": "boolean", "default": False},
        )

    def _work(self, arguments: dict[str, Any]) -> FSResult:
        query = Query(*(arguments[name] for name in ("pattern", "regex", "glob", "ignore_case")))
        return fs.search(self.workspace, query, arguments["path"])


_PATH = {"type": "string", "minLength": 1, "description": "Path of the file in the workspace"}
_FOLDER = {"type": "string", "default": ".", "description": "Path of the folder in the workspace; . is all of it"}


def _object(**properties: dict[str, Any]) -> dict[str, Any]:
    required = [name for name, shape in properties.items() if "default" not in shape and name in _REQUIRED]
    return {"type": "object", "properties": properties, "required": required}


_REQUIRED = frozenset({"path", "content", "old_text", "new_text", "pattern"})
