"""Ratings, filters and replays of traces, over HTTP."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from task.llm.scripted import says, wants
from tests.support.http_api import Api, http_api, key_of, said
from tests.support.note_product import TOOL, noting_model


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
    assert [item["content"] for item in request["messages"] if item["role"] == "user"] == ["Hi", "25*47?"]
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


@pytest.mark.fault("store: a replay of a run whose messages are not kept, or that continues another one")
@pytest.mark.system
@pytest.mark.parametrize("decision", ["approve", "deny"])
async def test_a_run_that_continues_another_names_its_question_and_a_replay_asks_as_any_run(
    decision: str, tmp_path: Path
) -> None:
    (tmp_path / "notes.py").write_text(TOOL)
    async with http_api(then=noting_model, tmp_path=tmp_path, tool_paths=[str(tmp_path / "notes.py")]) as api:
        asked = (await api.post("/chat", {"messages": [said("Note 1")]})).json
        [question] = (await api.get(f"/approvals?run_id={asked['run_id']}")).json["approvals"]
        answered = (await api.post(f"/approvals/{question['approval_id']}", {"decision": decision})).json
        resumed = await ended(api, answered["resumed"])
        trace = (await api.get(f"/traces/{resumed['trace_id']}")).json
        again = await api.post(f"/traces/{trace['trace_id']}/replay", {"model": "m"})
        replayed = (await api.post(f"/traces/{asked['trace']['trace_id']}/replay", {"model": "m"})).json
        assert (await ended(api, replayed))["status"] == "suspended"
    assert trace["question"] == "Note 1"
    assert (again.status, "continues another run" in again.error["message"]) == (400, True)
