"""Every error that a person sees has a reference, and the reference stands in the log."""

import re
from pathlib import Path
from typing import Any

import pytest

from task.llm.scripted import says, wants
from tests.support.http_api import http_api, key_of, said
from tests.support.ports import free_port
from tests.support.product import product
from tests.support.replies import Reply
from tests.support.upstream import broken_off, http_error

TOOLS = '''
from task.errors import ToolError
from task.tools.declare import tool

@tool
def crash(text: str) -> str:
    """Crash."""
    raise ZeroDivisionError(text)

@tool
def refuse(text: str) -> str:
    """Refuse."""
    raise ToolError(f"There is no {text}.")
'''
NO_CALCULATOR = {"rules": [{"action": "deny", "tool": "calculator"}]}


def logged(reference: str, log: pytest.LogCaptureFixture) -> str:
    """The log's line with the reference."""
    [line] = [line.getMessage() for line in log.records if reference in line.getMessage()]
    return line


def reference_in(text: str) -> str:
    [found] = set(re.findall(r"reference:? ([0-9a-f]{8})\)", text))
    return found


@pytest.mark.fault("start: an error that somebody reports by its reference")
async def test_every_failed_call_has_one_in_its_stage(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    (tmp_path / "tools.py").write_text(TOOLS)
    crashes, refuses, unfit = wants("crash", text="SECRET"), wants("refuse", text="SECRET"), wants("refuse", x="SECRET")
    unknown, denied = wants("compute", text="SECRET"), wants("calculator", expression="1+1")
    calls = [crashes & refuses & unfit & unknown & denied, says("Sorry.")]
    settings: dict[str, Any] = {"tool_paths": [str(tmp_path / "tools.py")], "permissions": NO_CALCULATOR}
    async with http_api(*calls, tmp_path=tmp_path, **settings) as api:
        run = (await api.post("/runs", {"messages": [said("?")]})).json
        events = await api.events(run["run_id"])
    texts: dict[int, str] = {}
    for event in events:
        if event["type"] == "stage_text":
            texts[event["stage"]] = texts.get(event["stage"], "") + event["text"]
    refusal = next(text for text in texts.values() if "a rule forbids it" in text)  # is a decision, not an error
    lines = [logged(reference_in(text), caplog) for text in texts.values() if text is not refusal]
    assert sorted(line.split(" failed")[0].removeprefix("a call of ") for line in lines) == [
        "an unknown tool", "crash", "refuse", "refuse",
    ]  # fmt: skip
    assert "reference" not in refusal
    assert "SECRET" not in "".join(line.getMessage() for line in caplog.records)
    results = [message["content"] for message in api.upstream.requests[1].messages[-5:]]
    assert ["reference" in result for result in results] == [True, *[False] * 4]  # equal failures stay equal


@pytest.mark.fault("start: an error that somebody reports by its reference")
async def test_refusals_and_failures_of_the_http_api_have_one(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    key = await key_of("ann", tmp_path)
    busy = http_error(400, display_message="Say it in other words.")
    half = broken_off(says("Half ", "a ", "sentence"), chunks=2)
    async with http_api(busy, busy, busy, half, tmp_path=tmp_path, http={"mode": "keys", "body_bytes": 2000}) as api:
        ann = api.with_key(key)
        replies: dict[int, Reply] = {
            401: await api.get("/sessions"),
            404: await ann.get("/session/sess_none"),
            405: await ann.call("PUT", "/chat", {}),
            400: await ann.post("/chat", {"messages": []}),
            403: await ann.post("/chat", {}, headers={"Origin": "http://evil.example"}),
            413: await ann.post("/chat", {"messages": [said("x" * 3000)]}),
            415: await ann.post("/chat", data="x", headers={"Content-Type": "text/plain"}),
        }
        models = [await ann.complete("?"), await ann.complete("?", stream=True)]
        models.append(await ann.post("/chat", {"messages": [said("?")]}))
        reply = await ann.complete("?", stream=True)  # it breaks off: the stream, its trace and its run have the same
        [row, *_] = (await ann.get("/traces")).json["traces"]
        trace = (await ann.get(f"/traces/{row['trace_id']}")).json
        run = (await ann.get(f"/runs/{trace['run_id']}")).json
    [error] = [chunk["error"] for chunk in reply.chunks if "error" in chunk]
    assert "model" in logged(error["reference"], caplog)
    shown = {reference_in(text) for text in (error["display_message"], trace["error"], run["error"])}
    assert shown == {error["reference"]}
    assert {status: reply.status for status, reply in replies.items()} == {status: status for status in replies}
    for reply in (*replies.values(), *models):
        error = reply.error
        assert error["display_message"].endswith(f" (error reference: {error['reference']})")
        assert logged(error["reference"], caplog)
    assert all(reply.error["display_message"].startswith("Say it in other words. (") for reply in models)


@pytest.mark.fault("start: an error that somebody reports by its reference")
async def test_the_dial_door_a_missing_server_and_an_unusable_database_have_one_in_every_sentence(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    servers = [{"name": "gone", "url": f"http://127.0.0.1:{free_port()}/mcp"}]
    refusal = http_error(400, display_message="Say it in other words.")
    async with product(refusal, tmp_path=tmp_path, mcp_servers=servers) as p:
        answers = [await p.reader.ask("?")]
        p.reader.configuration = {"colour": "red"}
        answers.append(await p.reader.ask("?"))
    assert "gone" in logged(reference_in(answers[0].stages[0].content), caplog)
    for answer in answers:
        assert answer.error is not None
        assert logged(reference_in(answer.error["display_message"]), caplog)
    (tmp_path / "other" / "agent").mkdir(parents=True)
    (tmp_path / "other" / "agent" / "store.db").write_bytes(b"this is no database" * 100)
    async with http_api(then=says("ok"), tmp_path=tmp_path / "other") as api:
        reply = await api.complete("?")
    assert (reply.status, "status 503" in logged(reply.error["reference"], caplog)) == (503, True)
