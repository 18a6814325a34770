"""One request in spans, metrics and log lines: joined by one trace id, and without its content."""

import asyncio
import json
import re
import socket
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes
from opentelemetry.semconv.attributes import error_attributes

from task.errors import SettingsError
from task.llm.base import Usage
from task.llm.scripted import says, wants
from task.server import serve_metrics
from task.telemetry.logs import JsonLines
from task.telemetry.metrics import PrometheusMetrics
from tests.support.collector import attributes, collector, silent_collector
from tests.support.http_api import http_api, said
from tests.support.ports import free_port
from tests.support.up import dial_agent
from tests.support.upstream import http_error

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
HEADERS = {"traceparent": f"00-{TRACE}-{SPAN}-01", "tracestate": "vendor=1", "x-request-id": "request-7"}
REGISTRY = {
    getattr(names, name) for names in (gen_ai_attributes, error_attributes) for name in dir(names) if name.isupper()
}
ROOT = Path(__file__).resolve().parents[2]
DASHBOARD, PAGE = ROOT / "observability/grafana/dashboards/dial-agent.json", ROOT / "docs/observability.md"
WRONG, ANSWER = wants("calculator", expression="SECRET + 1"), says("SECRET answer", usage=Usage(70, 3, 20))


def tree(spans: list[Any]) -> dict[str, str]:
    """Each span's name, with that of its parent; the run's own parent is the caller's span."""
    names = {span.span_id.hex(): span.name for span in spans}
    return {span.name: names.get(span.parent_span_id.hex(), span.parent_span_id.hex()) for span in spans}


