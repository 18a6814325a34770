"""Operations as spans and metrics, and the bounds of labels and log lines."""

import asyncio
import json
import logging
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest
from aiohttp import web
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from task.core_client.files import DialFiles
from task.errors import ProviderError, SettingsError, ToolError
from task.llm.base import Usage
from task.llm.scripted import ScriptedModel, says
from task.llm.transport import new_session
from task.product import check
from task.product.opening import metrics_of
from task.search.answers import request
from task.search.passages import asked, reranked
from task.settings import Settings
from task.telemetry import SHARED_METRICS, operations
from task.telemetry.logs import REPEATS, WINDOW_SECONDS, JsonLines, Repeats, TextLines
from task.telemetry.metrics import MOST_TOOLS, PrometheusMetrics
from task.telemetry.operations import REQUEST, RequestInfo, RunInfo, Telemetry, join_trace, model_request, tool_call
from task.telemetry.otel import OtelSpans
from tests.support.core import served

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
RUN = RunInfo("v1", "gpt-4o", "openai")


def spans_of(headers: dict[str, str]) -> tuple[Sequence[ReadableSpan], dict[str, str]]:
    """The spans of a run with one model request, whose request came with these headers; and what the model was sent."""
    exporter = InMemorySpanExporter()
    telemetry, sent = Telemetry(spans=OtelSpans(exporter)), dict(headers)
    with telemetry.run(RUN, headers), model_request("gpt-4o"):
        join_trace(sent)
    asyncio.run(telemetry.close())
    return exporter.get_finished_spans(), sent


@pytest.mark.fault("observability: a malformed traceparent")
@pytest.mark.parametrize(
    "value", ["", "1", f"00-{TRACE}-{SPAN}", f"00-{'0' * 32}-{SPAN}-01", f"ff-{TRACE}-{SPAN}-01", "00-é-1-01"]
)
def test_a_malformed_traceparent_starts_a_new_trace(value: str) -> None:
    (chat, run), sent = spans_of({"traceparent": value})
    assert (run.parent, RequestInfo.of({"traceparent": value}).trace_id) == (None, None)
    assert chat.context is not None
    assert sent["traceparent"][:-2] == f"00-{chat.context.trace_id:032x}-{chat.context.span_id:016x}-"
    assert int(sent["traceparent"][-2:], 16) & 1  # sampled


@pytest.mark.fault("observability: a caller that does not sample its trace")
def test_what_a_caller_does_not_sample_is_not_sent_and_says_so_to_the_model() -> None:
    spans, sent = spans_of({"traceparent": f"00-{TRACE}-{SPAN}-00", "tracestate": "vendor=1"})
    assert (spans, sent["traceparent"][:36], sent["traceparent"][-2:]) == ((), f"00-{TRACE}-", "00")
    assert sent["tracestate"] == "vendor=1"


def test_outside_a_run_nothing_is_measured_and_what_outlives_its_run_belongs_to_no_trace() -> None:
    headers = {"traceparent": "theirs"}
    with Telemetry().run(RUN, {}), model_request("gpt-4o"), tool_call("calculator", "1"):
        join_trace(headers)
    with model_request("gpt-4o") as asked:
        join_trace(headers)
        asked.used(1, 2, 3)
    assert (headers, operations.trace_id()) == ({"traceparent": "theirs"}, None)
    telemetry = Telemetry(spans=OtelSpans(InMemorySpanExporter()))
    with telemetry.run(RUN, {}):
        assert operations.trace_headers()
        operations.leave_operation()
        assert operations.trace_headers() == {}
    asyncio.run(telemetry.close())


@pytest.mark.fault("observability: thousands of names of tools, models and errors")
def test_thousands_of_names_make_few_label_values() -> None:
    metrics = PrometheusMetrics({"gpt-4o"})
    telemetry = Telemetry(metrics)
    with telemetry.run(RUN, {}):
        for number in range(3000):
            with model_request(f"model-{number}") as asked:
                asked.failed(f"error-{number}")
            with tool_call(f"tool-{number}", "1"):
                pass
    samples = [sample for family in metrics.registry.collect() for sample in family.samples]
    assert {sample.labels["gen_ai_request_model"] for sample in samples if "gen_ai_request_model" in sample.labels} == {
        "other"
    }
    assert len({sample.labels["tool"] for sample in samples if "tool" in sample.labels}) == MOST_TOOLS + 1
    assert len(samples) < 10_000


async def test_the_search_in_documents_asks_its_models_as_measured_as_the_run_asks_its_own() -> None:
    exporter, metrics = InMemorySpanExporter(), PrometheusMetrics({"reader", "sorter"})
    telemetry = Telemetry(metrics, OtelSpans(exporter))
    reader, sorter = ScriptedModel(says("Yes.", usage=Usage(70, 3, 20)), name="reader"), ScriptedModel(name="sorter")
    with telemetry.run(RUN, {}), tool_call("rag_search_tool", "1"):
        await asked(reader, request("Why?", []), lambda _: None, lambda _: None)
        assert await reranked(sorter, "Why?", [], [], lambda _: None) == []
    await telemetry.close()
    assert [span.name for span in exporter.get_finished_spans()][:2] == ["chat reader", "chat sorter"]
    samples = (sample for family in metrics.registry.collect() for sample in family.samples)
    counted = {
        (sample.labels["gen_ai_request_model"], sample.labels["gen_ai_token_type"]): sample.value
        for sample in samples
        if sample.name == "gen_ai_client_token_usage_sum"
    }
    assert (counted["reader", "input"], counted["reader", "output"]) == (70, 3)


