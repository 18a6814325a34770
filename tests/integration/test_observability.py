"""One request in spans, metrics and log lines: joined by one trace id, and without its content."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes
from opentelemetry.semconv.attributes import error_attributes

from task.llm.base import Usage
from task.llm.scripted import says, wants
from task.telemetry.logs import JsonLines
from tests.support.collector import attributes, collector
from tests.support.http_api import http_api, said
from tests.support.product import product
from tests.support.upstream import http_error

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
HEADERS = {"traceparent": f"00-{TRACE}-{SPAN}-01", "tracestate": "vendor=1", "x-request-id": "request-7"}
REGISTRY = {
    getattr(names, name) for names in (gen_ai_attributes, error_attributes) for name in dir(names) if name.isupper()
}
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
    assert {span.status.code for span in spans if span.name.startswith("invoke_agent")} == {2}


async def test_a_dial_request_is_part_of_its_callers_trace(tmp_path: Path) -> None:
    async with (
        collector() as (url, spans),
        product(says("Hello."), tmp_path=tmp_path, otel_exporter_otlp_endpoint=url) as p,
    ):
        p.reader.headers = HEADERS
        await p.reader.ask("Hi")
        [request] = p.upstream.requests
    assert {span.trace_id.hex() for span in spans} == {TRACE}
    assert attributes(spans[-1])["dial_agent.door"] == "dial"
    assert request.headers["traceparent"].split("-")[1] == TRACE
