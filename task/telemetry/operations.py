"""The operations of a run, measured as they happen: the run, its model requests, its tool calls.

A run is opened by the `Telemetry` of its process. What works for it finds it in the context of its task; where there is
no run, the functions here do nothing.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Generator, Mapping, MutableMapping
from contextlib import contextmanager
from contextvars import ContextVar, Token
from dataclasses import InitVar, dataclass, field
from secrets import token_hex
from time import perf_counter
from types import TracebackType
from typing import TYPE_CHECKING, Literal

from task.errors import ProviderError

if TYPE_CHECKING:
    from opentelemetry.trace import Span

    from task.telemetry.metrics import PrometheusMetrics
    from task.telemetry.otel import OtelSpans

Kind = Literal["invoke_agent", "chat", "execute_tool"]
Value = str | int | float | bool
# Each with its labels: the verdict of the gate; what became of a question to a user; a cache and `hit` or `miss`; the
# tier of the sandbox in which code ran.
Event = Literal["decision", "approval", "cache_request", "sandbox"]
REQUEST_ID = "x-request-id"
_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
# Source: W3C Trace Context; zeros and the version ff are not valid.
_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-((?!0{32})[0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(-.*)?")


@dataclass(frozen=True, slots=True)
class RequestInfo:
    """The id of a request, the caller's own if it is a plain one, and that of the caller's trace, if any."""

    request_id: str
    trace_id: str | None = None

    @classmethod
    def of(cls, headers: Mapping[str, str]) -> RequestInfo:
        """The request with these headers, which are named in lower case."""
        given = headers.get(REQUEST_ID, "")
        parent = _TRACEPARENT.fullmatch(headers.get("traceparent", ""))
        return cls(given if _ID.fullmatch(given) else token_hex(8), parent[1] if parent else None)


# The request that the current task, and those it starts, work for.
REQUEST: ContextVar[RequestInfo | None] = ContextVar("request", default=None)
# The ids under which DIAL Core traces the current run's requests. Who records the run sets it, and reads it at the end.
CORE_TRACES: ContextVar[dict[str, None] | None] = ContextVar("core_traces", default=None)
MOST_CORE_TRACES = 20  # usually all requests of a run have the same


@dataclass(frozen=True, slots=True)
class RunInfo:
    """What is known of a run when it starts; `trace_id` is that of its trace in the store."""

    door: str
    model: str
    provider: str
    conversation: str = ""
    trace_id: str = ""


@dataclass(slots=True, eq=False)
class Operation:
    """One timed piece of a run. It is a context manager; an exception that leaves it is its error.

    `name` is that of the model or the tool; `usage` are the input, output and cached tokens of a model request, or of
    all of a run's. `error` is a class of errors, never a text. `status` is how a run ended.
    """

    telemetry: Telemetry
    kind: Kind
    name: str
    run: RunInfo
    parent: Operation | None = None
    attributes: Mapping[str, Value] = field(default_factory=dict[str, Value])
    headers: InitVar[Mapping[str, str] | None] = None
    usage: tuple[int, int, int] = (0, 0, 0)
    cost: float | None = None
    error: str | None = None
    status: str = ""
    first_at: float | None = None
    seconds: float = 0.0
    started: float = field(default_factory=perf_counter)
    span: Span | None = None
    _token: Token[Operation | None] | None = None

    def __post_init__(self, headers: Mapping[str, str] | None) -> None:
        if self.telemetry.spans is not None:
            self.span = self.telemetry.spans.start(self, self.parent.span if self.parent else None, headers or {})

    def __enter__(self) -> Operation:
        self._token = _current.set(self)
        if self.telemetry.metrics is not None:
            self.telemetry.metrics.operation_started(self)
        return self

    def __exit__(self, _: type[BaseException] | None, error: BaseException | None, __: TracebackType | None) -> None:
        if self._token is not None:
            _current.reset(self._token)
        self.seconds = perf_counter() - self.started
        if error is not None:
            self.failed(error)
        if self.telemetry.metrics is not None:
            self.telemetry.metrics.operation_ended(self)
        if self.telemetry.spans is not None:
            self.telemetry.spans.end(self)

    def failed(self, error: BaseException | str) -> None:
        """Note the class of the error; the first one counts."""
        self.error = self.error or (error if isinstance(error, str) else error_class(error))

    def used(self, prompt: int, completion: int, cached: int, cost: float | None = None) -> None:
        self.usage, self.cost = (prompt, completion, cached), cost

    def first_chunk(self) -> None:
        if self.first_at is None:
            self.first_at = perf_counter()
            if self.telemetry.metrics is not None:
                self.telemetry.metrics.first_chunk(self, self.first_at - self.started)


_current: ContextVar[Operation | None] = ContextVar("operation", default=None)


@dataclass(slots=True)
class Telemetry:
    """What one process measures its runs with; nothing by default."""

    metrics: PrometheusMetrics | None = None
    spans: OtelSpans | None = None

    def run(self, info: RunInfo, headers: Mapping[str, str]) -> Operation:
        """The operation of a run, which is part of the trace that the request's `headers` name."""
        return Operation(self, "invoke_agent", info.model, info, headers=headers)

    async def close(self) -> None:
        """Send what has not been sent; a collector that does not answer delays this by some seconds."""
        if self.spans is not None:
            await asyncio.to_thread(self.spans.close)


def model_request(model: str) -> Operation:
    """The operation of a request to a model, within the current run."""
    return _part("chat", model)


def tool_call(name: str, call_id: str) -> Operation:
    """The operation of a tool's execution, within the current run."""
    return _part("execute_tool", name, {"gen_ai.tool.call.id": call_id})


def _part(kind: Kind, name: str, attributes: Mapping[str, Value] | None = None) -> Operation:
    run = _current.get()
    if run is None:
        return Operation(Telemetry(), kind, name, RunInfo("", "", ""))
    return Operation(run.telemetry, kind, name, run.run, run, attributes or {})


def first_chunk() -> None:
    """Something of the current operation's answer has arrived."""
    if (operation := _current.get()) is not None:
        operation.first_chunk()


def answered_by_core(trace_id: str) -> None:
    """DIAL Core has answered a request of the current run, which it traces under this id."""
    found = CORE_TRACES.get()
    if found is not None and len(found) < MOST_CORE_TRACES and _ID.fullmatch(trace_id):
        found[trace_id] = None


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
    if operation is not None and operation.telemetry.metrics is not None:
        operation.telemetry.metrics.count(event, *labels)


@contextmanager
def queued(queue: str) -> Generator[None]:
    """The block waits in this queue, or is processed from there."""
    operation = _current.get()
    metrics = operation.telemetry.metrics if operation is not None else None
    if metrics is not None:
        metrics.queued(queue, 1)
    try:
        yield
    finally:
        if metrics is not None:
            metrics.queued(queue, -1)


def trace_headers() -> dict[str, str]:
    """The headers that make another service's spans children of the current operation's; empty without a span."""
    operation = _current.get()
    spans = operation.telemetry.spans if operation is not None else None
    return spans.headers(operation.span) if spans and operation and operation.span else {}


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
    parent = _TRACEPARENT.fullmatch(trace_headers().get("traceparent", ""))
    return parent[1] if parent else None


def error_class(error: BaseException) -> str:
    """A name for the kind of error, of which there are few: a status, a code of ours, or the exception's class."""
    if isinstance(error, asyncio.CancelledError):
        return "cancelled"
    if isinstance(error, ProviderError):
        return str(error.status_code or error.code or "provider_error")
    return type(error).__name__
