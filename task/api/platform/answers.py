"""Send a run's answer to a client, whole or as a stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass

from starlette.responses import Response

from task.api.edge.failures import Failure, RunFailed
from task.api.edge.rendering import EventStream
from task.runs.runner import LiveRun, Runner


@dataclass(frozen=True, slots=True)
class Answers:
    runner: Runner
    heartbeat: float

    async def wait(self, live: LiveRun) -> None:
        """Wait for the end of the run; the SDK's middleware cancels this when the client leaves.

        Raises:
            RunFailed: there is no answer.
        """
        async with self.runner.listening(live):
            await asyncio.shield(live.ended)
        if live.state.failed:
            raise _failed(live)

    async def stream(self, live: LiveRun, parts: AsyncGenerator[bytes]) -> Response:
        """The stream of these parts, unless the run fails before the first one.

        Raises:
            RunFailed: the run failed before it had written anything.
        """
        first = asyncio.ensure_future(anext(parts, b""))
        try:
            await asyncio.wait({first}, timeout=self.heartbeat)
        except asyncio.CancelledError:  # the client has left already
            first.cancel()
            await asyncio.wait({first})
            await parts.aclose()
            raise
        if first.done() and live.state.failed and not live.state.written:
            await parts.aclose()
            await asyncio.shield(live.ended)
            raise _failed(live)
        return EventStream(_following(first, parts), self.heartbeat)


def _failed(live: LiveRun) -> RunFailed:
    state = live.state
    assert state.failure is not None
    ids = {"X-Run-Id": live.run.run_id, "X-Trace-Id": live.run.trace_id or ""}
    return RunFailed(Failure.recorded(state.failure, state.ids, ids))


async def _following(first: asyncio.Future[bytes], parts: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
    async with aclosing(parts):
        try:
            yield await first
        finally:
            if not first.done():
                first.cancel()
                await asyncio.wait({first})
        async for part in parts:
            yield part
