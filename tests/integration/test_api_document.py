"""The OpenAPI document says what the HTTP API does: schemathesis plays it against a running one."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from task.llm.scripted import says, wants
from tests.support.core import API_KEY
from tests.support.http_api import Api, http_api, said
from tests.support.product import product

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
    async with product(then=says("ok"), tmp_path=tmp_path, dial_api_key=API_KEY) as running:
        program = await asyncio.create_subprocess_exec(
            Path(sys.executable).parent / "schemathesis", "run", f"{running.agent_url}/openapi.json",
            "--seed", "7", "--no-color", "--generation-database", "none", "--checks", CHECKS, *options,
            cwd=tmp_path, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip
        try:
            told, _ = await program.communicate()
        finally:
            if program.returncode is None:
                program.kill()
                await program.wait()
    assert program.returncode == 0, told.decode()[-6000:]


async def test_every_route_stands_in_the_document_with_its_failures(tmp_path: Path) -> None:
    async with product(then=says("ok"), tmp_path=tmp_path) as running, aiohttp.ClientSession() as session:
        document = (await Api(running.agent_url, running.upstream, session).get("/openapi.json")).json
    paths = document["paths"]
    documented = ("/v1/chat/completions", "/chat", "/session/start", "/session/end", "/session/{session_id}", "/traces")
    assert set(documented) <= set(paths)
    assert "ChunkBody" in document["components"]["schemas"]
    for path, methods in paths.items():
        for method, told in methods.items():
            assert {"401", "403", "429", "503"} <= set(told["responses"]), (method, path)


def faults(document: dict[str, Any], name: str, body: Any) -> list[str]:
    from jsonschema import Draft202012Validator

    schema = {"$ref": f"#/components/schemas/{name}", "components": document["components"]}
    return [fault.message for fault in Draft202012Validator(schema).iter_errors(body)]


async def test_every_answer_and_chunk_fits_the_document(tmp_path: Path) -> None:
    calculation = (wants("calculator", expression="25*47"), says("11", "75"))
    async with http_api(*calculation, *calculation, says("ok"), says("ok"), tmp_path=tmp_path) as api:
        document = (await api.get("/openapi.json")).json
        chunks = (await api.complete("?", stream=True, stream_options={"include_usage": True})).chunks
        chat = (await api.post("/chat", {"messages": [said("?")]})).json
        response = (await api.post("/v1/responses", {"input": "?"})).json
        path = f"/v1/responses/{response['id']}"
        assert (await api.get(path)).json == response
        bodies = {
            "CompletionBody": (await api.complete("?")).json,
            "ChatBody": chat,
            "ResponseBody": response,
            "ItemList": (await api.get(f"{path}/input_items")).json,
            "ResponseDeleted": (await api.call("DELETE", path)).json,
            "SessionBody": (await api.get(f"/session/{chat['session_id']}")).json,
            "SessionList": (await api.get("/sessions")).json,
            "TraceList": (await api.get("/traces")).json,
            "RunList": (await api.get("/runs")).json,
            "ModelList": (await api.get("/v1/models")).json,
            "ErrorBody": (await api.get("/traces/none")).json,
        }
    for name, body in bodies.items():
        assert faults(document, name, body) == [], name
    assert [faults(document, "ChunkBody", chunk) for chunk in chunks] == [[]] * len(chunks)
