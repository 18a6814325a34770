"""What measuring a turn with one tool call costs: `python -m tests.benchmarks.bench_telemetry`."""

from collections.abc import Sequence
from time import process_time

from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from task.telemetry.metrics import PrometheusMetrics
from task.telemetry.operations import (
    RunInfo,
    Telemetry,
    count,
    first_chunk,
    first_text,
    model_request,
    tool_call,
)
from task.telemetry.otel import OtelSpans
from tests.benchmarks.figures import Figure, report

TURNS, ROUNDS = 1500, 5
RUN = RunInfo("v1", "gpt-4o", "openai", "sess_88e79570", "trace_285ed5c9")


class Encoded(SpanExporter):
    """Does the collector's part of the work in this process: the bytes that would be sent."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        encode_spans(spans).SerializeToString()
        return SpanExportResult.SUCCESS


def turn(telemetry: Telemetry) -> None:
    """Two model requests and a call between them."""
    with telemetry.run(RUN, {}) as run:
        for _ in range(2):
            with model_request("gpt-4o") as asked:
                first_chunk()
                first_text()
                asked.used(120, 15, 0)
        count("decision", "allowed")
        with tool_call("calculator", "call_1"):
            pass
        run.used(240, 30, 0)
        run.status = "finished"


def milliseconds(telemetry: Telemetry) -> float:
    """CPU of one turn, that of the thread that encodes spans included: the least of some rounds."""
    found: list[float] = []
    for _ in range(ROUNDS):
        started = process_time()
        for _ in range(TURNS):
            turn(telemetry)
        if isinstance(telemetry.spans, OtelSpans):
            telemetry.spans._provider.force_flush()
        found.append((process_time() - started) / TURNS * 1000)
    return min(found)


def main() -> None:
    spans = Telemetry(spans=OtelSpans(Encoded()))
    report([
        Figure("measuring a turn, all off", milliseconds(Telemetry()), "ms", 0.01),
        Figure("measuring a turn, metrics", milliseconds(Telemetry(PrometheusMetrics({"gpt-4o"}))), "ms", 0.05),
        Figure("measuring a turn, spans", milliseconds(spans), "ms", 0.4),
    ])  # fmt: skip


if __name__ == "__main__":
    main()
