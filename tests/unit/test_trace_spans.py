"""Finished traces reach an OpenTelemetry collector as spans, without texts and without delaying an answer."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from task.errors import ProviderError
from task.llm.base import Usage
from task.llm.scripted import Reply, says, wants
from task.runs.traces import trace_context
from task.store.access import StoreAccess
from task.store.spans import SpanSender
from tests.support.collector import collector
from tests.support.ports import free_port
from tests.support.stores import opened, sqlite_url
from tests.support.traced import traced

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


async def spans_of(tmp_path: Path, **headers: str) -> Sequence[ReadableSpan]:
    """The spans of a run with one call, whose request came with these headers: the run's own is the last."""
    exporter = InMemorySpanExporter()
    sender = SpanSender(exporter)
    async with opened(sqlite_url(tmp_path), finished=sender.send) as store, asyncio.timeout(20):
        await traced(store, wants("calculator", expression="25*47"), says("1175"), parent=trace_context(headers))
    await asyncio.to_thread(sender.close)
    return exporter.get_finished_spans()


async def test_a_gateways_trace_continues_in_the_spans_of_the_run(tmp_path: Path) -> None:
    *children, run = await spans_of(tmp_path, Traceparent=f"00-{TRACE}-{SPAN}-01", tracestate="vendor=1", other="x")
    assert run.parent is not None
    assert f"{run.parent.span_id:016x}" == SPAN
    assert {f"{span.context.trace_id:032x}" for span in (*children, run) if span.context} == {TRACE}
    assert {span.parent.span_id for span in children if span.parent} == {run.context.span_id if run.context else 0}
    assert all(span.context is not None and span.context.trace_state.get("vendor") == "1" for span in (*children, run))
    assert len(children) == 3


async def test_what_a_gateway_does_not_sample_is_not_sent(tmp_path: Path) -> None:
    assert await spans_of(tmp_path, traceparent=f"00-{TRACE}-{SPAN}-00") == ()


@pytest.mark.parametrize("value", ["", "1", f"00-{TRACE}-{SPAN}", f"00-{'0' * 32}-{SPAN}-01", f"ff-{TRACE}-{SPAN}-01"])
async def test_a_malformed_traceparent_starts_a_new_trace(tmp_path: Path, value: str) -> None:
    *children, run = await spans_of(tmp_path, traceparent=value)
    assert (len(children), run.parent) == (3, None)


async def test_a_run_its_requests_and_its_calls_are_spans_of_one_tree(tmp_path: Path) -> None:
    async with collector() as (url, spans), asyncio.timeout(20):
        access = StoreAccess(sqlite_url(tmp_path), spans_url=url, chores=False)
        store = await access.get()
        trace = await traced(store, wants("calculator", expression="25*47"), says("SECRET", usage=Usage(7, 3)))
        await traced(store, Reply((ProviderError("SECRET"),)))
        await access.close()
    run, failed = (span for span in spans if not span.parent_span_id)
    children = [span for span in spans if span.parent_span_id == run.span_id]
    assert (run.name, [span.name for span in children]) == (
        "invoke_agent http", ["chat gpt-4o", "chat gpt-4o", "execute_tool calculator"],
    )  # fmt: skip
    assert {span.trace_id for span in children} == {run.trace_id}
    tokens = {item.key: item.value.int_value for item in children[1].attributes}
    assert (tokens["gen_ai.usage.input_tokens"], tokens["gen_ai.usage.output_tokens"]) == (7, 3)
    named = {item.key: item.value.string_value for item in run.attributes}
    assert (named["dial_agent.trace_id"], named["dial_agent.status"]) == (trace.trace_id, "finished")
    assert all(run.start_time_unix_nano <= span.end_time_unix_nano <= run.end_time_unix_nano for span in children)
    assert (run.status.code, failed.status.code) == (0, 2)
    assert "SECRET" not in str(spans)


async def test_a_collector_that_is_away_costs_an_answer_nothing(tmp_path: Path) -> None:
    access = StoreAccess(sqlite_url(tmp_path), spans_url=f"http://127.0.0.1:{free_port()}/v1/traces", chores=False)
    async with asyncio.timeout(20):
        trace = await traced(await access.get(), says("hi"))
        assert trace.status == "finished"
        await access.close()