@pytest.mark.parametrize(
    ("error", "name"),
    [
        (ProviderError("SECRET", status_code=429), "429"), (ProviderError("SECRET", code="timeout"), "timeout"),
        (asyncio.CancelledError("SECRET"), "cancelled"), (ValueError("SECRET"), "ValueError"),
    ],
)  # fmt: skip
def test_an_error_is_counted_by_its_class_never_by_its_text(error: BaseException, name: str) -> None:
    assert operations.error_class(error) == name


@pytest.mark.fault("observability: a collector without the packages for it")
@pytest.mark.fault("observability: a folder of shared metrics that is missing")
def test_what_telemetry_needs_stops_the_start(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "task.telemetry.otel", None)
    settings = Settings.model_validate({"otel_exporter_otlp_endpoint": "http://127.0.0.1:9", "data_dir": tmp_path})
    with pytest.raises(SettingsError, match=r"^OTEL_EXPORTER_OTLP_ENDPOINT needs .* pip install [^\n]*\[otel\]'\.$"):
        check(settings)
    monkeypatch.setenv(SHARED_METRICS, str(tmp_path / "nowhere"))
    with pytest.raises(SettingsError, match=rf"^{SHARED_METRICS}: .*nowhere is not a folder\. Create it[^\n]*$"):
        metrics_of(Settings.model_validate({"data_dir": tmp_path}))


class Stuck(SpanExporter):
    """A collector that answers its first request when it is let go."""

    def __init__(self) -> None:
        self.released, self.sent = threading.Event(), 0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.released.wait(25)
        self.sent += len(spans)
        return SpanExportResult.SUCCESS


@pytest.mark.fault("observability: a collector that is absent, fails or never answers")
def test_while_a_collector_is_stuck_spans_are_dropped_and_not_piled_up() -> None:
    exporter = Stuck()
    telemetry = Telemetry(spans=OtelSpans(exporter))
    for _ in range(5000):
        with telemetry.run(RUN, {}):
            pass
    exporter.released.set()
    asyncio.run(telemetry.close())
    assert 0 < exporter.sent < 3000  # what the SDK's queue holds, and the batch that was stuck


@pytest.mark.fault("observability: a request id that is not plain")
@pytest.mark.parametrize("given", ["", "a b", "x" * 65, 'a"b', "é", "a\tb"])
def test_a_request_id_that_is_not_plain_is_replaced(given: str) -> None:
    assert len(RequestInfo.of({"x-request-id": given}).request_id) == 16


def record(text: str, *args: object, name: str = "task.test") -> logging.LogRecord:
    return logging.LogRecord(name, logging.WARNING, "", 0, text, args, None)


@pytest.mark.fault("observability: a flood of log lines, equal or different")
def test_a_flood_of_equal_lines_is_cut_and_counted_and_one_of_different_lines_takes_little_memory() -> None:
    now = [0.0]
    filtering = Repeats(lambda: now[0])
    passed = [filtering.filter(record("lost %d", number)) for number in range(10_000)]
    assert (sum(passed), filtering.filter(record("another"))) == (REPEATS, True)
    for now[0] in (WINDOW_SECONDS, 2 * WINDOW_SECONDS):
        assert filtering.filter(record("another"))
    now[0] = 3 * WINDOW_SECONDS
    after = record("lost %d", 1)
    assert filtering.filter(after)
    assert after.getMessage() == "lost 1 (9,950 more like this one were left out)"
    for number in range(5000):
        filtering.filter(record(f"lost {number}"))
    assert len(filtering._counts) <= 1001


def test_a_json_line_has_its_request_its_reference_and_nothing_empty() -> None:
    token = REQUEST.set(RequestInfo("request-7", TRACE))
    line = json.loads(JsonLines().format(record("it failed (reference %s)\nsecond", "a1b2c3d4")))
    REQUEST.reset(token)
    assert line.pop("time").endswith("+00:00")
    assert line == {
        "level": "WARNING", "logger": "task.test", "message": "it failed (reference a1b2c3d4)\nsecond",
        "request_id": "request-7", "reference": "a1b2c3d4", "trace_id": TRACE,
    }  # fmt: skip


@pytest.mark.fault("observability: an unexpected error whose text quotes a message")
@pytest.mark.parametrize("formatter", [TextLines(), JsonLines()])
def test_a_traceback_names_frames_and_classes_and_never_the_texts_of_errors(formatter: logging.Formatter) -> None:
    secret, group = "what a person wrote", ExceptionGroup("what a person wrote", [KeyError("what a person wrote")])
    try:
        try:
            raise ProviderError(secret)
        except ProviderError as error:
            group.__cause__ = error
            raise error from group  # each is the cause of the other
    except ProviderError as error:
        failed = record("it failed")
        failed.exc_info = (type(error), error, error.__traceback__)
    line = formatter.format(failed)
    assert secret not in line
    places = [line.index(name) for name in ("KeyError", "ExceptionGroup", "test_telemetry.py", "errors.ProviderError")]
    assert places == sorted(places)


@pytest.mark.system
async def test_requests_to_core_carry_the_span_over_both_of_its_clients() -> None:
    seen: list[str] = []

    async def home(request: web.Request) -> web.Response:
        seen.append(request.headers["traceparent"])
        return web.json_response({"bucket": "b"})

    application = web.Application()
    application.router.add_get("/{path:.*}", home)
    telemetry = Telemetry(spans=OtelSpans(InMemorySpanExporter()))
    async with asyncio.timeout(25), served(application) as url, new_session(traced=True) as session:
        files = DialFiles(url, session=session)
        with telemetry.run(RUN, {}):
            expected = operations.trace_headers()["traceparent"]
            await files.principal("key")
            with suppress(ToolError):  # this is no description of a file
                await files.metadata("files/b/x.txt", "key")
    await telemetry.close()
    assert set(seen) == {expected}
    assert len(seen) >= 2
