"""How the HTTP door handles invalid requests, and failures of its model or database."""

import asyncio
import sqlite3
from contextlib import closing
from io import BytesIO
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import FormData

from task.llm.scripted import says
from tests.support.api_client import behind_core
from tests.support.core import API_KEY
from tests.support.http_api import MODEL, http_api, said
from tests.support.upstream import RESET, Answer, broken_off, http_error, never_answering

PATH = "/v1/chat/completions"
BAD_BODIES: dict[str, dict[str, Any]] = {
    "temperature-3": {"messages": [said("?")], "temperature": 3},
    "temperature-text": {"messages": [said("?")], "temperature": "hot"},
    "top-p-2": {"messages": [said("?")], "top_p": 2},
    "max-tokens-0": {"messages": [said("?")], "max_tokens": 0},
    "no-messages": {"messages": []},
    "messages-missing": {},
    "bad-role": {"messages": [said("?", "robot")]},
    "last-is-assistant": {"messages": [said("?", "assistant")]},
    "orphan-result": {"messages": [{"role": "tool", "tool_call_id": "call_1", "content": "x"}]},
    "two-choices": {"messages": [said("?")], "n": 2},
    "bad-tool-name": {"messages": [said("?")], "tools": [{"type": "function", "function": {"name": "a b"}}]},
    "bad-file": {"messages": [{"role": "user", "content": [{"type": "file", "file": {"file_data": "%%%"}}]}]},
    "skills-11": {"messages": [said("?")], "skills": ["a"] * 11},
    "skill-without-a-name": {"messages": [said("?")], "skills": [""]},
    "empty-quote": {"messages": [{"role": "user", "content": [{"type": "quote", "title": "a", "text": ""}]}]},
    "picture-scheme": {
        "messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}]}]
    },
}


@pytest.mark.fault("http api: temperature 3, top_p 2, max_tokens 0, no messages, bad roles")
async def test_a_malformed_body_is_a_400_in_openais_shape_and_reaches_no_model(tmp_path: Path) -> None:
    async with http_api(tmp_path=tmp_path) as api:
        for name, body in BAD_BODIES.items():
            reply = await api.post(PATH, body)
            assert reply.status == 400, (name, reply.text)
            assert reply.error.keys() >= {"message", "type", "param", "code"}
            assert reply.error["type"] == "invalid_request_error"
        for name in ("temperature-3", "top-p-2", "max-tokens-0", "no-messages", "bad-role"):
            assert (await api.post("/chat", BAD_BODIES[name])).status == 400
        assert api.upstream.requests == []


@pytest.mark.fault("http api: a body of 10 MB, of another type, or no JSON")
@pytest.mark.parametrize(
    ("body", "kind", "status"),
    [
        (b"{", "application/json", 400),
        (b"\xff\xfe", "application/json", 400),
        (b"[" * 100_000, "application/json", 400),
        (
            b'{"messages": [' + b'{"role": "user", "content": "x"},' * 6_000 + b'{"role": "user", "content": "x"}]}',
            "application/json",
            400,
        ),
        (b"{}", "text/plain", 415),
        (b"messages=x", "application/x-www-form-urlencoded", 415),
        (b'{"messages": "' + b"x" * 10 * 2**20 + b'"}', "application/json", 413),
    ],
    ids=["cut-json", "not-utf8", "nested-json", "many-messages", "text", "form", "ten-megabytes"],
)
async def test_a_body_of_another_kind_or_size_is_refused(body: bytes, kind: str, status: int, tmp_path: Path) -> None:
    async with http_api(tmp_path=tmp_path) as api:
        reply = await api.call("POST", PATH, data=BytesIO(body), headers={"Content-Type": kind})
    assert reply.status == status
    assert reply.error["message"]


LOST: Any = [{"type": "input_image", "file_id": "file-0000", "detail": "auto"}]
ADDRESSES = ("/session", "/traces", "/runs", "/v1/models", "/v1/files", "/v1/responses")
ODD_IDS = (
    "%00", "a%0Ab", "%0A", "a%0D%0A", "a%20b", "a%2Fb", "..%2F..", "%ff%fe", "%ED%A0%80", "%F0%9F%98%80", "'%22;--",
)  # fmt: skip


