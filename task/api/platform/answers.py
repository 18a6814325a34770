"""Give a run's answer to a client, whole or as a stream; a client that leaves no longer keeps the run alive."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, replace

from fastapi import Request
from starlette.responses import Response

from task.api.edge.failures import ClientLeft, RunFailed, failure_of
from task.api.edge.rendering import EventStream, gone
from task.api.platform.runner import ActiveRun, Runner


@dataclass(frozen=True, slots=True)
class Answers:
    runner: Runner
    heartbeat: float

    async def wait(self, active: ActiveRun, request: Request) -> None:
        """Wait for the end of the run.

        Raises:
            ClientLeft: nobody reads the answer any more.
            RunFailed: there is no answer.
        """
        async with self.runner.listening(active):
            leaving = asyncio.ensure_future(gone(request.receive))
            ending = asyncio.ensure_future(asyncio.shield(active.ended))
            try:
                await asyncio.wait({leaving, ending}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                leaving.cancel()
                ending.cancel()
                await asyncio.wait({leaving, ending})
        if not active.ended.done():
            raise ClientLeft("the client has left")
        if active.failed:
            raise _failed(active)

    async def stream(self, active: ActiveRun, parts: AsyncGenerator[bytes]) -> Response:
        """The stream of these parts, once there is more than a failure.

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
        if first.done() and active.failed and active.result is not None and not active.result.text:
            await parts.aclose()
            await asyncio.shield(active.ended)
            raise _failed(active)
        return EventStream(_following(first, parts), self.heartbeat)


def _failed(active: ActiveRun) -> RunFailed:
    result = active.result
    assert result is not None
    assert result.error is not None
    failure = result.failure or failure_of(result.error, active.model)
    headers = {**failure.headers, "X-Run-Id": active.run.run_id, "X-Trace-Id": active.run.trace_id or ""}
    return RunFailed(replace(failure, headers=headers, ids=active.ids))


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
