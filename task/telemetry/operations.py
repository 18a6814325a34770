"""The operations of a run, measured as they happen: the run, its model requests, its tool calls.

A run is opened by the `Telemetry` of its process. What works for it finds it in the context of its task; where nothing
is measured, there is none, and the functions here do nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Mapping, MutableMapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from time import perf_counter
from types import TracebackType
from typing import Any, Literal, Protocol

from task.errors import ProviderError

Kind = Literal["invoke_agent", "chat", "execute_tool"]
Value = str | int | float | bool
# Each with its labels: the verdict of the gate; what became of a question to a person; a cache and `hit` or `miss`; the
# tier of the sandbox in which code ran.
Event = Literal["decision", "approval", "cache_request", "sandbox"]


class Spans(Protocol):
    """Sends the operations of a process to a collector of traces."""

    def start(self, operation: Operation, parent: Any, headers: Mapping[str, str]) -> Any: ...
    def end(self, operation: Operation) -> None: ...
    def headers(self, span: Any) -> dict[str, str]: ...
    def trace_id(self, span: Any) -> str: ...
    def close(self) -> None: ...


class Metrics(Protocol):
    """Counts the operations of a process."""

    def operation_started(self, operation: Operation) -> None: ...
    def first_chunk(self, operation: Operation, seconds: float) -> None: ...
    def operation_ended(self, operation: Operation) -> None: ...
    def count(self, event: Event, *labels: str) -> None: ...
    def queued(self, queue: str, change: int) -> None: ...
    def tools(self) -> Mapping[str, ToolFigures]: ...


@dataclass(frozen=True, slots=True)
class ToolFigures:
    """What the calls of one tool came to."""

    calls: int = 0
    failed: int = 0
    seconds: float = 0.0

    def plus(self, calls: int = 0, failed: int = 0, seconds: float = 0.0) -> ToolFigures:
        return ToolFigures(self.calls + calls, self.failed + failed, self.seconds + seconds)


@dataclass(frozen=True, slots=True)
class RunInfo:
    """What is known of a run when it starts; `trace_id` is that of its trace in the store."""

    door: str
    model: str
    provider: str
    conversation: str = ""
    trace_id: str = ""


class Operation:
    """One timed piece of a run. It is a context manager; an exception that leaves it is its error.

    `name` is that of the model or the tool; `usage` are the input, output and cached tokens of a model request, or of
    all of a run's. `error` is a class of errors, never a text. `status` is how a run ended.
    """

    __slots__ = (
        *("_telemetry", "_token", "attributes", "cost", "error", "first_at", "kind", "name", "parent", "run"),
        *("seconds", "span", "started", "status", "usage"),
    )

    def __init__(
        self,
        telemetry: Telemetry,
        kind: Kind,
        name: str,
        run: RunInfo,
        parent: Operation | None = None,
        attributes: Mapping[str, Value] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self._telemetry, self.name, self.run, self.parent = telemetry, name, run, parent
        self.kind: Kind = kind
        self.attributes: Mapping[str, Value] = attributes or {}
        self.usage = (0, 0, 0)
        self.cost: float | None = None
        self.error: str | None = None
        self.status = ""
        self.first_at: float | None = None
        self.seconds = 0.0
        self.started = perf_counter()
        self.span: Any = None
        if telemetry.spans is not None:
            self.span = telemetry.spans.start(self, parent.span if parent else None, headers or {})

    def __enter__(self) -> Operation:
        self._token = _current.set(self)
        if self._telemetry.metrics is not None:
            self._telemetry.metrics.operation_started(self)
        return self

    def __exit__(self, _: type[BaseException] | None, error: BaseException | None, __: TracebackType | None) -> None:
        _current.reset(self._token)
        self.seconds = perf_counter() - self.started
        if error is not None:
            self.failed(error)
        if self._telemetry.metrics is not None:
            self._telemetry.metrics.operation_ended(self)
        if self._telemetry.spans is not None:
            self._telemetry.spans.end(self)

    @property
    def metrics(self) -> Metrics | None:
        return self._telemetry.metrics

    def child(self, kind: Kind, name: str, attributes: Mapping[str, Value] | None = None) -> Operation:
        return Operation(self._telemetry, kind, name, self.run, self, attributes)

    def failed(self, error: BaseException | str) -> None:
        """Note the class of the error; the first one counts."""
        self.error = self.error or (error if isinstance(error, str) else error_class(error))

    def used(self, prompt: int, completion: int, cached: int, cost: float | None = None) -> None:
        self.usage, self.cost = (prompt, completion, cached), cost

    def ended(self, status: str) -> None:
        self.status = status

    def first_chunk(self) -> None:
        if self.first_at is None:
            self.first_at = perf_counter()
            if self._telemetry.metrics is not None:
                self._telemetry.metrics.first_chunk(self, self.first_at - self.started)

    @property
    def trace_headers(self) -> dict[str, str]:
        """The headers that make another service's spans children of this operation's; empty without a span."""
        spans = self._telemetry.spans
        return spans.headers(self.span) if spans is not None else {}

    @property
    def trace_id(self) -> str | None:
        spans = self._telemetry.spans
        return spans.trace_id(self.span) if spans is not None else None


class Unmeasured:
    """In place of an operation where nothing is measured."""

    __slots__ = ()

    def __enter__(self) -> Unmeasured:
        return self

    def __exit__(self, *_: object) -> None: ...
    def failed(self, error: BaseException | str) -> None: ...
    def used(self, prompt: int, completion: int, cached: int, cost: float | None = None) -> None: ...
    def ended(self, status: str) -> None: ...


UNMEASURED = Unmeasured()
_current: ContextVar[Operation | None] = ContextVar("operation", default=None)


@dataclass(slots=True)
class Telemetry:
    """What one process measures its runs with; nothing by default."""

    metrics: Metrics | None = None
    spans: Spans | None = None

    def run(self, info: RunInfo, headers: Mapping[str, str]) -> Operation | Unmeasured:
        """The operation of a run, which is part of the trace that the request's `headers` name."""
        if self.metrics is None and self.spans is None:
            return UNMEASURED
        return Operation(self, "invoke_agent", info.model, info, headers=headers)

    async def close(self) -> None:
        """Send what has not been sent; a collector that does not answer delays this by some seconds."""
        if self.spans is not None:
            await asyncio.to_thread(self.spans.close)


