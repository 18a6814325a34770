"""Fork kernels from a template process, which is started again when it has ended; its kernels live on."""

import asyncio
import os
import select
import socket
from asyncio.subprocess import Process
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from mcp_servers.python_interpreter.config import Config
from mcp_servers.python_interpreter.places import KernelFolders
from mcp_servers.sandbox import Policy

PROGRAM = Path(__file__).parent / "template.py"
ATTEMPTS = 2


class ForkFailed(Exception):
    """No process came of a request; the text may be shown to an operator."""


class Templates:
    """One template at a time. `environment` is its whole environment; kernels get their own."""

    def __init__(
        self, config: Config, place: KernelFolders, environment: Mapping[str, str], program: Path = PROGRAM
    ) -> None:
        self._config = config
        self._program = program
        self._place = place
        self._environment = dict(environment)
        self._process: Process | None = None
        self._requests: socket.socket | None = None
        self._starting = asyncio.Lock()

    async def fork(self, policy: Policy, arguments: list[str], log: int) -> tuple[int, socket.socket]:
        """A new kernel under the policy: a descriptor of its process, and a socket whose end is the kernel's.

        Raises:
            ForkFailed: it did not start, also not from a new template.
        """
        for _ in range(ATTEMPTS):
            with suppress(OSError):
                requests = await self._running()
                return await self._forked(requests, "\0".join([policy.to_json(), *arguments]), log)
        raise ForkFailed("no kernel could be forked")

    async def close(self) -> None:
        if self._requests is not None:
            self._requests.close()
        if self._process is not None:
            with suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()

    async def _running(self) -> socket.socket:
        async with self._starting:
            if self._requests is None or _has_hung_up(self._requests):
                await self.close()
                self._requests = await self._started()
            return self._requests

    async def _started(self) -> socket.socket:
        self._place.make()
        ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        log = os.open(self._place.root / "log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        argv = [str(self._config.python), str(self._program), *(["--preload"] if self._config.preload else [])]
        try:
            self._process = await asyncio.create_subprocess_exec(
                *argv, cwd="/", env=self._environment, stdin=its.fileno(), stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip
        finally:
            its.close()
            os.close(log)
        return ours

    async def _forked(self, requests: socket.socket, request: str, log: int) -> tuple[int, socket.socket]:
        control, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            with its:
                socket.send_fds(requests, [request.encode()], [log, log, its.fileno()])
            control.setblocking(False)
            async with asyncio.timeout(self._config.limits.start_seconds):
                return await _process_of(control), control
        except BaseException:
            control.close()
            raise


async def readable(descriptor: int) -> None:
    """Return when something can be read; for a process's descriptor: when the process has ended."""
    loop = asyncio.get_running_loop()
    ready = loop.create_future()
    own = os.dup(descriptor)  # the loop knows one reader per descriptor
    loop.add_reader(own, lambda: ready.done() or ready.set_result(None))
    try:
        await ready
    finally:
        loop.remove_reader(own)
        os.close(own)


def _has_hung_up(connection: socket.socket) -> bool:
    poll = select.poll()
    poll.register(connection, 0)  # a hang-up is always reported
    return bool(poll.poll(0))


async def _process_of(control: socket.socket) -> int:
    while True:
        await readable(control.fileno())
        message, descriptors, _, _ = socket.recv_fds(control, 100, 1)
        if descriptors:
            return descriptors[0]
        if not message:
            raise ConnectionError("the template closed the request")


def pid_of(process: int) -> int:
    """The process id behind a process's descriptor; below 1 when it has ended and is gone."""
    with open(f"/proc/self/fdinfo/{process}", "rb") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith(b"Pid:"))
