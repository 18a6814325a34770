"""The tools that work in a workspace: on its files, and by commands and Python that run in it."""

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
from task.tools.base import BaseTool, DescribedTool, ToolSpec, object_schema, text
from task.tools.models import Effect, ToolCallParams
from task.tools.workspace import files
from task.tools.workspace.commands import Commands, ShellResult, run_python
from task.tools.workspace.files import FSResult, Query
from task.tools.workspace.root import PathEscape, Workspace

READS, WRITES = frozenset({Effect.READ}), frozenset({Effect.WRITE})
RUNS = frozenset({Effect.WRITE, Effect.EXECUTE})
_CONFINED = (
    "It runs in the folder of the workspace, in a sandbox: it cannot change anything outside it, nor git's hooks and "
    "settings, and there is no network. Nothing that it starts outlives it."
)
_PATH = text("Path of the file in the workspace", minLength=1)
_FOLDER = text("Path of the folder in the workspace; . is all of it", default=".")
_LINE = {"type": "integer", "minimum": 1}
_FLAG = {"type": "boolean", "default": False}


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


def _spec(name: str, description: str, parameters: dict[str, Any], effects: frozenset[Effect] = READS) -> ToolSpec:
    # A file may hold what the model wrote itself, so no address that a tool reads or prints counts as known.
    return ToolSpec(name, description, parameters, effects, origin=Origin.MADE)


class WorkspaceTool(DescribedTool):
    """A tool that works on the files of a workspace; the gate, the user and the tool see the same, real path."""

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace

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
        # Calls that change files take their turns.
        async with self.workspace.changes if Effect.WRITE in self.effects else nullcontext():
            result = await asyncio.to_thread(self._work, self._place(arguments), arguments)
        if result.ok:
            return self._rendered(arguments, result)
        return tool_message(tool_call_params.tool_call, f"ERROR: {result.detail}", failed=True)

    @abstractmethod
    def _work(self, workspace: Workspace, arguments: dict[str, Any]) -> FSResult: ...

    def _place(self, arguments: Mapping[str, Any]) -> Workspace:
        return self.workspace

    def _rendered(self, arguments: dict[str, Any], result: FSResult) -> str:
        return result.detail


class FsReadTool(WorkspaceTool):
    """Reads a text file, a page at a time if it is long."""

    spec = _spec(
        "fs_read",
        "Read a UTF-8 text file of the workspace. A text of more than 30,000 characters comes in pages: the last "
        "line says how to go on.",
        object_schema(
            "path",
            path=_PATH,
            first_line={**_LINE, "description": "Where to begin, counted from 1; default: at the start"},
            last_line={**_LINE, "description": "Where to end; default: as much as fits"},
        ),
    )

    def _work(self, workspace: Workspace, arguments: dict[str, Any]) -> FSResult:
        first, last = arguments.get("first_line"), arguments.get("last_line")
        return files.read(workspace, arguments["path"], first, last, files.PAGE_CHARS)


class FsWriteTool(WorkspaceTool):
    """Makes or replaces a text file."""

    spec = _spec(
        "fs_write",
        "Write a UTF-8 text file of the workspace, whole: what was in it is replaced. Folders are made as needed. "
        "To change a part of a file use fs_edit.",
        object_schema("path", "content", path=_PATH, content=text("The whole new content")),
        WRITES,
    )

    def _work(self, workspace: Workspace, arguments: dict[str, Any]) -> FSResult:
        return files.write(workspace, arguments["path"], arguments["content"])


class FsListTool(WorkspaceTool):
    """Lists a folder."""

    spec = _spec(
        "fs_list", "List a folder of the workspace. The names of folders end in a slash.", object_schema(path=_FOLDER)
    )

    def _work(self, workspace: Workspace, arguments: dict[str, Any]) -> FSResult:
        return files.listed(workspace, arguments["path"])


class FsEditTool(WorkspaceTool):
    """Replaces a text in a file."""

    spec = _spec(
        "fs_edit",
        "Replace a text in a file of the workspace. old_text must be in the file exactly once, to the last space; "
        "add the lines around it until it is, or set replace_all to replace it everywhere. Read the file first.",
        object_schema(
            "path",
            "old_text",
            "new_text",
            path=_PATH,
            old_text=text("The text to replace, as it is in the file", minLength=1),
            new_text=text("What takes its place; empty to delete it"),
            replace_all=_FLAG,
        ),
        WRITES,
    )

    def _work(self, workspace: Workspace, arguments: dict[str, Any]) -> FSResult:
        path, old, new = (arguments[name] for name in ("path", "old_text", "new_text"))
        return files.edit(workspace, path, old, new, replace_all=arguments["replace_all"])


class FsSearchTool(WorkspaceTool):
    """Finds lines in files."""

    spec = _spec(
        "fs_search",
        "Find the lines in the files of the workspace that contain a text, each with its file and number. Folders "
        "of dependencies, caches and git are left out.",
        object_schema(
            "pattern",
            pattern=text("The text that a line contains", minLength=1),
            path=_FOLDER,
            regex={**_FLAG, "description": "Whether pattern is a regular expression"},
            glob=text("Only files whose name or path fits, such as *.py", default=""),
            ignore_case=_FLAG,
        ),
    )

    def _work(self, workspace: Workspace, arguments: dict[str, Any]) -> FSResult:
        query = Query(*(arguments[name] for name in ("pattern", "regex", "glob", "ignore_case")))
        return files.search(workspace, arguments["path"], query)


class CommandTool(DescribedTool):
    """A tool that runs a program in a workspace; the calls of one step take their turns."""

    def __init__(self, commands: Commands) -> None:
        self.commands = commands

    @property
    def effects(self) -> frozenset[Effect]:
        return RUNS if self.commands.confined else RUNS | {Effect.NETWORK}

    def workspace_access(self, arguments: Mapping[str, Any]) -> WorkspaceAccess:
        return WorkspaceAccess(str(self.commands.workspace.path))

    async def _execute(self, tool_call_params: ToolCallParams) -> str | Message:
        arguments = tool_call_params.arguments or self.parse(tool_call_params.tool_call)
        async with self.commands.workspace.changes:
            result = await self._run(arguments)
        shown = self._rendered(result)
        return shown if result.ok else tool_message(tool_call_params.tool_call, shown, failed=True)

    @abstractmethod
    async def _run(self, arguments: dict[str, Any]) -> ShellResult: ...

    def _rendered(self, result: ShellResult) -> str:
        return result.text


class ShellRunTool(CommandTool):
    """Runs a command line."""

    spec = _spec(
        "shell_run",
        f"Run a command line of the shell. {_CONFINED}",
        object_schema("cmd", cmd=text("The command line, such as: git diff --stat", minLength=1)),
        RUNS,
    )

    @property
    def description(self) -> str:
        return self.spec.description + self.commands.sandbox.notes

    async def _run(self, arguments: dict[str, Any]) -> ShellResult:
        return await self.commands.run(arguments["cmd"])


class PythonRunTool(CommandTool):
    """Runs the tests or a snippet."""

    spec = _spec(
        "python_run",
        f"Run pytest, or a snippet of Python that can import the workspace's modules. {_CONFINED}",
        object_schema("mode", mode=text("pytest or snippet"), code=text('The code, for mode "snippet"')),
        RUNS,
    )

    async def _run(self, arguments: dict[str, Any]) -> ShellResult:
        return await run_python(self.commands, arguments["mode"], arguments.get("code"))
