"""The console's agent: the settings of `teps` hold, and its tools work in one folder."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from task.errors import SettingsError, ToolError
from task.permissions.policy import Rule
from task.product.opening import check, opened
from task.product.parts import command_limits
from task.product.profile import Profile, Services
from task.product.skills import workspace_skills
from task.settings import Settings
from task.tools.base import FRAMEWORK
from task.tools.workspace.bounds import refusal
from task.tools.workspace.commands import Commands
from task.tools.workspace.framework import framework_tools
from task.tools.workspace.project import project_notes
from task.tools.workspace.root import FileLimits, Workspace
from task.tools.workspace.tools import FolderTools

# Files outside the folder, where they may be reached at all: their paths are absolute.
_ASKED_OUTSIDE = Rule("ask", "fs_read", path="/*")
_REST = Rule("allow", trusted=True)


@dataclass(frozen=True, slots=True)
class ConsoleProduct:
    """What the console and `TEPSManager` work with.

    `settings` are those that it was made from.
    """

    services: Services
    profile: Profile
    tools: FolderTools
    settings: Settings

    async def close(self) -> None:
        await self.tools.close()
        await self.services.close()


async def console_product(settings: Settings, folder: Path) -> ConsoleProduct:
    """The console's product in `folder`.

    Raises:
        SettingsError: a setting would break the first request.
    """
    check(settings)
    tools = folder_tools(settings, folder)
    return in_folder(settings, tools, *opened(settings))


def in_folder(settings: Settings, tools: FolderTools, services: Services, profile: Profile) -> ConsoleProduct:
    """The product, as its settings have opened it, with these tools of a folder and the rules of `teps`."""
    teps = settings.teps
    policy, place = profile.rules.policy, len(settings.permissions.rules)  # the operator's own rules decide first
    added = (_REST,) if not teps.permission_required else (_ASKED_OUTSIDE,) if not teps.secure_mode else ()
    policy = replace(policy, rules=(*policy.rules[:place], *added, *policy.rules[place:]))
    rules, start = replace(profile.rules, policy=policy), str(teps.bash.working_directory or ".")
    project = None if tools.refused else partial(project_notes, tools.folder, start)
    own = [] if tools.refused else workspace_skills(settings, tools.folder)
    profile = replace(profile, workspace_tools=tools.of, folder=str(tools.folder), aliases=FRAMEWORK, rules=rules)
    profile = replace(profile, project=project, skills=(*profile.skills, *own))
    return ConsoleProduct(services, profile, tools, settings)


def folder_tools(settings: Settings, folder: Path, make: Callable[..., Workspace] = Workspace) -> FolderTools:
    """The tools that the settings give in this folder, which `make` opens.

    Raises:
        SettingsError: there is no folder of the settings' name in it, where commands start.
    """
    teps, folder = settings.teps, folder.resolve()
    if reason := refusal(folder, (settings.data_dir, settings.cache_dir), wide=not teps.secure_mode):
        return FolderTools(folder, reason)
    files = [file.resolve() for file in settings.files]
    limits = FileLimits(
        _endings(teps.file_read.allowed_extensions),
        _endings(teps.file_write.allowed_extensions),
        teps.file_read.max_file_size,
        teps.file_write.max_file_size,
        frozenset(str(file.relative_to(folder)) for file in files if file.is_relative_to(folder)),
    )
    workspace, machine, directory = make(folder, limits=limits, rerooted=False), None, "."
    if (chosen := teps.bash.working_directory) is not None:
        try:
            directory = workspace.normalised(str(chosen))
            workspace.entries(directory)
        except (ToolError, OSError) as error:
            workspace.close()
            fault = f"there is no folder {chosen} in {workspace.path}. Correct it."
            raise SettingsError(f"AGENT_TEPS__BASH__WORKING_DIRECTORY: {fault}") from error
    if not teps.secure_mode:
        hidden = frozenset(str(file).lstrip("/") for file in files)
        machine = Workspace(Path("/"), limits=replace(limits, hidden=hidden))
    own, seconds = command_limits(settings), settings.limits.tool_seconds
    own = replace(own, seconds=seconds) if seconds is not None else own
    commands = Commands(workspace, own, unsafe=not teps.secure_mode, gated=True)
    workspaces = [workspace, *([machine] if machine is not None else [])]
    tools = framework_tools(workspace, commands, directory, machine)
    return FolderTools(folder, "", commands, tools, workspaces)


def _endings(extensions: list[str] | None) -> tuple[str, ...] | None:
    if extensions is None or "*" in extensions:
        return None
    return tuple(f".{text.lower().lstrip('*').lstrip('.')}" for text in extensions)
