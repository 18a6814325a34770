"""The tools that work in a workspace: on its files, and by commands and Python that run in it."""

import asyncio
import logging
import os
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from task.closing import close_all, run_to_completion
from task.conversation.messages import Message, ToolCall, tool_message
from task.errors import ToolError
from task.permissions.decisions import WorkspaceAccess
from task.permissions.taint import Origin
from task.tools.base import BaseTool, ToolSpec, object_schema, text
from task.tools.models import Caller, Effect, ToolCallParams
from task.tools.workspace import files
from task.tools.workspace.commands import CommandLimits, Commands, ShellResult, run_python
from task.tools.workspace.files import FSResult
from task.tools.workspace.root import PathEscape, Workspace

logger = logging.getLogger(__name__)

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


@dataclass(frozen=True, slots=True)
class FolderTools:
    """The tools of one folder; none, and `refused` says why, where they cannot work in it.

    `handlers` are a program's own, which it adds when it likes.
    """

    folder: Path
    refused: str = ""
    commands: Commands | None = None
    tools: Sequence[BaseTool] = ()
    workspaces: Sequence[Workspace] = ()
    handlers: list[BaseTool] = field(default_factory=list[BaseTool])

    async def of(self, _: Caller) -> list[BaseTool]:
        """The tools of the folder, for every caller; without a sandbox none that run commands."""
        missing = await self.missing()
        return [*self.handlers, *(tool for tool in self.tools if not (missing and isinstance(tool, CommandTool)))]

    async def missing(self) -> tuple[str, ...]:
        """Sentences about what the tools of the folder cannot do, and why."""
        if self.commands is None:
            return (f"The tools cannot work here: {self.refused}.",)
        commands = self.commands
        without = await asyncio.to_thread(lambda: commands.available)  # the first time takes a moment
        return (without,) if without else ()

    async def close(self) -> None:
        if self.commands is not None:
            await close_all(self.commands.close)
        for workspace in self.workspaces:
            workspace.close()


class CallerWorkspaces:
    """The workspaces that an operator offers to callers of the HTTP API and DIAL, opened on first use.

    `folder_of` finds a principal's folder, which all its owners share; `limits` are those of its commands.
    """

    def __init__(self, folder_of: Callable[[str], Path | None], limits: CommandLimits) -> None:
        self._folder_of, self._limits = folder_of, limits
        self._opened: dict[tuple[Path, int, int], FolderTools] = {}

    async def tools(self, caller: Caller) -> list[BaseTool]:
        """The tools of the caller's workspace; none without a workspace, or while its folder cannot be opened."""
        folder = self._folder_of(await caller.principal())
        if folder is None:
            return []
        try:
            found = folder.stat()
            key = (folder, found.st_dev, found.st_ino)  # another folder may have taken its place
            if key not in self._opened:
                workspace = Workspace(folder)
                commands = Commands(workspace, self._limits, gated=True)
                tools = workspace_tools(workspace, commands)
                self._opened[key] = FolderTools(folder, "", commands, tools, [workspace])
        except OSError as error:
            logger.warning("a workspace cannot be opened (%s)", type(error).__name__)
            return []
        return await self._opened[key].of(caller)

    async def close(self) -> None:
        opened, self._opened = self._opened, {}
        await close_all(*(folder.close for folder in opened.values()))


def _spec(name: str, description: str, parameters: dict[str, Any], effects: frozenset[Effect] = READS) -> ToolSpec:
    # A file may hold what the model wrote itself, so no address that a tool reads or prints counts as known.
    return ToolSpec(name, description, parameters, effects, origin=Origin.MADE)


class WorkspaceTool(BaseTool):
    """A tool that works on the files of a workspace; the gate, the user and the tool see the same, real path.

    `operation` takes the workspace, the path, and the other arguments by the names of the schema.
    """

    operation: Callable[..., FSResult]

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace

    def workspace_access(self, arguments: Mapping[str, Any]) -> WorkspaceAccess | None:
        root, path = self.workspace.path, str(arguments["path"])
        try:
            return WorkspaceAccess(str(root), (self.workspace.normalised(path),))
        except PathEscape:
            named = path.lstrip("/") if self.workspace.rerooted else os.path.expanduser(path)
            return WorkspaceAccess(str(root), (os.path.realpath(root / named),))
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
        place, writes = self._place(arguments), Effect.WRITE in self.effects
        # Calls that change files take their turns, of which each ends with its thread, also when it is stopped.
        async with self.workspace.changes if writes else nullcontext():
            work = asyncio.to_thread(self._work, place, arguments)
            result = await (run_to_completion(work) if writes else work)
        if result.ok:
            return self._rendered(arguments, result)
        return tool_message(tool_call_params.tool_call, f"ERROR: {result.detail}", failed=True)

    def _work(self, workspace: Workspace, arguments: dict[str, Any]) -> FSResult:
        known = self.parameters["properties"].keys() & arguments.keys() - {"path"}
        return self.operation(workspace, arguments["path"], **{name: arguments[name] for name in known})

    def _place(self, arguments: Mapping[str, Any]) -> Workspace:
        return self.workspace

    def _rendered(self, arguments: dict[str, Any], result: FSResult) -> str:
        return result.detail


class FsReadTool(WorkspaceTool):
    """Reads a text file, a page at a time if it is long."""

    operation = staticmethod(partial(files.read, room=files.PAGE_CHARS))
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


class FsWriteTool(WorkspaceTool):
    """Makes or replaces a text file."""

    operation = staticmethod(files.write)
    spec = _spec(
        "fs_write",
        "Write a UTF-8 text file of the workspace, whole: what was in it is replaced. Folders are made as needed. "
        "To change a part of a file use fs_edit.",
        object_schema("path", "content", path=_PATH, content=text("The whole new content")),
        WRITES,
    )


class FsListTool(WorkspaceTool):
    """Lists a folder."""

    operation = staticmethod(files.listed)
    spec = _spec(
        "fs_list", "List a folder of the workspace. The names of folders end in a slash.", object_schema(path=_FOLDER)
    )


class FsEditTool(WorkspaceTool):
    """Replaces a text in a file."""

    operation = staticmethod(files.edit)
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


class FsSearchTool(WorkspaceTool):
    """Finds lines in files."""

    operation = staticmethod(files.search)
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


class CommandTool(BaseTool):
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
