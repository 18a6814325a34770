"""Sessions through the API, searched, exported and deleted; ratings, filters and replays of their traces."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from task.conversation.inputs import without_time
from task.llm.scripted import says, wants
from tests.support.http_api import Api, http_api, key_of, said

UNTITLED = {"titles": "off"}  # a title would take one of the model's scripted answers
ASKED = {"messages": [said("Wie heißt die Straße?")], "origin": "page"}


async def answered(api: Api, **body: Any) -> str:
    """The session of a run that has ended."""
    run = (await api.post("/runs", {**ASKED, **body})).json
    await api.events(run["run_id"])
    return run["session_id"]


async def listed(api: Api, query: str = "") -> list[str]:
    return [row["title"] for row in (await api.get(f"/sessions{query}")).json["sessions"]]


async def test_a_person_finds_pins_and_exports_a_conversation(tmp_path: Path) -> None:
    items = (wants("calculator", expression="25*47"), says("It is ", "1175 ```here```."))
    async with http_api(*items, then=says("yes"), tmp_path=tmp_path, http=UNTITLED) as api:
        own = await answered(api)
        await api.post("/v1/responses", {"input": "Von einem Programm: straße"})
        assert len(await listed(api, "?q=STRASSE")) == 2
        assert await listed(api, "?started_by=own&families=true") == ["Wie heißt die Straße?"]
        assert await listed(api, "?started_by=programs") == ["Von einem Programm: straße"]
        found = (await api.get("/sessions?q=1175")).json["sessions"][0]
        assert "1175" in found["snippet"]
        changed = (await api.call("PATCH", f"/session/{own}", {"pinned": True})).json
        assert (changed["pinned"], changed["title"]) == (True, "Wie heißt die Straße?")
        assert await listed(api, "?pinned=true") == ["Wie heißt die Straße?"]

        page = await api.get(f"/session/{own}/export")
        assert page.headers["Content-Disposition"].endswith("filename*=UTF-8''Wie-hei%C3%9Ft-die-Stra%C3%9Fe.md")
        assert page.text.startswith("# Wie heißt die Straße?\n\n## You\n\nWie heißt die Straße?\n\n## Agent\n")
        assert "<details><summary>calculator</summary>" in page.text
        document = (await api.get(f"/session/{own}/export?format=json")).json
        assert [message["role"] for message in document["messages"]] == ["user", "assistant", "tool", "assistant"]
        lines = (await api.get("/sessions/export")).text.splitlines()
        assert [json.loads(line)["session_id"] for line in lines][1] == own
        assert (await api.get(f"/session/{own}/export?format=pdf")).status == 400


@pytest.mark.fault("http api: a tool's output as a session's title")
async def test_a_title_is_never_the_output_of_a_tool(tmp_path: Path) -> None:
    tool = {"type": "function", "name": "clock", "parameters": {"type": "object", "properties": {}}}
    async with http_api(wants("clock"), says("Noon."), says("Noon."), tmp_path=tmp_path) as api:
        first = (await api.post("/v1/responses", {"input": "What time is it?", "tools": [tool]})).json
        (call,) = (item for item in first["output"] if item["type"] == "function_call")
        result = {"type": "function_call_output", "call_id": call["call_id"], "output": "SECRET 12:00"}
        asked = {"type": "function_call", "call_id": "theirs", "name": "clock", "arguments": "{}"}
        await api.post("/v1/responses", {"input": [result], "previous_response_id": first["id"], "tools": [tool]})
        foreign = [asked, {**result, "call_id": "theirs"}]
        await api.post("/v1/responses", {"input": foreign, "tools": [tool]})
        assert not any("SECRET" in title for title in await listed(api))


@pytest.mark.fault("http api: sessions of another owner among those to be found, exported, pinned or deleted")
async def test_several_are_deleted_at_once_but_only_ones_own(tmp_path: Path) -> None:
    ann, bob = await key_of("ann", tmp_path), await key_of("bob", tmp_path)
    async with http_api(then=says("yes"), tmp_path=tmp_path, http={**UNTITLED, "mode": "keys"}) as api:
        hers, his = api.with_key(ann), api.with_key(bob)
        mine, theirs = await answered(hers), await answered(his)
        branch = (await hers.post(f"/session/{mine}/branch", {"keep": 2})).json["session_id"]
        assert await listed(hers, "?families=true&q=") == ["Wie heißt die Straße?"]
        reply = await hers.post("/sessions/delete", {"session_ids": [branch, theirs], "families": True})
        assert reply.json == {"deleted": 2}
        assert await listed(hers) == []
        assert len(await listed(his)) == 1
        assert (await hers.get(f"/session/{theirs}/export")).status == 404
        assert (await hers.call("PATCH", f"/session/{theirs}", {"pinned": True})).status == 404


@pytest.mark.fault("http api: a list, an export or a deletion of sessions that cannot be meant")
@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/sessions/delete", {"session_ids": []}),
        ("POST", "/sessions/delete", {"session_ids": ["s"] * 1001}),
        ("POST", "/sessions/delete", {}),
        ("GET", f"/sessions?q={'x' * 201}", None),
        ("GET", "/sessions?started_by=nobody", None),
        ("PATCH", "/session/sess_1", {"pinned": "perhaps"}),
        ("POST", "/runs", {"messages": [said("x")], "origin": "elsewhere"}),
    ],
)
async def test_what_cannot_be_meant_is_refused(tmp_path: Path, method: str, path: str, body: Any) -> None:
    async with http_api(tmp_path=tmp_path) as api:
        assert (await api.call(method, path, body)).status == 400


@pytest.mark.system
async def test_an_answer_is_rated_by_any_of_its_names(tmp_path: Path) -> None:
    async with http_api(says("Hello."), tmp_path=tmp_path) as api:
        answer = (await api.complete("Hi")).json
        for name in (answer["trace_id"], answer["run_id"], answer["id"]):
            rated = await api.post(f"/traces/{name}/rating", {"rating": "down", "comment": "too short"})
            assert (rated.status, rated.json["trace_id"]) == (200, answer["trace_id"])
            assert (rated.json["rating"], rated.json["comment"]) == ("down", "too short")
        assert (await api.get("/traces/ratings")).json == {"up": 0, "down": 1}
        assert [item["trace_id"] for item in (await api.get("/traces?rating=down")).json["traces"]] == [
            answer["trace_id"]
        ]
        for _ in range(2):  # a second time changes nothing
            assert (await api.call("DELETE", f"/traces/{answer['id']}/rating")).status == 204
        assert (await api.get(f"/traces/{answer['trace_id']}")).json["rating"] is None


@pytest.mark.fault("store: a rating that is no rating, or has a comment that is too long")
async def test_bad_ratings_are_refused_and_change_nothing(tmp_path: Path) -> None:
    async with http_api(says("Hello."), tmp_path=tmp_path) as api:
        answer = (await api.complete("Hi")).json
        path = f"/traces/{answer['trace_id']}/rating"
        bad: list[Any] = [
            {}, {"rating": "sideways"}, {"rating": True}, {"rating": None}, {"rating": "up", "comment": 5},
            {"rating": "up", "comment": "x" * 2001}, {"rating": "up", "comment": "\ud800"}, [], "up",
        ]  # fmt: skip
        for body in bad:
            assert (await api.post(path, body)).status in (400, 422), body
        for name in ("trace_ffffffff", "chatcmpl-", "resp_0", "%25", "x" * 300):
            assert (await api.post(f"/traces/{name}/rating", {"rating": "up"})).status == 404
            assert (await api.call("DELETE", f"/traces/{name}/rating")).status == 404
        for query in ("rating=left", "status=done", f"text={'x' * 201}", "since=soon"):
            assert (await api.get(f"/traces?{query}")).status in (400, 422), query
        assert (await api.get("/traces/ratings")).json == {"up": 0, "down": 0}


@pytest.mark.fault("store: a rating or a replay of another owner's answer")
async def test_nobody_rates_or_replays_the_answers_of_another_key(tmp_path: Path) -> None:
    keys = [await key_of(owner, tmp_path, operator=owner == "ops") for owner in ("ann", "bob", "ops")]
    async with http_api(says("Hello."), tmp_path=tmp_path, http={"mode": "keys"}) as open_api:
        ann, bob, ops = (open_api.with_key(key) for key in keys)
        answer = (await ann.complete("Hi", experiment="x")).json
        for caller in (bob, ops):
            for name in (answer["trace_id"], answer["id"]):
                assert (await caller.post(f"/traces/{name}/rating", {"rating": "up"})).status == 404
            assert (await caller.post(f"/traces/{answer['trace_id']}/replay", {"model": "m"})).status == 404
        listed = [(await caller.get("/traces?experiment=x")).json["count"] for caller in (ann, bob, ops)]
        assert listed == [1, 0, 1]
        assert (await ann.get("/traces/ratings")).json == {"up": 0, "down": 0}


async def ended(api: Api, run: dict[str, Any]) -> dict[str, Any]:
    """The run once it is over."""
    async with asyncio.timeout(30):
        await api.events(run["run_id"])
    return (await api.get(f"/runs/{run['run_id']}")).json


@pytest.mark.system
async def test_a_replay_asks_another_model_the_same_in_a_new_session(tmp_path: Path) -> None:
    sum_ = wants("calculator", expression="25*47")
    async with http_api(says("Hello."), sum_, says("1175"), says("Around 1200"), tmp_path=tmp_path) as api:
        first = (await api.post("/chat", {"messages": [said("Hi")]})).json
        second = await api.post(
            "/chat", {"messages": [said("25*47?")], "session_id": first["session_id"], "temperature": 0.25}
        )
        trace = second.json["trace"]
        started = await api.post(f"/traces/{trace['trace_id']}/replay", {"model": "other-model"})
        run = await ended(api, started.json)
        replayed = (await api.get(f"/traces/{run['trace_id']}")).json
        request = api.upstream.requests[-1].body
    assert (started.status, run["status"]) == (202, "finished")
    assert run["session_id"] != first["session_id"]
    assert (replayed["model"], replayed["question"], replayed["history"]) == ("other-model", "25*47?", 2)
    assert (request["model"], request["temperature"]) == ("other-model", 0.25)
    texts = [without_time(item["content"]) for item in request["messages"] if item["role"] == "user"]
    assert texts == ["Hi", "25*47?"]
    assert trace["question"] == "25*47?"


@pytest.mark.fault("store: a replay of a run whose messages are not kept, or that continues another one")
@pytest.mark.system
async def test_what_cannot_be_asked_again_is_refused(tmp_path: Path) -> None:
    async with http_api(then=says("Hello."), tmp_path=tmp_path) as api:
        messages = [said("Hi"), said("Hello.", "assistant"), said("And now?")]
        loose = (await api.post("/v1/chat/completions", {"messages": messages})).json["trace_id"]
        alone = (await api.complete("Hi")).json["trace_id"]
        refused = await api.post(f"/traces/{loose}/replay", {"model": "m"})
        assert (refused.status, "are not kept" in refused.error["message"]) == (400, True)
        for body in ({}, {"model": ""}, {"model": 5}, {"model": "x" * 201}):
            assert (await api.post(f"/traces/{alone}/replay", body)).status in (400, 422), body
        assert (await api.post("/traces/trace_ffffffff/replay", {"model": "m"})).status == 404
        assert (await ended(api, (await api.post(f"/traces/{alone}/replay", {"model": "m"})).json))[
            "status"
        ] == "finished"


@pytest.mark.fault("http api: calls in a history with arguments that are not JSON, or a name of HTML, in an export")
async def test_a_session_with_odd_calls_is_exported_all_the_same_and_nothing_in_it_acts(tmp_path: Path) -> None:
    async with http_api(then=says("Yes."), tmp_path=tmp_path) as api:
        calls = [{"id": "c1", "function": {"name": "<img src=//evil.example>", "arguments": "{north"}}]
        result = {"role": "tool", "tool_call_id": "c1", "content": "free"}
        quote = {"type": "quote", "title": "![](https://evil.example)", "text": "x"}
        look = said("") | {"content": [quote]}
        asked = [look, {"role": "assistant", "tool_calls": calls}, result, said("And now?")]
        answer = await api.post("/chat", {"messages": asked})
        page = await api.get(f"/session/{answer.json['session_id']}/export")
    assert (page.status, "{north" in page.text) == (200, True)
    assert not any(odd in page.text for odd in ("<img", "![](https://evil.example)"))
