"""Run commands in a workspace: the sandbox launcher is the boundary, the list of commands is for the user's sake."""

import asyncio
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from pathlib import Path
from secrets import token_hex
from tempfile import mkdtemp
from typing import Any, Self
from urllib.parse import urlsplit

from task.closing import run_to_completion
from task.permissions.policy import is_listed
from task.tools.workspace.bounds import python_of, toolchains
from task.tools.workspace.git import References, git_folders, keep_references, protected_paths, references
from task.tools.workspace.launcher import Sandbox, ShellResult, launched, sandbox_here
from task.tools.workspace.root import Workspace
from task.utils.folders import delete

BLOCKED_CODE, INVALID_CODE = 126, 2
MIB = 1024 * 1024
SHELLS = ("/bin/bash", "/usr/bin/bash", "/bin/sh")
HOME, TEMPORARY = "home", "temporary"
OPEN_FILES = 1024
_URL = re.compile(r"https?://[^\s'\"]+")
# No settings of the user's or the machine's, no hooks, no other programs.
_GIT_SETTINGS = {
    "core.pager": "cat",
    "core.fsmonitor": "false",
    "core.hooksPath": "/dev/null",
    "protocol.ext.allow": "never",
    "maintenance.auto": "false",  # a command takes no objects away
}
_ENVIRONMENT = {
    "LANG": "C.UTF-8",
    "TERM": "dumb",
    "NO_COLOR": "1",
    "PAGER": "cat",
    "PIP_NO_INPUT": "1",
    "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_CONFIG_COUNT": str(len(_GIT_SETTINGS)),
    **{f"GIT_CONFIG_KEY_{number}": name for number, name in enumerate(_GIT_SETTINGS)},
    **{f"GIT_CONFIG_VALUE_{number}": value for number, value in enumerate(_GIT_SETTINGS.values())},
}


class PyRunResult(ShellResult):
    """What a run of Python left. Source: planner and executor reference, PyRunResult."""


@dataclass(frozen=True, slots=True)
class CommandLimits:
    """Limits of one command with everything it starts; of each output the head and the tail are kept."""

    seconds: float = 60.0
    memory_bytes: int = 4096 * MIB
    file_bytes: int = 1024 * MIB
    processes: int = 256
    output_bytes: int = 64 * 1024


