"""Run code in a kernel: raced against its death, the clock and its own output."""

import asyncio
import time
from dataclasses import dataclass
from enum import StrEnum

from mcp_servers.python_interpreter.config import Limits
from mcp_servers.python_interpreter.files import snapshot
from mcp_servers.python_interpreter.kernels import Kernel
from mcp_servers.python_interpreter.outputs import Collector
from mcp_servers.python_interpreter.wire import Reply

DISK_SECONDS = 1.0
TOO_MUCH = "TooMuchOutput"  # what the kernel's own streams raise


class Ending(StrEnum):
    """Why an execution ended."""

    DONE = "done"
    TIMED_OUT = "timed_out"
    FLOODED = "flooded"
    DISK_FULL = "disk_full"
    STOPPED = "stopped"
    DIED = "died"


@dataclass(frozen=True, slots=True)
class Executed:
    """How one execution went; `reply` is None when the kernel had to be killed, or died of itself."""

    ending: Ending
    reply: Reply | None
    output: Collector
    seconds: float


async def execute(kernel: Kernel, code: str, limits: Limits, stop: asyncio.Event) -> Executed:
    """Run the code to its end, or interrupt it, and kill the kernel when it does not listen.

    `stop` is set when the result is no longer needed.
    """
    began = time.monotonic()
    output = Collector(limits)
    work = asyncio.create_task(kernel.execute(code, output))
    watches = {
        asyncio.create_task(output.overflow.wait()): Ending.FLOODED,
        asyncio.create_task(stop.wait()): Ending.STOPPED,
        asyncio.create_task(_fills_the_disk(kernel, limits)): Ending.DISK_FULL,
    }
    try:
        waited = {work, kernel.died, *watches}
        done, _ = await asyncio.wait(waited, timeout=limits.seconds, return_when=asyncio.FIRST_COMPLETED)
        ending = Ending.TIMED_OUT
        if work in done or work.done():
            ending = Ending.DONE
        elif kernel.died in done:
            ending = Ending.DIED
        elif done:
            ending = next(why for watch, why in watches.items() if watch in done)
        if ending not in (Ending.DONE, Ending.DIED):
            await _interrupt(kernel, work, limits.grace_seconds)
        reply = work.result() if work.done() and kernel.alive else None
        if reply is not None and reply.ename == TOO_MUCH:
            ending = Ending.FLOODED
        if reply is None:
            await kernel.kill()
        return Executed(ending, reply, output, time.monotonic() - began)
    finally:
        for task in (work, *watches):
            task.cancel()
        await asyncio.wait({work, *watches})


async def _interrupt(kernel: Kernel, work: asyncio.Task[Reply], grace: float) -> None:
    await kernel.interrupt()
    await asyncio.wait({work, kernel.died}, timeout=grace, return_when=asyncio.FIRST_COMPLETED)


async def _fills_the_disk(kernel: Kernel, limits: Limits) -> None:
    while True:
        await asyncio.sleep(DISK_SECONDS)
        for folder in (kernel.place.work, kernel.place.home):
            found = await asyncio.to_thread(snapshot, folder, limits.work_entries)
            if found.size > limits.work_bytes or not found.complete:
                return