def model_request(model: str) -> Operation | Unmeasured:
    """The operation of a request to a model, within the current run."""
    run = _current.get()
    return UNMEASURED if run is None else run.child("chat", model)


def tool_call(name: str, call_id: str) -> Operation | Unmeasured:
    """The operation of a tool's execution, within the current run."""
    run = _current.get()
    return UNMEASURED if run is None else run.child("execute_tool", name, {"gen_ai.tool.call.id": call_id})


def first_chunk() -> None:
    """Something of the current operation's answer has arrived."""
    operation = _current.get()
    if operation is not None:
        operation.first_chunk()


def first_text() -> None:
    """The first text of an answer reaches its reader; later calls change nothing."""
    operation = _current.get()
    while operation is not None and operation.parent is not None:
        operation = operation.parent
    if operation is not None:
        operation.first_chunk()


def count(event: Event, *labels: str) -> None:
    """Something has happened in the current run; `labels` are of few values."""
    operation = _current.get()
    if operation is not None and operation.metrics is not None:
        operation.metrics.count(event, *labels)


@contextmanager
def queued(queue: str) -> Generator[None]:
    """The block waits in this queue, or is processed from there."""
    operation = _current.get()
    metrics = operation.metrics if operation is not None else None
    if metrics is None:
        yield
        return
    metrics.queued(queue, 1)
    try:
        yield
    finally:
        metrics.queued(queue, -1)


def trace_headers() -> dict[str, str]:
    """The headers that make another service's spans children of the current operation's; empty without a span."""
    operation = _current.get()
    return operation.trace_headers if operation is not None else {}


def join_trace(headers: MutableMapping[str, str]) -> None:
    """Make a request to another service part of the current operation's trace.

    `headers` ignore case. Without a span the caller's own trace headers stay as they are.
    """
    if own := trace_headers():
        headers.pop("tracestate", None)
        headers.update(own)


def leave_operation() -> None:
    """Let the current task no longer work for a run: it outlives the one that has started it."""
    _current.set(None)


def trace_id() -> str | None:
    """The id of the trace that the current operation's span is part of."""
    operation = _current.get()
    return operation.trace_id if operation is not None else None


def error_class(error: BaseException) -> str:
    """A name for the kind of error, of which there are few: a status, a code of ours, or the exception's class."""
    if isinstance(error, asyncio.CancelledError):
        return "cancelled"
    if isinstance(error, ProviderError):
        return str(error.status_code or error.code or "provider_error")
    return type(error).__name__
