"""Kernels kept ready, so that a new conversation need not wait for one."""

import asyncio
import logging
import secrets
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import zmq.asyncio

from mcp_servers.python_interpreter.config import Config
from mcp_servers.python_interpreter.kernels import Kernel, KernelFailed
from mcp_servers.python_interpreter.launch import Launcher, abandoned
from mcp_servers.python_interpreter.places import KernelFolders
from mcp_servers.python_interpreter.starting import Starter
from mcp_servers.python_interpreter.uids import FIRST_UID, UIDS, Uids
from mcp_servers.sandbox import SandboxError, clear_uid

logger = logging.getLogger(__name__)

AT_ONCE = 2  # starting a kernel is a second of work for one core
PAUSE_AFTER_FAILURE = 5.0
FILL_LATER_SECONDS = 0.5


class Pool:
    """Starts kernels, keeps a few spare ones, and takes their places back. A used kernel is never lent again."""

    def __init__(self, config: Config, launcher: Launcher, runtime: Path) -> None:
        self._config = config
        self._starter = Starter(config, launcher, runtime / "template")
        self._context = zmq.asyncio.Context()
        self._uids = Uids() if launcher.own_uids else None
        self._runtime = runtime
        self._starting = asyncio.Semaphore(AT_ONCE)
        self._spares: asyncio.Queue[Kernel] = asyncio.Queue()
        self._making = 0
        self._loop = asyncio.get_running_loop()
        self._filling: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._removing: set[asyncio.Task[None]] = set()

    @property
    def spares(self) -> int:
        return self._spares.qsize()

    def clear_abandoned(self) -> None:
        """End and delete what killed servers have left under the user ids of kernels; it takes a while."""
        if self._uids is None:
            return
        for uid in filter(self._uids.hold, abandoned(range(FIRST_UID, FIRST_UID + UIDS))):
            try:
                clear_uid(uid)
                self._uids.give_back(uid)
            except SandboxError as error:
                logger.warning("user id %d is not used: %s", uid, error)

    def fill_later(self) -> None:
        """The same, when the answer that is on its way has had its time."""
        if self._filling is None or self._filling.cancelled() or self._filling.when() < self._loop.time():
            self._filling = self._loop.call_later(FILL_LATER_SECONDS, self.fill)

    def fill(self) -> None:
        """Begin to make the spare kernels that are missing."""
        while self._spares.qsize() + self._making < self._config.limits.spares:
            self._making += 1
            self._spawn(self._make_spare())

    async def take(self) -> Kernel:
        """A fresh kernel: a spare one, or one that is started now.

        Raises:
            KernelFailed: it could not be started.
        """
        while not self._spares.empty():
            kernel = self._spares.get_nowait()
            if kernel.alive:
                return kernel
            await self.remove(kernel.place, kernel)
        return await self._start(self._new_place())

    async def restart(self, place: KernelFolders) -> Kernel:
        """A new kernel where another one has ended, over the same files.

        Raises:
            KernelFailed: it could not be started.
        """
        async with self._starting:
            return await Kernel.start(place, self._starter, self._config, self._context)

    async def remove(self, place: KernelFolders, kernel: Kernel | None) -> None:
        """End the kernel, delete its files and release its user id, also if the caller is cancelled."""
        task = asyncio.create_task(self._removed(place, kernel))
        self._removing.add(task)
        task.add_done_callback(self._removing.discard)
        await asyncio.shield(task)

    async def close(self) -> None:
        if self._filling is not None:
            self._filling.cancel()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        while not self._spares.empty():
            kernel = self._spares.get_nowait()
            await self.remove(kernel.place, kernel)
        await asyncio.gather(*self._removing, return_exceptions=True)
        await self._starter.close()
        self._context.destroy(linger=0)
        if self._uids is not None:
            self._uids.close()

    async def _removed(self, place: KernelFolders, kernel: Kernel | None) -> None:
        try:
            if kernel is not None:
                await kernel.kill()
            await asyncio.to_thread(place.remove)
        except (SandboxError, OSError):
            logger.exception("a kernel could not be removed completely; its user id is not used again")
            return
        if place.uid is not None and self._uids is not None:
            self._uids.give_back(place.uid)

    async def _make_spare(self) -> None:
        try:
            self._spares.put_nowait(await self._start(self._new_place()))
        except KernelFailed as failure:
            logger.warning("no spare kernel: %s", failure)
            await asyncio.sleep(PAUSE_AFTER_FAILURE)
        finally:
            self._making -= 1

    async def _start(self, place: KernelFolders) -> Kernel:
        try:
            if place.uid is not None and await asyncio.to_thread(abandoned, range(place.uid, place.uid + 1)):
                await asyncio.to_thread(clear_uid, place.uid)
            return await self.restart(place)
        except SandboxError as error:
            await self.remove(place, None)
            raise KernelFailed(str(error)) from error
        except BaseException:
            await self.remove(place, None)
            raise

    def _new_place(self) -> KernelFolders:
        name = secrets.token_hex(6)
        uid = self._uids.lend() if self._uids else None
        return KernelFolders(self._runtime / name, uid)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
