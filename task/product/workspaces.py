"""The workspaces that an operator offers to callers of the HTTP API and DIAL."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

from task.closing import close_all
from task.tools.base import BaseTool
from task.tools.models import Caller
from task.tools.workspace.commands import CommandLimits, Commands
from task.tools.workspace.launcher import sandbox_here
from task.tools.workspace.root import Workspace
from task.tools.workspace.tools import workspace_tools

logger = logging.getLogger(__name__)


class Workspaces:
    """Opens each workspace when it is first used; its owners share it. `folder_of` is the folder of a principal."""

    def __init__(self, folder_of: Callable[[str], Path | None], limits: CommandLimits) -> None:
        self._folder_of = folder_of
        self._limits = limits
        self._opened: dict[tuple[Path, int, int], tuple[Workspace, Commands, list[BaseTool]]] = {}

    async def tools(self, caller: Caller) -> list[BaseTool]:
        """The tools of the caller's workspace; none without a workspace, or while its folder cannot be opened."""
        folder = self._folder_of(await caller.principal())
        if folder is None:
            return []
        try:
            await asyncio.to_thread(sandbox_here)  # the first time takes a moment
            return self._open(folder)
        except OSError as error:
            logger.warning("a workspace cannot be opened (%s)", type(error).__name__)
            return []

    def _open(self, folder: Path) -> list[BaseTool]:
        found = folder.stat()
        key = (folder, found.st_dev, found.st_ino)  # another folder may have taken its place
        if key not in self._opened:
            workspace = Workspace(folder)
            commands = Commands(workspace, self._limits, gated=True)
            tools = workspace_tools(workspace, None if commands.available else commands)
            self._opened[key] = workspace, commands, tools
        return self._opened[key][2]

    async def close(self) -> None:
        opened, self._opened = self._opened, {}
        await close_all(*(commands.close for _, commands, _ in opened.values()))
        for workspace, _, _ in opened.values():
            workspace.close()
