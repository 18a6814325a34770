"""One IPython kernel: its process, its folders, and requests to it."""

import asyncio
from pathlib import Path
from typing import Self

import zmq.asyncio

from mcp_servers.python_interpreter.config import Config
from mcp_servers.python_interpreter.envelope import Message
from mcp_servers.python_interpreter.launch import end_everything
from mcp_servers.python_interpreter.places import KernelFolders
from mcp_servers.python_interpreter.starting import KernelProcess, Starter, environment
from mcp_servers.python_interpreter.wire import KernelWire, Output, Reply

BOOTSTRAP = (Path(__file__).parent / "bootstrap.py").read_text(encoding="utf-8")


class KernelFailed(Exception):
    """A kernel that could not be started; the text may be shown to an operator."""


class Kernel:
    """A running kernel; its owner ends it with `kill`."""

    def __init__(self, place: KernelFolders, process: KernelProcess, mark: int, wire: KernelWire) -> None:
        self.place = place
        self.died = asyncio.create_task(process.ended())
        self._process = process
        self._mark = mark
        self._wire = wire

    @classmethod
    async def start(cls, place: KernelFolders, starter: Starter, config: Config, context: zmq.asyncio.Context) -> Self:
        """A kernel that is ready to run code in `place`.

        Raises:
            KernelFailed: it ended, or did not answer in time.
        """
        place.make()
        wire = KernelWire(place.run, context)
        connection = place.run / "connection.json"
        connection.write_bytes(wire.connection_file())
        place.give(connection)
        arguments = ["-f", str(connection), "--HistoryManager.enabled=False", "--IPythonKernel._execute_sleep=0"]
        process, mark = await starter.start(place, arguments, environment(place, config))
        kernel = cls(place, process, mark, wire)
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
        # A busy event loop learns of the end too late: code sent to a kernel that was killed while it waited would be
        # lost.
        return not self._process.has_ended()

    async def execute(self, code: str, output: Output) -> Reply:
        return await self._wire.execute(code, output)

    async def interrupt(self) -> None:
        await self._wire.interrupt()

    async def kill(self) -> None:
        """End the kernel and every process that its code has started; again, if that was cancelled."""
        group = self.pid if self.alive else None
        await end_everything(group, self._mark, self.place.uid, self._process.bubblewrap)
        await asyncio.wait({self.died})  # awaiting the task itself would cancel it with us
        self._process.close()
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


def _preparation(config: Config) -> str:
    limits = config.limits
    arguments = f"{config.preload}, {limits.output_bytes}, {limits.rest_seconds}"
    run = f"exec({BOOTSTRAP!r}, space), space['prepare']({arguments})"
    return f"(lambda space: ({run}))({{'__name__': 'bootstrap'}})"


def _nothing(message: Message) -> None: ...
