"""Start the process of a kernel in the sandbox: forked from a template, or, where that cannot be, from its program."""

from __future__ import annotations

import asyncio
import logging
import os
import select
from asyncio.subprocess import DEVNULL, Process
from pathlib import Path
from socket import socket

from mcp_servers.python_interpreter.config import Config
from mcp_servers.python_interpreter.forks import ForkFailed, Templates, pid_of, readable
from mcp_servers.python_interpreter.launch import Launcher
from mcp_servers.python_interpreter.places import KernelFolders
from mcp_servers.sandbox import Policy, command

logger = logging.getLogger(__name__)


class KernelProcess:
    """A kernel's process by its descriptor; `kept` is what must live as long as it does."""

    def __init__(self, descriptor: int, kept: Process | socket) -> None:
        self._descriptor = descriptor
        self._kept = kept
        self.pid = pid_of(descriptor)

    def has_ended(self) -> bool:
        poll = select.poll()
        poll.register(self._descriptor, select.POLLIN)
        return bool(poll.poll(0))

    async def ended(self) -> None:
        """Return when it has."""
        await readable(self._descriptor)

    def close(self) -> None:
        """Give up the descriptor of an ended process."""
        os.close(self._descriptor)
        if isinstance(self._kept, socket):
            self._kept.close()


class Starter:
    """Starts the kernels of one server; `folder` is the template's own."""

    def __init__(self, config: Config, launcher: Launcher, folder: Path) -> None:
        self._config = config
        self._launcher = launcher
        place = KernelFolders(folder, None)
        self._templates = Templates(config, place, environment(place, config)) if launcher.forks else None

    async def start(
        self, place: KernelFolders, arguments: list[str], variables: dict[str, str]
    ) -> tuple[KernelProcess, int]:
        """The kernel's process, and the mark of all its processes."""
        policy = self._launcher.policy(place, variables)
        log = os.open(place.root / "log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        assert policy.mark is not None
        try:
            return await self._process(policy, arguments, log), policy.mark
        finally:
            os.close(log)

    async def close(self) -> None:
        if self._templates is not None:
            await self._templates.close()

    async def _process(self, policy: Policy, arguments: list[str], log: int) -> KernelProcess:
        if self._templates is not None:
            try:
                return KernelProcess(*await self._templates.fork(policy, arguments, log))
            except ForkFailed as failure:
                logger.warning("a kernel is started from its program: %s", failure)
        argv = command(policy, [str(self._config.python), "-m", "ipykernel_launcher", *arguments])
        process = await asyncio.create_subprocess_exec(
            *argv, env={}, stdin=DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
        return KernelProcess(os.pidfd_open(process.pid), process)


def environment(place: KernelFolders, config: Config) -> dict[str, str]:
    """The kernel's whole environment: nothing of the server's own."""
    home = str(place.home)
    return {
        "PATH": f"{config.python.parent}:/usr/local/bin:/usr/bin:/bin",
        "HOME": home,
        "TMPDIR": home,
        "IPYTHONDIR": f"{home}/.ipython",
        "MPLCONFIGDIR": f"{home}/.matplotlib",
        "MPLBACKEND": "module://matplotlib_inline.backend_inline",
        "PLOTLY_RENDERER": "plotly_mimetype",
        "LANG": "C.UTF-8",
        "OPENBLAS_NUM_THREADS": "1",
        "OMP_NUM_THREADS": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
