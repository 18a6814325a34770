"""Send finished traces to an OpenTelemetry collector, as spans without texts."""

from __future__ import annotations

import json
from collections.abc import Mapping

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from task.llm.base import Usage
from task.store.trace_records import Trace, TracedCall

SERVICE = "dial-agent"
SEND_SECONDS = 5
Value = str | int | float | bool
_PROPAGATOR = TraceContextTextMapPropagator()


def collector_at(url: str) -> SpanExporter:
    """An exporter to the collector at `url`."""
    return OTLPSpanExporter(endpoint=url, timeout=SEND_SECONDS)


class SpanSender:
    """Spans of complete traces, sent in batches by a thread of the SDK; an unreachable collector delays no answer.

    Names and attributes follow OpenTelemetry's conventions for generative AI. A run is part of its caller's trace; one
    that the caller does not sample is not sent.
    """

    def __init__(self, exporter: SpanExporter) -> None:
        self._provider = TracerProvider(resource=Resource.create({"service.name": SERVICE}))
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer(SERVICE)

    def send(self, trace: Trace) -> None:
        """Queue the spans of a finished trace."""
        caller = _PROPAGATOR.extract(trace.parent, Context())
        run = self._start(caller, f"invoke_agent {trace.door}", SpanKind.SERVER, trace.started_at, _of_run(trace))
        within = set_span_in_context(run, Context())
        for turn in trace.turns:
            if turn.usage is not None:
                start, attributes = turn.at - (turn.seconds or 0.0), _of_answer(trace.model, turn.usage)
                span = self._start(within, f"chat {trace.model}", SpanKind.CLIENT, start, attributes)
                span.end(_nanoseconds(turn.at))
        for call in trace.tool_calls:
            span = self._start(within, f"execute_tool {call.name}", SpanKind.INTERNAL, call.at, _of_call(call))
            if call.failed:
                span.set_status(Status(StatusCode.ERROR))
            span.end(_nanoseconds(call.at + call.seconds))
        if trace.error is not None:
            run.set_status(Status(StatusCode.ERROR))
        run.end(_nanoseconds(trace.completed_at or trace.started_at))

    def close(self) -> None:
        """Send what is left; blocks for some seconds while the collector is unreachable."""
        self._provider.shutdown()

    def _start(self, context: Context, name: str, kind: SpanKind, at: float, attributes: Mapping[str, Value]) -> Span:
        return self._tracer.start_span(name, context, kind=kind, attributes=attributes, start_time=_nanoseconds(at))


def _of_run(trace: Trace) -> dict[str, Value]:
    optional = {
        "gen_ai.conversation.id": trace.session_id, "dial_agent.experiment": trace.experiment,
        "dial_agent.cost": trace.cost,
    }  # fmt: skip
    return {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.request.model": trace.model,
        "dial_agent.trace_id": trace.trace_id,
        "dial_agent.status": trace.status,
        "dial_agent.tokens": trace.total_tokens,
        "dial_agent.limits": json.dumps(trace.limits),
        **{name: value for name, value in optional.items() if value is not None},
    }


def _of_answer(model: str, usage: Usage) -> dict[str, Value]:
    return {
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": model,
        "gen_ai.usage.input_tokens": usage.prompt_tokens,
        "gen_ai.usage.output_tokens": usage.completion_tokens,
    }


def _of_call(call: TracedCall) -> dict[str, Value]:
    return {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": call.name,
        "gen_ai.tool.call.id": call.call_id,
        "dial_agent.result_length": call.result_length,
    }


def _nanoseconds(seconds: float) -> int:
    return int(seconds * 1e9)
