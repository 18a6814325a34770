"""Finished traces reach an OpenTelemetry collector as spans, without words, and never in an answer's way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from task.errors import ProviderError
from task.llm.base import Usage
from task.llm.scripted import fails, says, wants
from task.sessions.opening import StoreAccess
from tests.support.ports import free_port
from tests.support.stores import sqlite_url
from tests.support.traced import traced


@asynccontextmanager
async def collector() -> AsyncGenerator[tuple[str, list[Any]]]:
    """Its address, and the spans it has received."""
    spans: list[Any] = []

    async def receive(request: web.Request) -> web.Response:
        told = ExportTraceServiceRequest.FromString(await request.read())
        spans.extend(span for group in told.resource_spans for scope in group.scope_spans for span in scope.spans)
        return web.Response()

    app = web.Application()
    app.router.add_post("/v1/traces", receive)
    runner = web.AppRunner(app)
    await runner.setup()
    port = free_port()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    try:
        yield f"http://127.0.0.1:{port}/v1/traces", spans
    finally:
        await runner.cleanup()


async def test_a_run_its_requests_and_its_calls_are_spans_of_one_tree(tmp_path: Path) -> None:
    async with collector() as (url, spans), asyncio.timeout(20):
        access = StoreAccess(sqlite_url(tmp_path), spans_url=url, chores=False)
        store = await access.get()
        trace = await traced(store, wants("calculator", expression="25*47"), says("SECRET", usage=Usage(7, 3)))
        await traced(store, fails(ProviderError("SECRET")))
        await access.close()
    run, failed = (span for span in spans if not span.parent_span_id)
    children = [span for span in spans if span.parent_span_id == run.span_id]
    assert (run.name, [span.name for span in children]) == (
        "invoke_agent http", ["chat gpt-4o", "chat gpt-4o", "execute_tool calculator"],
    )  # fmt: skip
    assert {span.trace_id for span in children} == {run.trace_id}
    told = {item.key: item.value.int_value for item in children[1].attributes}
    assert (told["gen_ai.usage.input_tokens"], told["gen_ai.usage.output_tokens"]) == (7, 3)
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
