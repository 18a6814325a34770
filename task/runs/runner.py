"""Start runs in the background, follow their events, leave them and stop them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from task.conversation.messages import Role
from task.errors import AgentError, NotFound, ProviderError, StoreUnavailable, reference_of, with_reference
from task.llm.failures import reported
from task.loop import LoopObserver, RunOutcome
from task.product import Profile, Services
from task.runs.answering import RunChoice, answer, finish_reason
from task.runs.events import Emit, RunError, RunEvent, RunFinished, RunStarted, RunUsage, data_of
from task.runs.request import RunRequest, RunState, state_of
from task.runs.traces import TraceRecorder, TraceStart
from task.store.records import ENDING_SECONDS, FINISHED, AlreadyStarted, Event, RequestKey, Run, new_id
from task.store.trace_records import Trace

if TYPE_CHECKING:
    from task.store.store import Store

logger = logging.getLogger(__name__)

CLOSING_SECONDS = 5.0
UNEXPECTED = "Something unexpected went wrong. Try again; the log has the details."
UNSTORED = "The answer could not be stored yet. Ask again in a moment."

Describe = Callable[[BaseException, str], RunError]


def described(error: BaseException, model: str) -> RunError:
    """The `error` event for doors without a wording of their own."""
    if isinstance(error, ProviderError):
        reference, sentence = reported(error, model)
    else:
        reference = reference_of(error)
        logger.error("a run failed (reference %s)", reference, exc_info=error)
        sentence = with_reference(str(error) if isinstance(error, AgentError) else UNEXPECTED, reference)
    return RunError({"message": sentence, "reference": reference})


@dataclass(slots=True)
class LiveRun:
    """A run that can be followed. `ended` is done when all of it is on disk, or with `unstored` could not be stored in
    time; `detaches`: it continues for a while without a listener."""

    state: RunState
    ended: asyncio.Future[None]
    store: Store
    detaches: bool = False
    unstored: bool = False
    trace: Trace | None = None
    task: asyncio.Task[None] | None = None
    listeners: int = 0
    leaving: asyncio.Task[None] | None = None

    @property
    def run(self) -> Run:
        return self.state.run

    def stop(self) -> None:
        """End the answer. One that has ended is being stored, which nothing may interrupt."""

        def cancel() -> None:
            if self.task is not None and not self.run.over:
                self.task.cancel()

        # Not at once: a task that is cancelled before its first step takes none, and its run would never end.
        asyncio.get_running_loop().call_soon(cancel)

    def keep(self) -> None:
        """No longer end the answer because its listener left."""
        if self.leaving is not None:
            self.leaving.cancel()
            self.leaving = None


class Runner:
    """Starts runs and lets clients listen, leave, reconnect and stop them.

    A run that detaches continues `detach_seconds` without a listener; one caller may have `most` runs in progress.
    `describe` words the errors of the door, `ended` is called when a run is on disk, `observed` puts the door's own
    observer in front of each run's.
    """

    def __init__(
        self,
        services: Services,
        profile: Profile,
        detach_seconds: float = 0.0,
        most: int | None = None,
        *,
        describe: Describe = described,
        ended: Callable[[RunRequest, RunState], None] = lambda _, __: None,
        observed: Callable[[LoopObserver], LoopObserver] | None = None,
    ) -> None:
        self._services, self._profile = services, profile
        self._detach_seconds, self._most = detach_seconds, most
        self._describe, self._ended, self._observed = describe, ended, observed
        self._live: dict[str, LiveRun] = {}
        self._preparing: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    @asynccontextmanager
    async def once(self, owner: str, key: RequestKey | None) -> AsyncGenerator[Run | None]:
        """Hold off a repeat of the request with this key until the block has started its run; the run that the request
        has started before, if it has."""
        if key is None:
            yield None
            return
        async with self._preparing.setdefault(f"{owner} {key.name}", asyncio.Lock()):
            yield await (await self._services.store.get()).runs.started_by(owner, key)

    async def start(self, request: RunRequest, key: RequestKey | None = None) -> Run:
        """Start the run in the background, or find the one that the same request, or another answer to the same
        question, has started. `key` is the request's `Idempotency-Key`.

        Raises:
            Conflict: the session is being answered, was changed, or has ended.
            KeyReused: the request's key came with another request before.
            TooManyRuns: the caller has as many in progress as one may have.
            StoreUnavailable: the run cannot be kept.
        """
        owner, store, again = request.caller.owner, await self._services.store.get(), request.again
        if again is None:
            try:
                run = await store.runs.start(
                    owner,
                    session=request.session,
                    messages=request.new,
                    trace_id=new_id("trace", 12),
                    experiment=request.options.experiment,
                    resumes=request.resumes,
                    key=key,
                    most=self._most,
                )
            except AlreadyStarted as earlier:
                again = earlier.run_id
            else:
                state = RunState(run, request.options)
                ended = asyncio.get_running_loop().create_future()
                live = LiveRun(state, ended, store, detaches=run.session_id is not None or key is not None)
                self._live[run.run_id] = live
                live.task = asyncio.create_task(self._work(live, request))
                live.task.add_done_callback(partial(self._over, live))
                return run
        if key is not None:
            again = await store.runs.claim(owner, key, again)
        return await store.runs.get(owner, again)

    async def follow(self, owner: str, run_id: str) -> LiveRun:
        """A run: live where this process answers it, else once it has ended.

        Raises:
            NotFound: the owner has no such run, or its events are gone.
        """
        live = self._live.get(run_id)
        if live is not None and live.run.owner == owner:
            return live
        store = await self._services.store.get()
        events = [event async for event in store.runs.events_after(owner, run_id)]
        run = await store.runs.get(owner, run_id)
        state = state_of(run, events)
        if state is None:
            raise NotFound(f"there are no events of the run {run_id!r}")
        ended = asyncio.get_running_loop().create_future()
        ended.set_result(None)
        with suppress(NotFound):  # it may have been deleted
            return LiveRun(state, ended, store, trace=await store.traces.get(owner, run.trace_id or ""))
        return LiveRun(state, ended, store)

    @asynccontextmanager
    async def listening(self, live: LiveRun) -> AsyncGenerator[None]:
        """Keep the run alive while it has a listener.

        When the last listener leaves, a run in a session, or of a request with a key, continues for a while, and any
        other is cancelled.
        """
        live.listeners += 1
        live.keep()
        try:
            yield
        finally:
            live.listeners -= 1
            self.detach(live.run.run_id)

    def detach(self, run_id: str) -> None:
        """Give a run without a listener as much time as one whose listener has left."""
        live = self._live.get(run_id)
        if live is None or live.listeners > 0 or live.run.over:
            return
        live.keep()
        if live.detaches and self._detach_seconds > 0:
            live.leaving = asyncio.create_task(self._stop_without_listener(live))
        else:
            live.stop()

    async def events(self, owner: str, run_id: str, after: int = 0, *, sure: bool = False) -> AsyncGenerator[Event]:
        """The run's events after that number; the last one comes when the run is on disk, or has failed to get there.

        Raises:
            StoreUnavailable: the store cannot be read; with `sure` also instead of the last event of a run that is not
                on disk, which another process may still mark as interrupted.
        """
        store = await self._services.store.get()
        live = self._live.get(run_id)
        if live is None or live.run.owner != owner:
            async for event in store.runs.events_after(owner, run_id, after):
                yield event
            return
        async with self.listening(live):
            async for event in store.runs.events_after(owner, run_id, after):
                if event.type == FINISHED:
                    await asyncio.shield(live.ended)
                    if sure and live.unstored:
                        raise StoreUnavailable(UNSTORED)
                yield event

    async def stop(self, owner: str, run_id: str) -> Run:
        """Request the end of a run, in whichever process it is; what it has written stays.

        Raises:
            NotFound: the owner has no such run.
        """
        return await (await self._services.store.get()).runs.request_cancel(owner, run_id)

    async def end_in(self, owner: str, session_id: str) -> None:
        """End the session's run, in whichever process it is; what it has written is on disk when this returns."""
        store = await self._services.store.get()
        for run in (await store.runs.list(owner, session_id)).items:
            if run.over:
                continue
            await store.runs.request_cancel(owner, run.run_id)
            live = self._live.get(run.run_id)
            if live is not None:
                await asyncio.wait({live.ended}, timeout=ENDING_SECONDS)
            else:
                await store.runs.ended(owner, run.run_id)

    async def close(self) -> None:
        """End all runs; what they have written is kept."""
        tasks = [live.task for live in self._live.values() if live.task is not None]
        for live in self._live.values():
            live.stop()
        if tasks:
            await asyncio.wait(tasks, timeout=CLOSING_SECONDS)

    async def _stop_without_listener(self, live: LiveRun) -> None:
        seconds = self._detach_seconds
        while seconds > 0:
            await asyncio.sleep(seconds)
            # A listener at another process restarts the run's time.
            seconds = self._detach_seconds - live.store.runs.seconds_since_listener(live.run.run_id)
        live.stop()

    async def _work(self, live: LiveRun, request: RunRequest) -> None:
        run, store, options = live.run, live.store, request.options

        def emit(event: RunEvent) -> None:
            live.state.apply(store.runs.append_event(run.run_id, event.type, **data_of(event)))

        questions = [message.text() for message in request.history if message.role is Role.USER]
        start = TraceStart(
            request.caller.owner,
            options.door,
            options.model,
            options.model_options,
            request.new,
            history=len(request.history),
            session_id=run.session_id,
            run_id=run.run_id,
            experiment=options.experiment,
            warnings=options.warnings,
            question=questions[-1] if questions else "",
        )
        observer = TraceRecorder(store.traces, start, run.trace_id)

        async def stop_on_request() -> None:
            await store.runs.cancel_requested(run.run_id)
            live.stop()

        stopping = asyncio.create_task(stop_on_request())
        try:
            before = len(request.history)
            emit(RunStarted(run.run_id, run.session_id, run.trace_id, options.model, before, asdict(options)))
            choice = RunChoice(emit)
            following = observer if self._observed is None else self._observed(observer)
            outcome, session_id = await answer(self._services, self._profile, request, run, choice, following)
        finally:
            stopping.cancel()
        live.keep()
        if session_id is not None and session_id != run.session_id:
            observer.in_session(session_id)
        observer.end(outcome.status, outcome.error)
        live.trace = observer.record()
        await self._end(live, request, outcome, session_id, emit)

    async def _end(
        self, live: LiveRun, request: RunRequest, outcome: RunOutcome, session_id: str | None, emit: Emit
    ) -> None:
        run, trace, model, failed = live.run, live.trace, request.options.model, outcome.error
        cost, duration = (trace.cost, trace.duration_ms) if trace is not None else (None, None)
        emit(RunUsage.of(outcome.usage, cost, duration))
        if failed is not None:
            emit(self._describe(failed, model))
        reason = finish_reason(outcome, calls=bool(live.state.calls))
        now = len(request.history) + len(request.new) + len(outcome.added)
        emit(RunFinished(outcome.status, run.run_id, session_id, run.trace_id, reason, outcome.limit, now))
        error = with_reference(str(failed), reference_of(failed)) if failed is not None else None
        try:
            await live.store.runs.finish(run, outcome.status, added=outcome.added, error=error, session_id=session_id)
        except StoreUnavailable as failure:
            logger.warning("the run %s is not on disk yet: %s", run.run_id, failure)
            live.state.fail(data_of(self._describe(failure, model)))
            live.unstored = True
        self._live.pop(run.run_id)
        live.ended.set_result(None)
        self._ended(request, live.state)

    def _over(self, live: LiveRun, task: asyncio.Task[None]) -> None:
        if live.ended.done():
            return
        self._live.pop(live.run.run_id, None)
        error = None if task.cancelled() else task.exception()
        logger.error("the run %s broke off", live.run.run_id, exc_info=error)
        live.state.run = replace(live.run, status="failed")
        failure = error or StoreUnavailable("The answer was interrupted. Try again.")
        live.state.fail(data_of(self._describe(failure, "")))
        live.ended.set_result(None)
