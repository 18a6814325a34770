"""A caller's `traceparent` continues in the spans of the run, through every door."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from task.llm.scripted import says
from tests.support.collector import collector
from tests.support.http_api import http_api, said
from tests.support.product import product

TRACE = "0af7651916cd43dd8448eb211c80319c"
HEADERS = {"traceparent": f"00-{TRACE}-b7ad6b7169203331-01"}


def names_and_traces(spans: list[Any]) -> list[tuple[str, str]]:
    return [(span.name, span.trace_id.hex()) for span in spans]


async def test_a_request_to_the_http_api_is_part_of_its_callers_trace(tmp_path: Path) -> None:
    async with collector() as (url, spans):
        async with http_api(says("Hello."), tmp_path=tmp_path, store={"spans_url": url}) as api:
            await api.post("/v1/chat/completions", {"messages": [said("Hi")]}, headers=HEADERS)
        assert names_and_traces(spans) == [("chat test-model", TRACE), ("invoke_agent v1", TRACE)]
        assert spans[1].parent_span_id.hex() == "b7ad6b7169203331"


async def test_a_dial_request_is_part_of_its_callers_trace(tmp_path: Path) -> None:
    async with collector() as (url, spans):
        async with product(says("Hello."), tmp_path=tmp_path, store={"spans_url": url}) as p:
            p.reader.headers = HEADERS
            await p.reader.ask("Hi")
        assert names_and_traces(spans) == [("chat test-model", TRACE), ("invoke_agent dial", TRACE)]
        assert spans[1].parent_span_id
