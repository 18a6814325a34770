"""Start the process of a kernel in the sandbox: forked from a template, or, where that cannot be, from its program."""

import asyncio
import logging
import os
import select
from asyncio.subprocess import DEVNULL, PIPE, Process
from contextlib import suppress
from pathlib import Path
from socket import socket

from mcp_servers.python_interpreter.config import Config
from mcp_servers.python_interpreter.forks import PROGRAM, ForkFailed, Templates, pid_of, readable
from mcp_servers.python_interpreter.launch import Launcher
from mcp_servers.python_interpreter.places import KernelFolders
from mcp_servers.sandbox import Policy, command

logger = logging.getLogger(__name__)

HOLDING = ["/bin/sh", "-c", "echo && exec sleep infinity"]  # keeps a sandbox of bubblewrap's for the kernel


class KernelProcess:
    """A kernel's process by its descriptor; `bubblewrap` is the process that keeps its sandbox."""

    def __init__(self, descriptor: int, connection: socket | None = None, bubblewrap: Process | None = None) -> None:
        self.pid = pid_of(descriptor)
        self.bubblewrap = bubblewrap
        self._descriptor = descriptor
        self._connection = connection

    def has_ended(self) -> bool:
        if self._descriptor < 0:
            return True
        poll = select.poll()
        poll.register(self._descriptor, select.POLLIN)
        return bool(poll.poll(0))

    async def ended(self) -> None:
        """Return when it has."""
        await readable(self._descriptor)

    def close(self) -> None:
        """Give up the descriptor of an ended process; once more is allowed, when something else may have its number."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)
        if self._connection is not None:
            self._connection.close()


class Starter:
    """Starts the kernels of one server; `folder` is the template's own, `program` what it runs."""

    def __init__(self, config: Config, launcher: Launcher, folder: Path, program: Path = PROGRAM) -> None:
        self._config = config
        self._launcher = launcher
        place = KernelFolders(folder, None)
        self._templates = Templates(config, place, environment(place, config), program)

    async def start(
        self, place: KernelFolders, arguments: list[str], variables: dict[str, str]
    ) -> tuple[KernelProcess, int]:
        """The kernel's process, and the mark of all its processes."""
        policy = self._launcher.policy(place, variables)
        log = os.open(place.root / "log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        assert policy.mark is not None
        try:
            return await self._forked(policy, arguments, log), policy.mark
        except ForkFailed as failure:
            logger.warning("a kernel is started from its program: %s", failure)
            process = await _launched(policy, [str(self._config.python), "-m", "ipykernel_launcher", *arguments], log)
            sandbox = process if policy.tier == "bubblewrap" else None
            return KernelProcess(os.pidfd_open(process.pid), bubblewrap=sandbox), policy.mark
        finally:
            os.close(log)

    async def close(self) -> None:
        await self._templates.close()

    async def _forked(self, policy: Policy, arguments: list[str], log: int) -> KernelProcess:
        if policy.tier != "bubblewrap":
            return KernelProcess(*await self._templates.fork(policy, ["", *arguments], log))
        # The system refuses a second change of a session's share within a tenth of a second: it is the kernel's.
        holding = policy._replace(limits=policy.limits._replace(nice=None))
        sandbox = await _launched(holding, HOLDING, log)
        assert sandbox.stdout is not None
        try:
            if not await sandbox.stdout.readline():
                raise ForkFailed("bubblewrap did not start")
            return KernelProcess(*await self._templates.fork(policy, [str(sandbox.pid), *arguments], log), sandbox)
        except BaseException:
            with suppress(ProcessLookupError):
                sandbox.kill()  # all in it ends as well
            raise


async def _launched(policy: Policy, argv: list[str], log: int) -> Process:
    return await asyncio.create_subprocess_exec(
        *command(policy, argv), env={}, stdin=DEVNULL, stdout=PIPE if argv is HOLDING else log, stderr=log,
        start_new_session=True,
    )  # fmt: skip


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
