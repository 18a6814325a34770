"""Runs of the HTTP door: started, run in the background, streamed as events, recorded in the store."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from task.api.edge.failures import failure_of
from task.api.edge.schemas import usage_data
from task.api.platform.answering import Result, answer
from task.api.platform.choice import RunChoice
from task.api.platform.kept_turns import kept_turn
from task.api.platform.run_request import RunRequest
from task.errors import StoreUnavailable
from task.llm.base import Usage
from task.product import Product
from task.runs.traces import TraceRecorder, TraceStart, trace_context
from task.store.records import FINISHED, Event, Run
from task.store.runs import ENDING_SECONDS
from task.store.store import Store
from task.store.trace_records import Trace

logger = logging.getLogger(__name__)

CLOSING_SECONDS = 5.0


@dataclass(slots=True)
class ActiveRun:
    """A run of this process. `ended` is done when all of it is on disk."""

    run: Run
    model: str
    request: RunRequest
    store: Store
    ended: asyncio.Future[None]
    result: Result | None = None
    trace: Trace | None = None
    session_id: str | None = None
    attachments: list[dict[str, str]] = field(default_factory=list[dict[str, str]])
    task: asyncio.Task[None] | None = None
    listeners: int = 0
    leaving: asyncio.TimerHandle | None = None
    stored: dict[str, Any] = field(default_factory=dict[str, Any])

    @property
    def detaches(self) -> bool:
        return self.run.session_id is not None

    @property
    def ids(self) -> dict[str, str | None]:
        return {"session_id": self.session_id, "run_id": self.run.run_id, "trace_id": self.run.trace_id}

    @property
    def text(self) -> str:
        """All of the answer, a question about waiting calls included."""
        result = self.result
        return "\n\n".join(filter(None, (result.text, result.question))) if result is not None else ""

    @property
    def usage(self) -> Usage:
        return self.result.usage if self.result is not None else Usage()

    @property
    def failed(self) -> bool:
        """Whether the run has ended without an answer."""
        return self.result is not None and self.result.finish_reason is None

    def stop(self) -> None:
        """End the answer. One that has ended is being stored, which nothing may interrupt."""
        # Not at once: a task that is cancelled before its first step takes none, and its run would never end.
        asyncio.get_running_loop().call_soon(self._cancel)

    def _cancel(self) -> None:
        if self.task is not None and self.result is None:
            self.task.cancel()


class Runner:
    """Starts runs and lets clients listen to them, leave, come back and stop them."""

    def __init__(self, product: Product, steps: int, detach_seconds: float) -> None:
        self._product, self._steps, self._detach_seconds = product, steps, detach_seconds
        self._active: dict[str, ActiveRun] = {}

    async def start(self, request: RunRequest) -> ActiveRun:
        """Start the run in the background.

        Raises:
            Conflict: the session is being answered, was changed, or has ended.
            StoreUnavailable: the run cannot be kept.
        """
        store = await self._product.store.get()
        trace_id = await store.traces.new_id()
        run = await store.runs.start(
            request.caller.owner,
            session=request.session,
            messages=request.new,
            trace_id=trace_id,
            experiment=request.options.experiment,
        )
        active = ActiveRun(run, request.options.model, request, store, asyncio.get_running_loop().create_future())
        active.session_id = run.session_id
        self._active[run.run_id] = active
        active.task = asyncio.create_task(self._work(active, store, trace_id))
        active.task.add_done_callback(lambda task: self._over(active, task))
        return active

    def find(self, run_id: str) -> ActiveRun | None:
        return self._active.get(run_id)

    @asynccontextmanager
    async def listening(self, active: ActiveRun) -> AsyncGenerator[None]:
        """Keep the run alive while somebody listens.

        When the last listener leaves, a run in a session continues for a while, and any other is cancelled.
        """
        active.listeners += 1
        if active.leaving is not None:
            active.leaving.cancel()
            active.leaving = None
        try:
            yield
        finally:
            active.listeners -= 1
            self.detach(active)

    def detach(self, active: ActiveRun) -> None:
        """Nobody listens, or not yet: the run gets the time of one whose listener left."""
        if active.listeners == 0 and active.result is None:
            self._left(active)

    async def events(self, owner: str, run_id: str, after: int = 0) -> AsyncGenerator[Event]:
        """The run's events after that number; the last one comes when the run is on disk."""
        store = await self._product.store.get()
        active = self._active.get(run_id)
        if active is None or active.run.owner != owner:
            async for event in store.runs.events_after(owner, run_id, after):
                yield event
            return
        async with self.listening(active):
            async for event in store.runs.events_after(owner, run_id, after):
                if event.type == FINISHED:
                    await asyncio.shield(active.ended)
                yield event

    async def end_in(self, owner: str, session_id: str) -> None:
        """End the session's run, in whichever process it is; what it has written is on disk when this returns."""
        store = await self._product.store.get()
        for run in (await store.runs.list(owner, session_id)).items:
            if run.over:
                continue
            await store.runs.request_cancel(owner, run.run_id)
            active = self._active.get(run.run_id)
            if active is not None:
                await asyncio.wait({active.ended}, timeout=ENDING_SECONDS)
            else:
                await store.runs.ended(owner, run.run_id)

    async def close(self) -> None:
        """End all runs; what they have written is kept."""
        tasks = [active.task for active in self._active.values() if active.task is not None]
        for active in self._active.values():
            active.stop()
        if tasks:
            await asyncio.wait(tasks, timeout=CLOSING_SECONDS)

    def _left(self, active: ActiveRun) -> None:
        seconds = self._detach_seconds if active.detaches else 0.0
        if seconds > 0:
            active.leaving = asyncio.get_running_loop().call_later(seconds, self._cancel_unheard, active)
        else:
            active.stop()

    def _cancel_unheard(self, active: ActiveRun) -> None:
        # Where somebody has listened at another process in the meantime, the run's time restarts.
        seconds = self._detach_seconds - active.store.runs.seconds_since_listener(active.run.run_id)
        if seconds > 0:
            active.leaving = asyncio.get_running_loop().call_later(seconds, self._cancel_unheard, active)
        else:
            active.stop()

    async def _work(self, active: ActiveRun, store: Store, trace_id: str) -> None:
        run, request = active.run, active.request
        choice = RunChoice(partial(store.runs.append_event, run.run_id))
        active.attachments = choice.attachments
        observer = TraceRecorder(store.traces, _start(request, run), trace_id)
        stopping = asyncio.create_task(self._stopped(active, store))
        try:
            ids = {"run_id": run.run_id, "session_id": run.session_id, "trace_id": trace_id, "model": active.model}
            choice.emit("started", **ids, messages=len(request.history), request=request.options.as_dict())
            active.result = await answer(self._product, request, run, choice, observer, store, self._steps)
        except asyncio.CancelledError:
            active.result = Result("cancelled", text=choice.text)
        finally:
            stopping.cancel()
        await self._ended(active, active.result, choice, observer, store)

    async def _ended(
        self, active: ActiveRun, result: Result, choice: RunChoice, observer: TraceRecorder, store: Store
    ) -> None:
        run, request = active.run, active.request
        if active.leaving is not None:
            active.leaving.cancel()
        if result.session_id is not None:
            observer.in_session(result.session_id)
        observer.end(result.status, result.error)
        active.trace = observer.record()
        active.session_id = result.session_id or run.session_id
        self._emit_end(active, result, choice)
        kept = kept_turn(request, result.added, result.calls, result.question) if result.error is None else None
        if kept is not None:
            store.turns.keep(
                request.caller.owner, *kept, session_id=request.session.session_id if request.session else None
            )
        try:
            error = str(result.error) if result.error is not None else None
            await store.runs.finish(
                run.run_id, result.status, added=result.added, error=error, session_id=result.session_id
            )
        except StoreUnavailable as failure:
            logger.warning("the run %s is not on disk yet: %s", run.run_id, failure)
            active.result = result.with_error(failure)
        self._active.pop(run.run_id)
        active.ended.set_result(None)

    def _emit_end(self, active: ActiveRun, result: Result, choice: RunChoice) -> None:
        choice.flush()
        trace, usage = active.trace, result.usage
        choice.emit(
            "usage",
            **usage_data(usage),
            cost=trace.cost if trace is not None else None,
            duration_ms=trace.as_row()["duration_ms"] if trace is not None else None,
        )
        if result.error is not None:
            result.failure = failure_of(result.error, active.model)
            choice.emit("error", **result.failure.body(), status=result.failure.status)
        choice.emit(
            FINISHED,
            status=result.status,
            limit=result.limit,
            finish_reason=result.finish_reason,
            run_id=active.run.run_id,
            session_id=active.session_id,
            trace_id=active.run.trace_id,
            messages=len(active.request.history) + len(active.request.new) + len(result.added),
        )

    async def _stopped(self, active: ActiveRun, store: Store) -> None:
        await store.runs.cancel_requested(active.run.run_id)
        active.stop()

    def _over(self, active: ActiveRun, task: asyncio.Task[None]) -> None:
        if active.ended.done():
            return
        self._active.pop(active.run.run_id, None)
        error = None if task.cancelled() else task.exception()
        logger.error("the run %s broke off", active.run.run_id, exc_info=error)
        active.result = active.result or Result("failed")
        active.result = active.result.with_error(error or StoreUnavailable("The answer was broken off. Try again."))
        active.ended.set_result(None)


def _start(request: RunRequest, run: Run) -> TraceStart:
    options = request.options
    return TraceStart(
        request.caller.owner, options.door, options.model, options.model_options, request.new,
        history=len(request.history), session_id=run.session_id, run_id=run.run_id, experiment=options.experiment,
        parent=trace_context(request.caller.headers), warnings=options.warnings,
    )  # fmt: skip