@pytest.mark.fault("http api: an unknown session, trace, run, response, approval or grant")
@pytest.mark.fault("http api: an id with odd characters")
async def test_what_is_not_there_is_a_404_in_openais_shape(tmp_path: Path) -> None:
    async with http_api(tmp_path=tmp_path) as api:
        replies = [
            await api.get("/session/sess_00000000"),
            await api.post("/session/end", {"session_id": "sess_00000000"}),
            await api.complete("?", session_id="sess_00000000"),
            await api.get("/traces/trace_00000000"),
            await api.get("/traces/trace_00000000/calls/0"),
            await api.get("/runs/run_0000"),
            await api.get("/runs/run_0000/events"),
            await api.post("/runs/run_0000/cancel"),
            await api.post("/approvals/appr_0000", {"decision": "approve"}),
            await api.call("DELETE", "/grants/grant_0000"),
            await api.get("/v1/models/nobody"),
            await api.get("/v1/responses/resp_0000"),
            await api.call("DELETE", "/v1/responses/resp_0000"),
            await api.post("/v1/responses", {"input": [said(LOST)]}),
            await api.get("/nothing/here"),
            *[await api.get(f"{path}/{odd}") for path in ADDRESSES for odd in ODD_IDS],
        ]
        wrong_method = await api.get(PATH)
    assert [reply.status for reply in replies] == [404] * len(replies)
    assert {reply.error["type"] for reply in replies} == {"not_found_error"}
    assert (wrong_method.status, wrong_method.headers["Allow"]) == (405, "POST")


@pytest.mark.fault("http api: a provider's 401, 429, 404, 500 and time-out, or one that hangs up")
@pytest.mark.parametrize(
    ("fault", "status"),
    [
        (http_error(401), 502),
        (http_error(429, retry_after=7), 429),
        (http_error(500), 502),
        (http_error(404), 404),
        (http_error(504), 504),
        (Answer((RESET,)), 502),
    ],
    ids=["401", "429", "500", "404", "504", "hung-up"],
)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_a_models_failure_has_a_status_and_a_trace(fault: Any, status: int, stream: bool, tmp_path: Path) -> None:
    async with http_api(then=fault, tmp_path=tmp_path, llm={"attempts": 1}) as api:
        reply = await api.complete("?", stream=stream)
        trace = (await api.get(f"/traces/{reply.json['trace_id']}")).json
    assert reply.status == status
    assert "sk-test" not in reply.text
    assert (trace["status"], bool(trace["error"])) == ("failed", True)
    assert "sk-test" not in str(trace)


async def test_a_busy_model_is_reported_with_the_seconds_to_wait_also_behind_core(tmp_path: Path) -> None:
    once: dict[str, Any] = {"llm": {"attempts": 1}, "deployment_name": MODEL}
    async with http_api(then=http_error(503, retry_after=7), tmp_path=tmp_path / "direct", **once) as api:
        replies = [await api.complete("?")]
    busy = http_error(429, retry_after=7)
    async with behind_core(then=busy, tmp_path=tmp_path / "core", dial_api_key=API_KEY, **once) as api:
        replies.append(await api.complete("?"))
    assert [(reply.status, reply.headers.get("Retry-After")) for reply in replies] == [(503, "7"), (503, "7")]
    assert all("busy" in reply.error["display_message"] for reply in replies)


@pytest.mark.fault("http api: a model that breaks off")
async def test_a_model_that_breaks_off_ends_the_stream_with_one_error_and_keeps_the_text(tmp_path: Path) -> None:
    async with http_api(broken_off(says("Half ", "a ", "sentence"), chunks=2), tmp_path=tmp_path) as api:
        session_id = (await api.post("/session/start")).json["session_id"]
        reply = await api.complete("?", stream=True, session_id=session_id)
        session = (await api.get(f"/session/{session_id}")).json
        events = await api.events(reply.chunks[0]["run_id"], headers={"Last-Event-ID": "soon"})
    errors = [chunk["error"] for chunk in reply.chunks if "error" in chunk]
    assert reply.status == 200
    assert len(errors) == 1
    assert errors[0]["display_message"]
    assert errors[0]["reference"]
    assert reply.text.endswith("data: [DONE]\n\n")
    assert session["messages"][-1]["content"].startswith("Half")
    assert [events[0]["type"], *(event["type"] for event in events[-3:])] == ["started", "usage", "error", "finished"]
    assert events[-2]["error"]["type"].endswith("_error")


@pytest.mark.fault("http api: two writers on one session")
async def test_two_writers_in_one_session_are_not_mixed(tmp_path: Path) -> None:
    async with http_api(never_answering(), tmp_path=tmp_path) as api:
        session_id = (await api.post("/session/start")).json["session_id"]
        run = (await api.post("/runs", {"messages": [said("1")], "session_id": session_id})).json
        second = await api.complete("2", session_id=session_id)
        await api.post(f"/runs/{run['run_id']}/cancel")
        events = await api.events(run["run_id"])
    assert second.status == 409
    assert events[-1]["status"] == "cancelled"


