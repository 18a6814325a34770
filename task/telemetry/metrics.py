"""Count what a process does, for Prometheus; label values are few and never name a user."""

from collections.abc import Collection, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    generate_latest,
    start_http_server,
)
from prometheus_client.multiprocess import MultiProcessCollector

from task.telemetry.operations import Event, Operation

_Metric = TypeVar("_Metric", Counter, Gauge, Histogram)
OTHER = "other"
RUN_SECONDS, FIRST_TEXT = "dial_agent_run_duration_seconds", "dial_agent_first_token_seconds"
TOOL_SECONDS = "dial_agent_tool_duration_seconds"
CHAT_SECONDS = "gen_ai_client_operation_duration_seconds"
FIRST_CHUNK = "gen_ai_client_operation_time_to_first_chunk_seconds"
CHAT_TOKENS = "gen_ai_client_token_usage"
MOST_TOOLS, MOST_ERRORS = 200, 50
READ_SECONDS = 30
# Source: the buckets that OpenTelemetry's conventions for generative AI advise.
_SECONDS = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
_FIRST = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
_TOKENS = (1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, 262144, 1048576, 4194304, 16777216, 67108864)


class Names:
    """The values of a label: those known from the start, and others while there is room."""

    def __init__(self, known: Collection[str] = (), room: int = 0) -> None:
        self._names, self._most = set(known), len(set(known)) + room

    def label(self, name: str) -> str:
        if len(self._names) < self._most:
            self._names.add(name)
        return name if name in self._names else OTHER


