"""Answers in a format, and tools that a request asks for by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from task.llm.scripted import Reply, says, wants
from tests.support.http_api import http_api, said
from tests.support.upstream import broken_off

JSON = {"type": "json_object"}
OWN = wants("calculator", expression="1+1")
LOOKUP = {"type": "function", "function": {"name": "lookup", "parameters": {"type": "object"}}}


def text_of(chunks: list[dict[str, Any]]) -> str:
    return "".join(choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"])


@pytest.mark.parametrize(
    ("last", "content"),
    [
        (says('{"name"', ': "x"}'), '{"name": "x"}'),
        (says("```json\n", "{}\n```"), "```json\n{}\n```"),
        (says("I can", "not."), "I cannot."),
    ],
)
async def test_text_before_a_call_of_ours_is_not_part_of_a_json_answer(
    last: Reply, content: str, tmp_path: Path
) -> None:
    script = (says("Let me ", "compute.") & OWN, last)
    async with http_api(*script, *script, *script, tmp_path=tmp_path) as api:
        whole = (await api.complete("?", response_format=JSON)).json["choices"][0]["message"]["content"]
        streamed = text_of((await api.complete("?", response_format=JSON, stream=True)).chunks)
        plain = (await api.complete("?")).json["choices"][0]["message"]["content"]
    assert (whole, streamed) == (content, content)
    assert plain == f"Let me compute.\n\n{content}"


async def test_a_json_answer_streams_as_it_comes(tmp_path: Path) -> None:
    async with http_api(says('{"a', '": 1', "}", pause=0.05), tmp_path=tmp_path) as api:
        chunks = (await api.complete("?", response_format=JSON, stream=True)).chunks
    pieces = [chunk["choices"][0]["delta"].get("content") for chunk in chunks]
    assert [piece for piece in pieces if piece] == ['{"a', '": 1', "}"]


async def test_text_beside_a_call_of_the_callers_tools_and_of_a_broken_answer_is_sent(tmp_path: Path) -> None:
    beside = says("I look it up.") & wants("lookup", name="Ann")
    broken = broken_off(says("It is", " so"), chunks=2, reset=False)
    async with http_api(beside, broken, tmp_path=tmp_path) as api:
        asked = (await api.complete("?", response_format=JSON, tools=[LOOKUP])).json["choices"][0]["message"]
        chunks = (await api.complete("?", response_format=JSON, stream=True)).chunks
    assert (asked["content"], len(asked["tool_calls"])) == ("I look it up.", 1)
    assert text_of([chunk for chunk in chunks if "choices" in chunk]) == "It is"
    assert any("error" in chunk for chunk in chunks)


async def test_whole_history_continues_after_a_json_answer(tmp_path: Path) -> None:
    async with http_api(says("Let me see.") & OWN, says("{}"), says("{}"), tmp_path=tmp_path) as api:
        session = (await api.post("/session/start", {})).json["session_id"]
        first = (await api.complete("?", session_id=session, response_format=JSON)).json["choices"][0]["message"]
        history = [said("?"), first, said("Again")]
        path = "/v1/chat/completions"
        second = (await api.post(path, {"messages": history, "session_id": session, "response_format": JSON})).json
    assert second["session_id"] == session


@pytest.mark.fault("http api: a tool choice that names no tool")
async def test_a_tool_choice_names_a_tool_that_there_is(tmp_path: Path) -> None:
    def choice(name: str) -> dict[str, Any]:
        return {"type": "function", "function": {"name": name}}

    async with http_api(then=says("ok"), tmp_path=tmp_path) as api:
        refused = [
            await api.complete("?", tools=[LOOKUP], tool_choice=choice("look")),
            await api.complete("?", tools=[LOOKUP], tool_choice=choice("look"), stream=True),
            await api.post("/v1/responses", {"input": "?", "tool_choice": {"type": "function", "name": "look"}}),
        ]
        assert api.upstream.requests == []
        taken = [
            await api.complete("?", tools=[LOOKUP], tool_choice=choice("lookup")),
            await api.complete("?", tool_choice=choice("calculator")),
        ]
    for reply in refused:
        assert (reply.status, reply.error["code"]) == (400, "invalid_request")
        assert reply.error["message"] == "tool_choice names 'look', which is no tool of yours or of the agent's."
    assert [reply.status for reply in taken] == [200, 200]
