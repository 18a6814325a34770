"""Keys, failures and streams are as the OpenAPI document describes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from task.llm.scripted import says, wants
from tests.support.http_api import http_api, said
from tests.support.openapi_document import faults
from tests.support.upstream import broken_off

NOTES = str(Path(__file__).parent.parent / "contract" / "matrix" / "notes.py")
CALCULATION = (wants("calculator", expression="25*47"), says("11", "75", reasoning="Let me see."))
LOOKUP = {"type": "function", "name": "lookup", "parameters": {"type": "object"}}
PUBLIC = {"keys": [{"bearer": []}, {"apiKey": []}], "open": [{}, {"bearer": []}, {"apiKey": []}]}


@pytest.mark.parametrize("mode", ["open", "keys"])
async def test_the_document_names_keys_real_failures_and_real_content_types(mode: str, tmp_path: Path) -> None:
    async with http_api(tmp_path=tmp_path, http={"mode": mode}) as api:
        document = (await api.get("/openapi.json")).json
    components = document["components"]
    assert document["security"] == PUBLIC[mode]
    assert components["securitySchemes"]["bearer"] == {"type": "http", "scheme": "bearer"}
    assert components["securitySchemes"]["apiKey"] == {"type": "apiKey", "in": "header", "name": "Api-Key"}
    assert not {"HTTPValidationError", "ValidationError"} & components["schemas"].keys()
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            assert "422" not in operation["responses"], (method, path)
            assert "400" in operation["responses"], (method, path)
    streams = {
        path: set(document["paths"][path][method]["responses"]["200"]["content"])
        for path, method in (
            ("/runs/{run_id}/events", "get"), ("/v1/files/{file_id}/content", "get"), ("/v1/chat/completions", "post")
        )
    }  # fmt: skip
    assert streams == {
        "/runs/{run_id}/events": {"text/event-stream"},
        "/v1/files/{file_id}/content": {"application/octet-stream"},
        "/v1/chat/completions": {"application/json", "text/event-stream"},
    }
    events = {
        document["paths"][path][method]["responses"]["200"]["content"]["text/event-stream"]["x-event"]["$ref"]
        for path, method in (
            ("/runs/{run_id}/events", "get"), ("/v1/chat/completions", "post"), ("/v1/responses", "post")
        )
    }  # fmt: skip
    assert {name.rpartition("/")[2] for name in events} == {"RunEvent", "ChunkBody", "ResponseEvent"}


async def test_every_event_of_a_run_fits_the_document(tmp_path: Path) -> None:
    asking, calling = wants("write_note", text="x"), wants("lookup", name="Ann")
    failing = broken_off(says("Half ", "a ", "sentence"), chunks=2)
    question = {"messages": [said("?")], "tools": [{"type": "function", "function": {"name": "lookup"}}]}
    events: list[dict[str, Any]] = []
    async with http_api(*CALCULATION, asking, calling, failing, tmp_path=tmp_path, tool_paths=[NOTES]) as api:
        document = (await api.get("/openapi.json")).json
        for _ in range(4):
            events += await api.events((await api.post("/runs", question)).json["run_id"])
    assert {event["type"] for event in events} == {
        "started", "text", "reasoning", "stage_opened", "stage_text", "stage_closed", "tool_calls", "approval", "usage",
        "error", "finished",
    }  # fmt: skip
    for event in events:
        assert faults(document, "RunEvent", event) == []


async def test_every_event_of_a_streamed_response_fits_the_document(tmp_path: Path) -> None:
    async with http_api(says("11", "75"), says("Let me ask.") & wants("lookup", name="Ann"), tmp_path=tmp_path) as api:
        document = (await api.get("/openapi.json")).json
        events: list[dict[str, Any]] = []
        for _ in range(2):
            events += (await api.post("/v1/responses", {"input": "?", "stream": True, "tools": [LOOKUP]})).chunks
    assert len({event["type"] for event in events}) >= 10
    for event in events:
        assert faults(document, "ResponseEvent", event) == []
