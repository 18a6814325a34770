"""The OpenAPI document describes what the HTTP API does: schemathesis checks it against a running one."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from task.llm.scripted import says, wants
from tests.support.api_client import NOTES, behind_core
from tests.support.core import API_KEY
from tests.support.http_api import http_api, said
from tests.support.openapi_document import faults, strict
from tests.support.upstream import broken_off, http_error

LOOKUP = {"type": "function", "name": "lookup", "parameters": {"type": "object"}}
# Not looked at: that what fits the schema is accepted. A schema cannot say that the last message must be a question.
CHECKS = (
    "not_a_server_error,status_code_conformance,content_type_conformance,response_headers_conformance,"
    "response_schema_conformance,negative_data_rejection,unsupported_method"
)


@pytest.mark.parametrize(
    "options",
    [
        ("--phases", "fuzzing", "--max-examples", "1", "--include-path-regex", "^/(chat|traces|v1/responses)$"),
        pytest.param(
            ("--phases", "coverage,fuzzing", "--max-examples", "10"),
            marks=[pytest.mark.system, pytest.mark.timeout(900)],
        ),
    ],
    ids=["sample", "whole"],
)
async def test_no_request_finds_a_server_error_or_breaks_the_document(options: tuple[str, ...], tmp_path: Path) -> None:
    async with behind_core(then=says("ok"), tmp_path=tmp_path, dial_api_key=API_KEY) as api:
        document = (await api.get("/openapi.json")).json
        (tmp_path / "openapi.json").write_text(json.dumps(strict(document)))
        program = await asyncio.create_subprocess_exec(
            Path(sys.executable).parent / "schemathesis", "run", "openapi.json", "--url", api.url,
            "--seed", "7", "--no-color", "--generation-database", "none", "--checks", CHECKS, *options,
            cwd=tmp_path, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip
        try:
            operation, _ = await program.communicate()
        finally:
            if program.returncode is None:
                program.kill()
                await program.wait()
    assert program.returncode == 0, operation.decode()[-6000:]


def undescribed(document: dict[str, Any], bodies: dict[str, Any]) -> list[str]:
    return [f"{name} {fault}" for name, body in bodies.items() for fault in faults(document, name, body)]


async def test_every_answer_and_chunk_fits_the_document(tmp_path: Path) -> None:
    calculation = (wants("calculator", expression="25*47"), says("11", "75"))
    async with http_api(*calculation * 2, says("ok"), *calculation, then=http_error(500), tmp_path=tmp_path) as api:
        document = (await api.get("/openapi.json")).json
        chunks = (await api.complete("?", stream=True, stream_options={"include_usage": True})).chunks
        chat = (await api.post("/chat", {"messages": [said("?")]})).json
        response = (await api.post("/v1/responses", {"input": "?", "tools": [LOOKUP]})).json
        path, session = f"/v1/responses/{response['id']}", f"/session/{chat['session_id']}"
        assert (await api.get(path)).json == response
        completion = (await api.complete("?", experiment="a")).json
        bodies = {
            "CompletionBody": completion,
            "ChatBody": chat,
            "ResponseBody": response,
            "ItemList": (await api.get(f"{path}/input_items")).json,
            "DeletedBody": (await api.call("DELETE", path)).json,
            "SessionStarted": (await api.post("/session/start")).json,
            "SessionBody": (await api.get(session)).json,
            "MessageList": (await api.get(f"{session}/messages")).json,
            "SessionRow": (await api.call("PATCH", session, {"title": "sums"})).json,
            "SessionEnded": (await api.post("/session/end", {"session_id": chat["session_id"]})).json,
            "SessionList": (await api.get("/sessions")).json,
            "TraceBody": (await api.get(f"/traces/{completion['trace_id']}")).json,
            "ResultBody": (await api.get(f"/traces/{completion['trace_id']}/calls/0")).json,
            "TraceList": (await api.get("/traces")).json,
            "RunList": (await api.get("/runs")).json,
            "ModelList": (await api.get("/v1/models")).json,
            "ErrorBody": (await api.complete("?")).json,
        }
    assert bodies["ErrorBody"]["trace_id"]
    assert len(bodies["MessageList"]["messages"]) == 4
    assert undescribed(document, bodies) == []
    assert [faults(document, "ChunkBody", chunk) for chunk in chunks] == [[]] * len(chunks)


async def test_approvals_and_calls_of_the_caller_fit_the_document(tmp_path: Path) -> None:
    script = (wants("write_note", text="x"), says("noted"), wants("lookup", name="Ann"), wants("lookup", name="Ann"))
    tool = {"type": "function", "function": {"name": "lookup"}}
    async with http_api(*script, tmp_path=tmp_path, tool_paths=[NOTES]) as api:
        document = (await api.get("/openapi.json")).json
        await api.post("/chat", {"messages": [said("note")]})
        waiting = (await api.get("/approvals")).json
        path = f"/approvals/{waiting['approvals'][0]['approval_id']}"
        answered = (await api.post(path, {"decision": "always"})).json
        await api.events(answered["resumed"]["run_id"])
        grants = (await api.get("/grants")).json
        called = (await api.complete("?", tools=[tool])).json
        chunks = (await api.complete("?", tools=[tool], stream=True)).chunks
        over = (await api.get("/approvals?waiting=false")).json
        traces = (await api.get("/traces")).json
    bodies = {"AnsweredBody": answered, "GrantList": grants, "CompletionBody": called, "TraceList": traces}
    assert (grants["count"], over["count"]) == (1, 1)
    assert undescribed(document, bodies) == []
    assert undescribed(document, {"ApprovalList": waiting}) == undescribed(document, {"ApprovalList": over}) == []
    assert [faults(document, "ChunkBody", chunk) for chunk in chunks] == [[]] * len(chunks)


async def test_files_fit_the_document(tmp_path: Path) -> None:
    async with behind_core(tmp_path=tmp_path, dial_api_key=API_KEY) as api:
        document = (await api.get("/openapi.json")).json
        form = aiohttp.FormData()
        form.add_field("file", b"a,b", filename="a.csv", content_type="text/csv")
        file = (await api.call("POST", "/v1/files", data=form)).json
        files = (await api.get("/v1/files")).json
        deleted = (await api.call("DELETE", f"/v1/files/{file['id']}")).json
    assert len(files["data"]) == 1
    assert undescribed(document, {"FileBody": file, "FileList": files, "DeletedBody": deleted}) == []


CALCULATION = (wants("calculator", expression="25*47"), says("11", "75", reasoning="Let me see."))
PUBLIC = {"keys": [{"bearer": []}, {"apiKey": []}], "open": [{}, {"bearer": []}, {"apiKey": []}]}


@pytest.mark.parametrize("mode", ["open", "keys"])
async def test_the_document_names_keys_real_failures_and_real_content_types(mode: str, tmp_path: Path) -> None:
    async with http_api(tmp_path=tmp_path, http={"mode": mode}) as api:
        document = (await api.get("/openapi.json")).json
    components = document["components"]
    documented = ("/v1/chat/completions", "/chat", "/session/start", "/session/end", "/session/{session_id}", "/traces")
    assert set(documented) <= set(document["paths"])
    assert document["security"] == PUBLIC[mode]
    assert components["securitySchemes"]["bearer"] == {"type": "http", "scheme": "bearer"}
    assert components["securitySchemes"]["apiKey"] == {"type": "apiKey", "in": "header", "name": "Api-Key"}
    assert not {"HTTPValidationError", "ValidationError"} & components["schemas"].keys()
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            assert "422" not in operation["responses"], (method, path)
            assert {"400", "401", "403", "429", "503"} <= set(operation["responses"]), (method, path)
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
