"""One IPython kernel: its process, its folders, and requests to it."""

from __future__ import annotations

import asyncio
import os
from asyncio.subprocess import DEVNULL, Process
from pathlib import Path

import zmq.asyncio

from mcp_servers.python_interpreter.config import Config
from mcp_servers.python_interpreter.envelope import Message
from mcp_servers.python_interpreter.launch import Launcher, end_everything
from mcp_servers.python_interpreter.places import KernelFolders
from mcp_servers.python_interpreter.wire import KernelWire, Output, Reply

BOOTSTRAP = (Path(__file__).parent / "bootstrap.py").read_text(encoding="utf-8")


class KernelFailed(Exception):
    """A kernel that could not be started; the text may be shown to an operator."""


class Kernel:
    """A running kernel; its owner ends it with `kill`."""

    def __init__(self, place: KernelFolders, process: Process, mark: int, wire: KernelWire) -> None:
        self.place = place
        self._process = process
        self._mark = mark
        self._wire = wire
        self.died = asyncio.create_task(process.wait())

    @classmethod
    async def start(
        cls, place: KernelFolders, launcher: Launcher, config: Config, context: zmq.asyncio.Context
    ) -> Kernel:
        """A kernel that is ready to run code in `place`.

        Raises:
            KernelFailed: it ended, or did not answer in time.
        """
        place.make()
        wire = KernelWire(place.run, context)
        connection = place.run / "connection.json"
        connection.write_bytes(wire.connection_file())
        place.give(connection)
        argv = [str(config.python), "-m", "ipykernel_launcher", "-f", str(connection), "--HistoryManager.enabled=False"]
        confined = launcher.confine(place, argv, environment(place, config))
        log = os.open(place.root / "log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            process = await asyncio.create_subprocess_exec(
                *confined.command, env={}, stdin=DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        finally:
            os.close(log)
        kernel = cls(place, process, confined.mark, wire)
        try:
            await kernel._prepare(config)
        except BaseException:
            await kernel.kill()
            raise
        return kernel

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return not self.died.done() and not _has_ended(self.pid)

    async def execute(self, code: str, output: Output) -> Reply:
        return await self._wire.execute(code, output)

    async def interrupt(self) -> None:
        await self._wire.interrupt()

    async def kill(self) -> None:
        """End the kernel and every process that its code has started."""
        await end_everything(self._process.pid, self._mark, self.place.uid)
        await self.died
        self._wire.close()

    async def _prepare(self, config: Config) -> None:
        preparing = asyncio.ensure_future(self._warm(config))
        try:
            limit = config.limits.start_seconds
            await asyncio.wait({preparing, self.died}, timeout=limit, return_when=asyncio.FIRST_COMPLETED)
            if preparing.done():
                preparing.result()
                return
        finally:
            preparing.cancel()
            await asyncio.wait({preparing})
        what = "ended" if self.died.done() else "did not answer"
        log = (self.place.root / "log").read_text(errors="replace")[-2000:].strip()
        raise KernelFailed(f"the kernel {what} while it was starting: {log or 'without a message'}")

    async def _warm(self, config: Config) -> None:
        await self._wire.ready()
        reply = await self._wire.execute(_preparation(config), _nothing, silent=True)
        if reply.status != "ok":
            raise KernelFailed(f"the kernel could not be prepared: {reply.ename}: {reply.evalue}")
        await self._wire.execute("0", _nothing)  # what the first result needs is loaded now


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


def _has_ended(pid: int) -> bool:
    # A busy event loop learns of the end too late: code sent to a kernel that was killed while it waited would be lost.
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:  # it has been reaped
        return True


def _preparation(config: Config) -> str:
    run = f"exec({BOOTSTRAP!r}, space), space['prepare']({config.preload}, {config.limits.output_bytes})"
    return f"(lambda space: ({run}))({{'__name__': 'bootstrap'}})"


def _nothing(message: Message) -> None: ...