class Commands:
    """Runs commands in one workspace, with a scratch folder outside it that `close` removes.

    Commands that are not on the documented list are blocked, unless `gated`: then a gate has decided about each of
    them before. `unsafe`: where no sandbox works, commands run without one rather than not at all. `sandbox` is the one
    to use; default: the best of this machine.
    """

    def __init__(
        self,
        workspace: Workspace,
        limits: CommandLimits | None = None,
        *,
        unsafe: bool = False,
        gated: bool = False,
        sandbox: Sandbox | None = None,
    ) -> None:
        self.workspace = workspace
        self._limits = limits or CommandLimits()
        self._unsafe = unsafe
        self._gated = gated
        self._sandbox = sandbox
        self._references: dict[Path, References] = {}  # as the latest command found them
        self._toolchains = lru_cache(partial(toolchains, workspace.path, os.environ))  # looking for programs takes time

    @property
    def sandbox(self) -> Sandbox:
        """The sandbox that commands run in. Takes a moment the first time."""
        return self._sandbox or sandbox_here()

    @property
    def available(self) -> str | None:
        """Why commands cannot be run here; None when they can. Takes a moment the first time."""
        return None if self._unsafe else self.sandbox.missing

    @property
    def confined(self) -> bool:
        """Whether commands reach nothing but the workspace."""
        return self.sandbox.missing is None

    async def run(self, cmd: str, seconds: float | None = None, directory: str = ".") -> ShellResult:
        """Run a command line in a folder of the workspace, without network."""
        if not self._gated and not is_listed(cmd, str(self.workspace.path)):
            return ShellResult(False, "", f"blocked: {cmd}", BLOCKED_CODE)
        return await self.run_words(_shell(cmd), seconds, {"workdir": str(self.workspace.path / directory)})

    async def setup(self, cmd: str, seconds: float | None = None) -> ShellResult:
        """Run the user's own command line with the public internet and the hosts it names, to install things."""
        hosts: dict[str, None] = {}
        for url in _URL.findall(cmd):
            with suppress(ValueError):  # not a URL
                parts = urlsplit(url)
                port = parts.port or (443 if parts.scheme == "https" else 80)
                if parts.hostname is not None:
                    hosts[f"[{parts.hostname}]:{port}" if ":" in parts.hostname else f"{parts.hostname}:{port}"] = None
        return await self.run_words(_shell(cmd), seconds, {"network": ["*", *hosts], "tier": "auto"})

    async def run_words(
        self,
        words: Sequence[str],
        seconds: float | None = None,
        changes: Mapping[str, Any] | None = None,
        variables: Mapping[str, str] | None = None,
        python: Path | None = None,
        output_bytes: int | None = None,
    ) -> ShellResult:
        """Run a program with its arguments, without network, under a policy with `changes`, for `python` if given."""
        sandbox = await asyncio.to_thread(lambda: self.sandbox)
        if missing := self.available:
            return ShellResult(False, "", f"blocked: {missing}", BLOCKED_CODE)
        root, kept_bytes = self.workspace.path, output_bytes or self._limits.output_bytes
        policy = await asyncio.to_thread(self._policy, variables or {}, python)
        before = self._references
        policy |= {"tier": sandbox.tier, **(changes or {})}
        try:
            done = await launched(policy, words, seconds or self._limits.seconds, kept_bytes)
        finally:
            keeping = asyncio.to_thread(lambda: [keep_references(root, *one) for one in before.items()])
            said = list(filter(None, await run_to_completion(keeping)))
        return replace(done, stderr="\n".join((done.stderr.rstrip("\n"), *said)).lstrip()) if said else done

    @cached_property
    def scratch(self) -> Path:
        """The folder where the commands have their home, temporary files and caches."""
        folder = Path(mkdtemp(prefix="dial-agent-run-")) / "scratch"  # beside it is what no command reaches
        for name in (HOME, TEMPORARY):
            (folder / name).mkdir(parents=True)
        return folder

    async def close(self) -> None:
        """Remove the scratch folder."""
        if "scratch" in self.__dict__:
            with suppress(OSError):
                await asyncio.to_thread(delete, self.__dict__.pop("scratch").parent)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _policy(self, variables: Mapping[str, str], python: Path | None) -> dict[str, Any]:
        root, scratch, limits = self.workspace.path, self.scratch, self._limits
        found = self._toolchains(python or python_of(root, os.environ))
        self._references = {folder: references(folder) for folder in git_folders(root)}
        objects = [folder / "objects" for folder in self._references if os.access(folder, os.W_OK)]
        with open("/proc/self/status") as status:
            umask = next((line.split()[1][-3:] for line in status if line.startswith("Umask:")), "022")
        return {
            "workdir": str(root),
            "read_write": [str(root), str(scratch)],
            "read_only": found.readable,
            "protected": protected_paths(root),
            "objects": [str(place) for place in objects if place.is_dir() and not place.is_symlink()],
            "kept": str(scratch.with_name("objects")),
            "environment": {
                **_ENVIRONMENT,
                "HOME": str(scratch / HOME),
                "TMPDIR": str(scratch / TEMPORARY),
                # The workspace shows only what the commands were meant to change.
                "PYTHONDONTWRITEBYTECODE": "1",
                "PYTEST_ADDOPTS": f"-o cache_dir={shlex.quote(f'{scratch}/pytest')}",
                **found.variables,
                "PATH": found.path,
                **variables,
            },
            "umask": umask,
            "limits": {
                "memory": None,  # of the address space: Node.js and Go reserve much more of it than they use
                "data": limits.memory_bytes,
                "run_memory": limits.memory_bytes,
                "file_bytes": limits.file_bytes,
                "open_files": OPEN_FILES,
                "processes": limits.processes,
            },
            "allow_unsafe": self._unsafe,
        }


def _shell(cmd: str) -> list[str]:
    return [next(filter(os.path.exists, SHELLS)), "-c", cmd]


async def run_python(
    commands: Commands, mode: str, code: str | None = None, seconds: float | None = None
) -> PyRunResult:
    """Run pytest ("pytest") or code ("snippet") with the workspace's Python."""
    python = str(python_of(commands.workspace.path, os.environ))
    if mode == "pytest":
        done = await commands.run_words([python, "-m", "pytest", "-q"], seconds)
    elif mode != "snippet":
        done = ShellResult(False, "", f"unknown mode: {mode}", INVALID_CODE)
    elif not code:
        done = ShellResult(False, "", "no code provided", INVALID_CODE)
    else:
        # A file of its own, so that tracebacks show its lines; the workspace's modules can be imported all the same.
        file = commands.scratch / f"snippet-{token_hex(4)}.py"
        file.write_text(code, errors="replace")
        try:
            variables = {"PYTHONPATH": str(commands.workspace.path)}
            done = await commands.run_words([python, str(file)], seconds, variables=variables)
        finally:
            file.unlink(missing_ok=True)
    return PyRunResult(done.ok, done.stdout, done.stderr, done.code)
