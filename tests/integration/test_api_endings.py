"""How an answer ends: at limits, by filters, without text, and when the client leaves."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from task.llm.base import Finish, TextDelta
from task.llm.scripted import Reply, says, wants
from tests.support.http_api import Api, http_api, said
from tests.support.upstream import Received, http_error

CUT = Reply((TextDelta('{"a": [1, 2'), Finish("length")))
FILTERED = Reply((TextDelta("First you"), Finish("content_filter")))
FILTERED_AT_ONCE = Reply((Finish("content_filter"),))
EMPTY = Reply((Finish("stop"),))
OWN = "/v1/chat/completions"


def text_of(chunks: list[dict[str, Any]]) -> str:
    return "".join(choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"])


async def both_ways(api: Api) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The same question whole and as a stream."""
    whole, streamed = await api.complete("?"), await api.complete("?", stream=True)
    assert (whole.status, streamed.status) == (200, 200), whole.text
    return whole.json, streamed.chunks


@pytest.mark.fault("http api: an answer that is cut off, filtered or empty")
@pytest.mark.parametrize(
    ("reply", "text", "reason"),
    [
        (CUT, '{"a": [1, 2', "length"),
        (FILTERED, "First you", "content_filter"),
        (FILTERED_AT_ONCE, "", "content_filter"),
        (EMPTY, "", "stop"),
    ],
    ids=["cut off", "filtered", "filtered at once", "empty"],
)
async def test_an_answer_is_the_models_own_text_and_its_end_the_finish_reason(
    reply: Reply, text: str, reason: str, tmp_path: Path
) -> None:
    async with http_api(then=reply, tmp_path=tmp_path) as api:
        whole, chunks = await both_ways(api)
        chat = await api.post("/chat", {"messages": [said("?")]})
    [choice] = whole["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == (text, reason)
    assert (text_of(chunks), chunks[-1]["choices"][0]["finish_reason"]) == (text, reason)
    assert not any("error" in chunk for chunk in chunks)
    assert (chat.status, chat.json["response"]) == (200, text)


async def test_a_trace_and_the_page_say_why_there_is_no_answer(tmp_path: Path) -> None:
    async with http_api(FILTERED_AT_ONCE, EMPTY, tmp_path=tmp_path) as api:
        answers = [(await api.complete("?")).json for _ in range(2)]
        events = [await api.events(answer["run_id"]) for answer in answers]
    assert [answer["trace"]["error"].partition(" (error reference: ")[0] for answer in answers] == [
        "The model's content filter stopped the answer. Say it in other words.", "The model gave an empty answer.",
    ]  # fmt: skip
    assert [event["error"]["code"] for run in events for event in run if event["type"] == "error"] == [
        "content_filter", "empty_answer",
    ]  # fmt: skip


@pytest.mark.parametrize(("reply", "reason"), [(CUT, "max_output_tokens"), (FILTERED, "content_filter")])
async def test_a_response_that_is_not_whole_is_incomplete_also_when_it_is_fetched(
    reply: Reply, reason: str, tmp_path: Path
) -> None:
    async with http_api(then=reply, tmp_path=tmp_path) as api:
        answer = (await api.post("/v1/responses", {"input": "?"})).json
        again = (await api.get(f"/v1/responses/{answer['id']}")).json
        last = (await api.post("/v1/responses", {"input": "?", "stream": True})).chunks[-1]
    for body in (answer, again, last["response"]):
        assert (body["status"], body["incomplete_details"], body["error"]) == ("incomplete", {"reason": reason}, None)
        assert body["output"][0]["content"][0]["text"] == reply.events[0].text  # type: ignore[union-attr]
    assert last["type"] == "response.incomplete"


@pytest.mark.parametrize("reply", [CUT, FILTERED])
async def test_whole_history_continues_after_an_incomplete_answer(reply: Reply, tmp_path: Path) -> None:
    async with http_api(reply, says("Once more."), tmp_path=tmp_path) as api:
        session = (await api.post("/session/start", {})).json["session_id"]
        first = (await api.complete("?", session_id=session)).json["choices"][0]["message"]
        history = [said("?"), first, said("Go on")]
        second = (await api.post(OWN, {"messages": history, "session_id": session})).json
        stored = (await api.get(f"/session/{session}")).json["messages"]
    assert second["session_id"] == session
    assert stored == [said("?"), said(first["content"], "assistant"), said("Go on"), said("Once more.", "assistant")]


async def test_a_question_that_the_providers_filter_refuses_is_a_400(tmp_path: Path) -> None:
    refusal = http_error(400, "The prompt was filtered.", code="content_filter")
    async with http_api(then=refusal, tmp_path=tmp_path) as api:
        whole, streamed = await api.complete("?"), await api.complete("?", stream=True)
    assert [(reply.status, reply.error["code"]) for reply in (whole, streamed)] == [(400, "content_filter")] * 2


NOTES = str(Path(__file__).parent.parent / "contract" / "matrix" / "notes.py")


def answer(request: Received) -> Reply:
    return says("Done.") if request.messages[-1]["role"] == "tool" else wants("write_note", text="milk")


async def test_a_run_continues_although_the_approver_has_left_at_once(tmp_path: Path) -> None:
    async with http_api(then=answer, tmp_path=tmp_path, tool_paths=[NOTES]) as api, asyncio.timeout(40):
        for seconds in (0.002, 0.004, 0.006, 0.008, 0.01):
            session_id = (await api.post("/chat", {"messages": [said("note it")]})).json["session_id"]
            [asked] = (await api.get(f"/approvals?session_id={session_id}")).json["approvals"]
            path, decision = f"/approvals/{asked['approval_id']}", {"decision": "approve"}
            leaving = asyncio.create_task(api.post(path, decision))
            await asyncio.wait({leaving}, timeout=seconds)
            leaving.cancel()
            await asyncio.wait({leaving})
            await api.post(path, decision)  # the first one may have left before it was received
            runs: list[dict[str, str]] = []
            while [run["status"] for run in runs] != ["finished", "suspended"]:
                await asyncio.sleep(0.02)
                runs = (await api.get(f"/runs?session_id={session_id}")).json["runs"]
