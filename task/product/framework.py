"""The product as the framework's reference has it: the settings of `teps` hold, and its tools work in one folder."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path

from task.approvals.rules import ApprovalRules
from task.blocking import close_all
from task.errors import SettingsError, ToolError
from task.llm.transport import READ_SECONDS
from task.permissions.policy import Rule
from task.product.parts import command_limits
from task.product.product import Product
from task.settings import Settings
from task.tools.base import BaseTool
from task.tools.models import Caller
from task.tools.workspace.framework import framework_tools, located
from task.tools.workspace.root import FileLimits, Workspace
from task.tools.workspace.shell import Commands
from task.tools.workspace.toolchains import refusal

logger = logging.getLogger(__name__)

# Files outside the folder, where they may be reached at all: their paths are absolute.
_ASKED_OUTSIDE = Rule("ask", "fs_read", path="/*")
_REST = Rule("allow", trusted=True)


class FrameworkProduct(Product):
    """The product of the console and of `TEPSManager`, whose tools work in `folder`.

    Raises: as `Product`.
    """

    def __init__(self, settings: Settings, folder: Path, read_seconds: float = READ_SECONDS) -> None:
        super().__init__(settings, read_seconds)
        self.folder = folder.resolve()

    @property
    def confirmation_seconds(self) -> float:
        """How long a person is waited for."""
        return self._settings.teps.confirmation_seconds

    @property
    def remembers(self) -> bool:
        """Whether a person may allow more than one call at once."""
        return self._settings.teps.remember_confirmations

    @property
    def upload_bytes(self) -> int:
        """The size of the largest file that is uploaded."""
        return self._settings.limits.max_upload_bytes

    @cached_property
    def approval_rules(self) -> ApprovalRules:
        rules, teps = super().approval_rules, self._settings.teps
        ordered = list(rules.policy.rules)
        place = len(self._settings.permissions.rules)  # the operator's own decide first
        if not teps.permission_required:
            ordered.insert(place, _REST)
        elif not teps.secure_mode:
            ordered.insert(place, _ASKED_OUTSIDE)
        return replace(rules, policy=replace(rules.policy, rules=tuple(ordered)))

    def continues(self, door: str) -> bool:
        return True

    @cached_property
    def refused(self) -> str:
        """Why the tools cannot work in the folder; empty if they can."""
        own = (self._settings.data_dir, self._settings.cache_dir)
        return refusal(self.folder, own, wide=not self._settings.teps.secure_mode)

    async def workspace_tools(self, caller: Caller) -> list[BaseTool]:
        """The tools of the folder, for every caller."""
        if self.refused:
            return []
        without = await asyncio.to_thread(lambda: self._commands.available)  # the first time takes a moment
        return self._without_commands if without else self._with_commands

    async def missing(self) -> tuple[str, ...]:
        """Sentences about what the tools of the folder cannot do, and why."""
        if self.refused:
            return (f"The tools cannot work here: {self.refused}.",)
        without = await asyncio.to_thread(lambda: self._commands.available)
        return (without,) if without else ()

    async def close(self) -> None:
        opened = vars(self)
        if "_commands" in opened:
            await close_all(self._commands.close)
        for name in ("_workspace", "_machine"):
            if (workspace := opened.get(name)) is not None:
                workspace.close()
        await super().close()

    @cached_property
    def _workspace(self) -> Workspace:
        teps, files = self._settings.teps, self._settings.files
        inside = (file.resolve() for file in files)
        limits = FileLimits(
            _endings(teps.file_read.allowed_extensions),
            _endings(teps.file_write.allowed_extensions),
            teps.file_read.max_file_size,
            teps.file_write.max_file_size,
            frozenset(str(file.relative_to(self.folder)) for file in inside if file.is_relative_to(self.folder)),
        )
        return Workspace(self.folder, limits=limits)

    @cached_property
    def _machine(self) -> Workspace | None:
        if self._settings.teps.secure_mode:
            return None
        hidden = frozenset(str(file.resolve()).lstrip("/") for file in self._settings.files)
        return Workspace(Path("/"), limits=replace(self._workspace.limits, hidden=hidden))

    @cached_property
    def _commands(self) -> Commands:
        limits, own = command_limits(self._settings), self._settings.limits.tool_seconds
        limits = replace(limits, seconds=own) if own is not None else limits
        return Commands(self._workspace, limits, unsafe=not self._settings.teps.secure_mode, gated=True)

    @cached_property
    def _with_commands(self) -> list[BaseTool]:
        return framework_tools(self._workspace, self._commands, self._directory, self._machine)

    @cached_property
    def _without_commands(self) -> list[BaseTool]:
        return framework_tools(self._workspace, machine=self._machine)

    @cached_property
    def _directory(self) -> str:
        chosen = self._settings.teps.bash.working_directory
        if chosen is None:
            return "."
        with suppress(ToolError, OSError):
            found = located(self._workspace, str(chosen))
            self._workspace.entries(found)
            return found
        raise SettingsError(
            f"AGENT_TEPS__BASH__WORKING_DIRECTORY: there is no folder {chosen} in {self.folder}. Correct it."
        )

    def check(self) -> None:
        super().check()
        if not self.refused:
            _ = self._directory


def _endings(extensions: list[str] | None) -> tuple[str, ...] | None:
    if extensions is None or "*" in extensions:
        return None
    return tuple(f".{text.lower().lstrip('*').lstrip('.')}" for text in extensions)
