"""The interpreter behind the protocol: one call of code, one listing, one clearing, files in and out."""

import asyncio
import math
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from mcp_servers.python_interpreter import report
from mcp_servers.python_interpreter.config import Config
from mcp_servers.python_interpreter.files import snapshot
from mcp_servers.python_interpreter.launch import Launcher
from mcp_servers.python_interpreter.line import Ticket
from mcp_servers.python_interpreter.memory import Memory
from mcp_servers.python_interpreter.meta import CallMeta
from mcp_servers.python_interpreter.pool import Pool
from mcp_servers.python_interpreter.runtime import runtime_folder
from mcp_servers.python_interpreter.sessions import KernelSession, Sessions, Wanted
from mcp_servers.serving import is_loopback

LINGER_SECONDS = 3.0  # in which balancers notice, and agents fetch the files of the last calls
LOOK_SECONDS = 0.1
SETTLE_SECONDS = 2.0  # the rest of the product starts at the same time, and needs the processor more


class Interpreter:
    """All kernels of one server. Use it between `async with interpreter.running()`."""

    def __init__(self, config: Config, launcher: Launcher) -> None:
        self.config = config
        self.tier = launcher.tier
        self._launcher = launcher
        self._sessions: Sessions | None = None
        self._pool: Pool | None = None

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Kernels are made from here on; at the end all of them are gone."""
        with runtime_folder(self.config.work_dir) as folder:
            self._pool = pool = Pool(self.config, self._launcher, folder)
            await asyncio.to_thread(pool.clear_abandoned)
            self._sessions = sessions = Sessions(self.config, pool, Memory(self.config.data_dir / "sessions"))
            tasks = [asyncio.create_task(sessions.reap()), asyncio.create_task(_fill(pool))]
            try:
                yield
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.wait(tasks)
                await sessions.close()
                await pool.close()

    @property
    def sessions(self) -> Sessions:
        assert self._sessions is not None, "the interpreter is not running"
        return self._sessions

    async def execute(self, code: str, call: CallMeta, ticket: Ticket) -> dict[str, Any]:
        """Run the code, or name the required files that are `missing`, and lost ones to `restore`. The ticket shows how
        long the call waits.

        Raises:
            CallRefused: it cannot be run now.
        """
        wanted = Wanted(call.handle, call.kernel, call.fresh, call.inputs, call.made)
        missing, restore = await self.sessions.missing(wanted, ticket)
        if missing or restore:
            named = {"session": call.handle, "files_path": self.files_path(call.handle)}
            return {"missing": missing, "restore": restore, **named}
        ran = await self.sessions.execute(wanted, ticket, code, call.seconds or math.inf)
        shown = await report.keep_shown(ran, self.config.limits)
        content = report.structured(ran, shown, self.tier, self.config.limits)
        if self.sessions.draining:  # a balancer may lead nobody here any more who would fetch them
            await asyncio.to_thread(report.enclose_files, content, ran.session)
        return {**content, "files_path": self.files_path(call.handle)}

    async def files(self, handle: str) -> list[dict[str, Any]]:
        """The files of the session's working directory."""
        session = self.sessions.find(handle)
        if session is None:
            return []
        found = await asyncio.to_thread(snapshot, session.place.work, self.config.limits.work_entries)
        names = sorted(found.files)[: self.config.limits.work_entries]
        return [report.work_file(found, name).as_dict(handle) for name in names[:1000]]

    async def clear(self, handle: str) -> bool:
        return await self.sessions.clear(handle)

    def session(self, handle: str) -> KernelSession | None:
        return self.sessions.find(handle)

    def health(self) -> dict[str, Any]:
        return {
            "status": "ok",
            "sandbox_tier": self.tier,
            "spare_kernels": self._pool.spares if self._pool else 0,
            "sessions": len(self._sessions) if self._sessions else 0,
        }

    def ready(self) -> dict[str, str]:
        """Whether it takes calls, and its name, with which the ids of its sessions begin.

        `only_at` is its address if nobody else can answer there: one of this machine alone.
        """
        host = self.config.host
        return {
            "status": "draining" if self.sessions.draining else "ready",
            "server": self.sessions.server,
            "only_at": f"{host}:{self.config.port}" if is_loopback(host) else "",
        }

    async def drain(self) -> None:
        """Refuse new calls, and wait until the running ones have ended and their files were fetched."""
        self.sessions.drain()
        idle = time.monotonic()
        deadline = idle + self.config.drain_seconds
        while time.monotonic() < min(deadline, idle + LINGER_SECONDS):
            await asyncio.sleep(LOOK_SECONDS)
            idle = time.monotonic() if self.sessions.busy else idle

    @staticmethod
    def files_path(handle: str) -> str:
        return f"/sessions/{handle}/"


async def _fill(pool: Pool) -> None:
    await asyncio.sleep(SETTLE_SECONDS)
    pool.fill()