@pytest.mark.fault("http api: a database that cannot be used")
@pytest.mark.fault("http api: a malformed request while the database cannot be used")
async def test_without_a_database_a_request_is_a_503_and_a_malformed_one_still_a_400(tmp_path: Path) -> None:
    (tmp_path / "agent").mkdir()
    (tmp_path / "agent" / "store.db").write_bytes(b"this is no database" * 100)
    queries = (
        "sessions?limit=0", "sessions?cursor=%00", "runs?cursor=none", "traces?since=yesterday", "runs?limit=x",
        "traces/trace_1/calls/-1", "runs/run_1/events?after=-1", "approvals?waiting=perhaps",
        f"grants?session_id={'x' * 201}", "v1/responses/resp_1?stream=perhaps",
        "v1/responses/resp_1/input_items?limit=0",
    )  # fmt: skip
    bodies = {
        ("POST", "/session/start"): {"title": 1},
        ("POST", "/session/end"): {},
        ("PATCH", "/session/sess_1"): {"title": 7},
        ("POST", "/session/sess_1/branch"): {"keep": -1},
        ("POST", "/approvals/appr_1"): {"decision": "perhaps"},
        ("POST", "/runs"): {"messages": []},
        ("POST", "/v1/responses"): {"input": []},
    }
    async with http_api(tmp_path=tmp_path) as api:
        replies = [await api.get(f"/{query}") for query in queries]
        replies += [await api.call(*place, body) for place, body in bodies.items()]
        refused = [await api.complete("?"), await api.get("/traces"), await api.post("/session/start")]
    assert [reply.status for reply in replies] == [400] * len(replies)
    assert [reply.status for reply in refused] == [503] * 3
    assert all(reply.headers["Retry-After"] for reply in refused)


@pytest.mark.fault("http api: stored data that do not fit the answer's description")
async def test_data_that_do_not_fit_their_model_leave_the_route_and_no_content_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with http_api(says("ok"), tmp_path=tmp_path) as api:
        run = (await api.post("/chat", {"messages": [said("?")]})).json["run_id"]
        with closing(sqlite3.connect(tmp_path / "agent" / "store.db")) as database, database:
            database.execute("UPDATE runs SET status = 'a secret'")
        replies = [await api.get(f"/runs/{run}"), await api.get("/runs")]
    assert [(reply.status, reply.error["code"]) for reply in replies] == [(500, "internal_error")] * 2
    for reply, route in zip(replies, ("GET /runs/{run_id}", "GET /runs"), strict=True):
        [line] = [line.getMessage() for line in caplog.records if reply.error["reference"] in line.getMessage()]
        assert f"{route} " in line
        assert "status" in line
    assert "a secret" not in caplog.text


@pytest.mark.fault("http api: no Core to keep files in, or one that refuses the key")
async def test_without_a_core_or_its_key_files_are_refused_with_the_setting_to_change(tmp_path: Path) -> None:
    part = {"type": "file", "file": {"filename": "a.txt", "file_data": "data:text/plain;base64,aGVsbG8="}}
    question = {"messages": [{"role": "user", "content": [{"type": "text", "text": "?"}, part]}]}
    async with http_api(says("ok"), tmp_path=tmp_path) as api:
        form = FormData()
        form.add_field("file", b"hello", filename="a.txt")
        away = [
            await api.call("POST", "/v1/files", data=form),
            await api.get("/v1/files"),
            await api.post(PATH, question),
        ]
        answer = await api.complete("?")
    async with behind_core(tmp_path=tmp_path, dial_api_key="wrong") as api:
        keyless = await api.get("/v1/files")
    assert [(reply.status, reply.error["code"]) for reply in (*away, keyless)] == [(503, "files_unavailable")] * 4
    assert all("DIAL_ENDPOINT" in reply.error["message"] for reply in away)
    assert "DIAL_API_KEY" in keyless.error["message"]
    assert answer.status == 200


async def test_a_request_that_is_not_answered_when_the_server_stops_is_to_be_sent_again(tmp_path: Path) -> None:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(20)) as session:
        async with http_api(never_answering(), tmp_path=tmp_path) as api:
            body = {"messages": [said("Hi")]}
            asked = asyncio.create_task(session.post(f"{api.url}/v1/chat/completions", json=body))
            await api.upstream.received(1)
        answer = await asked
        assert (answer.status, answer.headers["Retry-After"]) == (503, "1")
        assert (await answer.json())["error"]["code"] == "stopping"
