"""Send spans to an OpenTelemetry collector, as OpenTelemetry's conventions for generative AI name them."""

from collections.abc import Mapping
from hashlib import sha256

from opentelemetry.context import Context
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from task.telemetry.operations import Kind, Operation, Value

SERVICE = "dial-agent"
AGENT = "general-purpose-agent"
SEND_SECONDS = 5
_PROPAGATOR = TraceContextTextMapPropagator()
_KINDS: Mapping[Kind, SpanKind] = {
    "invoke_agent": SpanKind.SERVER,
    "chat": SpanKind.CLIENT,
    "execute_tool": SpanKind.INTERNAL,
}


class OtelSpans:
    """Spans of operations, sent in batches by a thread of the SDK.

    An unreachable collector delays no answer; what does not fit in the SDK's queue is dropped. The standard `OTEL_*`
    variables of the process's environment (sampler, attributes of the resource, headers, batches) have their effect.
    """

    def __init__(self, exporter: SpanExporter) -> None:
        found = Resource.create()
        named = not str(found.attributes.get(SERVICE_NAME, "")).startswith("unknown_service")
        resource = found if named else found.merge(Resource({SERVICE_NAME: SERVICE}))
        self._provider = TracerProvider(resource=resource)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer(SERVICE)

    def start(self, operation: Operation, parent: Span | None, headers: Mapping[str, str]) -> Span:
        lowered = {name.lower(): value for name, value in headers.items()}
        context = set_span_in_context(parent, Context()) if parent else _PROPAGATOR.extract(lowered, Context())
        name = f"{operation.kind} {AGENT if operation.kind == 'invoke_agent' else operation.name}"
        return self._tracer.start_span(name, context, kind=_KINDS[operation.kind])

    def end(self, operation: Operation) -> None:
        span = operation.span
        if span is None:
            return
        if span.is_recording():
            run, (prompt, completion, cached) = operation.run, operation.usage
            found: dict[str, Value | None] = {"gen_ai.operation.name": operation.kind, **operation.attributes}
            if operation.kind == "execute_tool":
                found["gen_ai.tool.name"] = operation.name
            else:
                found |= {"gen_ai.provider.name": run.provider, "gen_ai.request.model": operation.name}
                found |= {"gen_ai.usage.input_tokens": prompt, "gen_ai.usage.output_tokens": completion}
            if operation.kind == "invoke_agent":
                # A digest: a conversation's own id may contain its title and its owner's bucket.
                digest = sha256(run.conversation.encode()).hexdigest()[:32] if run.conversation else ""
                found |= {"gen_ai.agent.name": AGENT, "gen_ai.conversation.id": digest}
                found |= {"dial_agent.door": run.door, "dial_agent.status": operation.status}
                found |= {"dial_agent.cost": operation.cost, "dial_agent.trace_id": run.trace_id}
            elif operation.kind == "chat" and operation.first_at is not None:
                found["gen_ai.response.time_to_first_chunk"] = operation.first_at - operation.started
            found |= {"gen_ai.usage.cache_read.input_tokens": cached or None, "error.type": operation.error}
            # All at once, which costs half of doing it twice.
            span.set_attributes({name: value for name, value in found.items() if value not in (None, "")})
            if operation.error is not None:
                span.set_status(Status(StatusCode.ERROR))
        span.end()

    def headers(self, span: Span) -> dict[str, str]:
        carrier: dict[str, str] = {}
        _PROPAGATOR.inject(carrier, set_span_in_context(span, Context()))
        return carrier

    def close(self) -> None:
        """Send what is left; blocks for some seconds while the collector is unreachable."""
        self._provider.shutdown()