class PrometheusMetrics:
    """The figures of one process, or with `shared`, a folder, of all processes that count in it.

    Models that are not among `models` are counted as `other`: callers may name any. So are tools and classes of errors
    once there are very many.
    """

    def __init__(self, models: Collection[str] = (), shared: Path | None = None) -> None:
        self._children: dict[tuple[object, tuple[str, ...]], Any] = {}
        self._models, self._tools, self._errors = Names(models), Names(room=MOST_TOOLS), Names(room=MOST_ERRORS)
        self.registry = registry = CollectorRegistry()
        if shared is not None:
            MultiProcessCollector(registry, str(shared))
            registry = CollectorRegistry()  # the processes' own, which nothing reads
        else:
            ProcessCollector(registry=registry)

        counter, histogram = partial(Counter, registry=registry), partial(Histogram, registry=registry)
        gauge = partial(Gauge, registry=registry, multiprocess_mode="livesum")
        self._http = counter("dial_agent_http_requests", "HTTP requests", ["door", "status"])
        self._open = gauge("dial_agent_http_open_requests", "HTTP requests being answered, streams included", ["door"])
        self._runs = counter("dial_agent_runs", "Runs that have ended", ["door", "outcome"])
        self._running = gauge("dial_agent_runs_in_progress", "Runs in progress", ["door"])
        self._run_seconds = histogram(RUN_SECONDS, "Time of a run", ["door"], buckets=_SECONDS)
        self._first_text = histogram(FIRST_TEXT, "From a run's start to its text", ["door"], buckets=_FIRST)
        chat = ["gen_ai_operation_name", "gen_ai_provider_name", "gen_ai_request_model"]
        timed, counted = [*chat, "error_type"], [*chat, "gen_ai_token_type"]
        self._chat_seconds = histogram(CHAT_SECONDS, "Time of a model request", timed, buckets=_SECONDS)
        self._first_chunk = histogram(FIRST_CHUNK, "Time to the first chunk", chat, buckets=_FIRST)
        self._tokens = histogram(CHAT_TOKENS, "Tokens of a model request", counted, buckets=_TOKENS)
        self._cached = counter("dial_agent_cached_tokens", "Prompt tokens that the provider had cached", ["model"])
        self._cost = counter("dial_agent_cost", "Cost of runs, in the currency of AGENT_PRICES", ["model"])
        self._tool_seconds = histogram(TOOL_SECONDS, "Time of a tool call", ["tool", "outcome"], buckets=_SECONDS)
        self._events: Mapping[Event, Counter] = {
            "decision": counter("dial_agent_decisions", "Decisions of the gate about calls", ["verdict"]),
            "approval": counter("dial_agent_approvals", "Questions to users and their answers", ["outcome"]),
            "cache_request": counter("dial_agent_cache_requests", "Look-ups in a cache", ["cache", "result"]),
            "sandbox": counter("dial_agent_sandbox_calls", "Code that ran, by the sandbox's tier", ["tier"]),
        }
        waiting = "Questions that wait for an answer"
        self._waiting = gauge("dial_agent_approvals_waiting", waiting, multiprocess_mode="mostrecent")
        self._errors_total = counter("dial_agent_errors", "Errors", ["operation", "error_type"])
        self._queues = gauge("dial_agent_queue", "What waits or runs in a queue", ["queue"])

    def operation_started(self, operation: Operation) -> None:
        if operation.kind == "invoke_agent":
            self._of(self._running, operation.run.door).inc()

    def first_chunk(self, operation: Operation, seconds: float) -> None:
        if operation.kind == "invoke_agent":
            self._of(self._first_text, operation.run.door).observe(seconds)
        elif operation.kind == "chat":
            self._of(self._first_chunk, *self._labels(operation)).observe(seconds)

    def operation_ended(self, operation: Operation) -> None:
        error = self._errors.label(operation.error) if operation.error else ""
        if operation.kind == "invoke_agent":
            door = operation.run.door
            self._of(self._running, door).dec()
            self._of(self._runs, door, operation.status or "failed").inc()
            self._of(self._run_seconds, door).observe(operation.seconds)
            if operation.cost:
                self._of(self._cost, self._models.label(operation.name)).inc(operation.cost)
        elif operation.kind == "chat":
            labels, (prompt, completion, cached) = self._labels(operation), operation.usage
            self._of(self._chat_seconds, *labels, error).observe(operation.seconds)
            self._of(self._tokens, *labels, "input").observe(prompt)
            self._of(self._tokens, *labels, "output").observe(completion)
            if cached:
                self._of(self._cached, labels[2]).inc(cached)
        else:
            outcome = "failed" if error else "ok"
            self._of(self._tool_seconds, self._tools.label(operation.name), outcome).observe(operation.seconds)
        if error:
            self._of(self._errors_total, operation.kind, error).inc()

    def count(self, event: Event, *labels: str) -> None:
        self._of(self._events[event], *labels).inc()

    def queued(self, queue: str, change: int) -> None:
        self._of(self._queues, queue).inc(change)

    def waiting(self, approvals: int) -> None:
        """So many questions of the store wait for a user."""
        self._waiting.set(approvals)

    def http_started(self, door: str) -> None:
        self._of(self._open, door).inc()

    def http_ended(self, door: str, status: int) -> None:
        self._of(self._open, door).dec()
        self._of(self._http, door, str(status)).inc()

    def tools(self) -> dict[str, tuple[int, int, float]]:
        """The calls, the failed ones and the seconds of each tool since the start."""
        found = dict[str, tuple[int, int, float]]()
        families = (family for family in self.registry.collect() if family.name == TOOL_SECONDS)
        for sample in (sample for family in families for sample in family.samples):
            calls, failed, seconds = found.get(sample.labels["tool"], (0, 0, 0.0))
            if sample.name.endswith("_count"):
                calls += int(sample.value)
                failed += int(sample.value) * (sample.labels["outcome"] == "failed")
            elif sample.name.endswith("_sum"):
                seconds += sample.value
            found[sample.labels["tool"]] = calls, failed, seconds
        return found

    def serve(self, host: str, port: int) -> None:
        """Answer on a port of their own, from a thread that ends with the process. Raises `OSError`."""
        server, _ = start_http_server(port, host, self.registry)
        # For each piece of a request; the library bounds its lines.
        server.RequestHandlerClass.timeout = READ_SECONDS  # type: ignore[attr-defined]

    def render(self) -> bytes:
        """Everything in Prometheus's text format."""
        return generate_latest(self.registry)

    def _of(self, metric: _Metric, *labels: str) -> _Metric:
        # The library's own look-up checks and converts the labels each time, which costs more than the update.
        if (metric, labels) not in self._children:
            self._children[metric, labels] = metric.labels(*labels)
        return self._children[metric, labels]

    def _labels(self, operation: Operation) -> tuple[str, str, str]:
        return "chat", operation.run.provider, self._models.label(operation.name)