async def test_a_request_is_one_trace_in_spans_log_lines_metrics_and_the_models_requests(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.handler.setFormatter(JsonLines())
    caplog.set_level("INFO")
    async with collector() as (url, spans):
        settings: dict[str, Any] = {
            "otel_exporter_otlp_endpoint": url,
            "prices": {"test-model": {"prompt": 1e6, "completion": 1e6}},
        }
        async with http_api(WRONG, ANSWER, tmp_path=tmp_path, **settings) as api:
            reply = await api.post("/v1/chat/completions", {"messages": [said("SECRET question")]}, headers=HEADERS)
            sent = [request.headers for request in api.upstream.requests]
            figures = (await api.get("/metrics")).text
    assert (reply.status, reply.headers["X-Request-ID"]) == (200, "request-7")
    run, chat = "invoke_agent general-purpose-agent", "chat test-model"
    assert tree(spans) == {run: SPAN, chat: run, "execute_tool calculator": run}
    assert {span.trace_id.hex() for span in spans} == {TRACE}
    chats = [span.span_id.hex() for span in spans if span.name == chat]
    assert [headers["traceparent"] for headers in sent] == [f"00-{TRACE}-{span}-01" for span in chats]
    assert {headers["tracestate"] for headers in sent} == {"vendor=1"}
    lines = [json.loads(line) for line in caplog.text.splitlines() if "a call of calculator failed" in line]
    assert [(line["trace_id"], line["request_id"]) for line in lines] == [(TRACE, "request-7")]
    assert lines[0]["reference"] in lines[0]["message"]
    for figure in (
        'dial_agent_runs_total{door="v1",outcome="finished"} 1.0',
        'dial_agent_tool_duration_seconds_count{outcome="failed",tool="calculator"} 1.0',
        'dial_agent_decisions_total{verdict="allowed"} 1.0',
        'dial_agent_cached_tokens_total{model="test-model"} 20.0',
        'dial_agent_first_token_seconds_count{door="v1"} 1.0',
        'dial_agent_errors_total{error_type="tool_error",operation="execute_tool"} 1.0',
        'dial_agent_http_open_requests{door="v1"} 0.0',
    ):
        assert figure in figures
    assert "SECRET" not in f"{spans} {figures}"


async def test_attributes_are_those_of_the_conventions_or_our_own(tmp_path: Path) -> None:
    async with (
        collector() as (url, spans),
        http_api(WRONG, http_error(400), tmp_path=tmp_path, otel_exporter_otlp_endpoint=url) as api,
    ):
        await api.complete("Hi", user="somebody")
    found = {span.name.split()[0]: attributes(span) for span in spans}
    assert {name for values in found.values() for name in values if not name.startswith("dial_agent.")} <= REGISTRY
    assert found["execute_tool"]["error.type"] == "tool_error"
    assert found["chat"] | {"gen_ai.usage.input_tokens": 0} == found["chat"] | {
        "gen_ai.operation.name": "chat", "gen_ai.provider.name": "openai", "gen_ai.request.model": "test-model",
        "error.type": "400", "gen_ai.usage.input_tokens": 0,
    }  # fmt: skip
    assert found["invoke_agent"]["dial_agent.status"] == "failed"
    assert found["invoke_agent"]["dial_agent.trace_id"].startswith("trace_")
    assert {span.status.code for span in spans if span.name.startswith("invoke_agent")} == {2}


@pytest.mark.fault("observability: a collector that is absent, fails or never answers")
@pytest.mark.system
@pytest.mark.parametrize("collector_is", ["away", "failing", "silent"])
async def test_a_collector_without_an_answer_costs_no_answer_and_few_seconds(collector_is: str, tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        if collector_is == "away":
            url = f"http://127.0.0.1:{free_port()}"
        elif collector_is == "failing":
            url, _ = await stack.enter_async_context(collector(lambda: web.Response(status=500)))
        else:
            url = await stack.enter_async_context(silent_collector())
        await stack.enter_async_context(asyncio.timeout(55))
        settings = {"otel_exporter_otlp_endpoint": url}
        async with http_api(tmp_path=tmp_path, then=says("Hello."), **settings) as api:
            for _ in range(100):
                assert (await api.complete("Hi")).status == 200


@pytest.mark.fault("observability: a scrape of metrics that is slow")
async def test_a_port_of_their_own_answers_metrics_while_another_scrape_is_stuck() -> None:
    metrics, port = PrometheusMetrics(), free_port()
    metrics.serve("127.0.0.1", port)
    async with asyncio.timeout(25):
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /metrics HT")
        async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}/metrics") as reply:
            assert "dial_agent_runs_in_progress" in await reply.text()
        writer.close()
        await writer.wait_closed()


@pytest.mark.fault("observability: a port of metrics that is taken")
def test_a_port_of_metrics_that_is_taken_stops_the_start_with_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(
            SettingsError, match=rf"^AGENT_METRICS__PORT: {port} cannot be listened on: .*Choose another"
        ):
            serve_metrics(PrometheusMetrics(), "127.0.0.1", port, 5030)


@pytest.mark.fault("observability: a port of metrics that is the agent's own")
@pytest.mark.system
@pytest.mark.parametrize("workers", ["1", "2"])
async def test_the_agents_own_port_for_metrics_stops_the_start_with_one_line(workers: str, tmp_path: Path) -> None:
    port = str(free_port())
    ended = await dial_agent(tmp_path, "serve", AGENT_PORT=port, AGENT_METRICS__PORT=port, AGENT_WORKERS=workers)
    assert f"AGENT_METRICS__PORT: {port} is the agent's own port. Choose another port, or leave it out.\n" in ended.err
    assert (ended.code, "Traceback" in ended.err) == (2, False)


async def test_metrics_that_are_switched_off_are_not_there(tmp_path: Path) -> None:
    async with http_api(says("Hi."), tmp_path=tmp_path, metrics={"enabled": False}) as api:
        assert (await api.complete("Hi")).status == 200
        assert (await api.get("/metrics")).status == 404


def test_the_dashboard_and_the_page_name_every_metric_and_no_other() -> None:
    known = {metric.name for metric in PrometheusMetrics().registry.collect()}
    families = re.compile(r"\b(?:dial_agent|gen_ai_client)_[a-z_]+")
    for text in (DASHBOARD.read_text("utf-8"), PAGE.read_text("utf-8")):
        named = {re.sub(r"_(total|bucket|count|sum)$", "", name) for name in families.findall(text)}
        assert named <= known
    assert {name for name in known if not name.startswith("process_")} <= named
