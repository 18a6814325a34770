"""Approvals in words from a client that keeps the conversation itself: at every endpoint, stored, and sent twice."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from task.llm.scripted import says, wants
from tests.support.api_client import Client, agent, coded, results, waiting
from tests.support.http_api import Api, Reply, said
from tests.support.upstream import dripping

ASKS = says("I would. ") & wants("write_note", text="milk")
BREAD = says("And this.") & wants("write_note", text="bread")


def roles(api: Api, request: int = -1) -> list[str]:
    return [item["role"] for item in api.upstream.requests[request].messages]


async def posted(api: Api, path: str, messages: list[dict[str, Any]]) -> tuple[Reply, str]:
    """The reply, and the assistant's text in it."""
    reply = await api.post(path, {"input" if path == "/v1/responses" else "messages": messages})
    seen_by_model = reply.json
    if path == "/runs":
        texts = ("text", "approval")
        events = await api.events(seen_by_model["run_id"])
        return reply, "".join(event["text"] for event in events if event["type"] in texts)
    if path == "/v1/responses":
        return reply, seen_by_model["output"][-1]["content"][0]["text"]
    return reply, seen_by_model["response"] if path == "/chat" else seen_by_model["choices"][0]["message"]["content"]


@pytest.mark.parametrize("path", ["/chat", "/runs", "/v1/responses", "/v1/chat/completions"])
async def test_a_code_decides_after_the_whole_history_at_every_endpoint(tmp_path: Path, path: str) -> None:
    async with agent(ASKS, says("Done."), says("Milk."), tmp_path=tmp_path) as api:
        history = [said("note it")]
        _, question = await posted(api, path, history)
        history += [said(question, "assistant"), said(coded("approve", question))]
        _, answer = await posted(api, path, history)
        last = api.upstream.requests[-1].messages
        known, seen_by_model = results(api), [item["content"] for item in last if item["role"] in ("user", "assistant")]
    assert answer == "Done."
    assert known == ["noted: milk"]
    assert seen_by_model == ["note it", "I would. "]


@pytest.mark.parametrize("stream", [False, True])
async def test_all_that_one_turn_was_allowed_is_known_to_the_next_in_a_session(tmp_path: Path, stream: bool) -> None:
    more = BREAD & wants("calculator", expression="1+1")
    looks = wants("lookup", name="Ann")
    async with agent(ASKS, more, looks, says("Done."), says("Both."), tmp_path=tmp_path) as api:
        session_id = (await api.post("/session/start")).json["session_id"]
        client = Client(api, stream=stream, session_id=session_id, whole=True)
        await client.send(said("note it"))
        await client.decide("approve")
        answer = await client.decide("approve")
        called = [call["function"]["name"] for call in answer["tool_calls"]]
        await client.result("Ann is 42")
        await client.send(said("What did you do?"))
        known, seen_by_model = results(api), roles(api)
    assert called == ["lookup"]
    assert known == ["noted: milk", "noted: bread", "2", "Ann is 42"]
    assert seen_by_model[-9:] == [
        "user", "assistant", "tool", "assistant", "tool", "tool", "assistant", "tool", "assistant", "user",
    ][-9:]  # fmt: skip


@pytest.mark.fault("http api: an approval by a word that a client sends again")
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("in_session", [False, True])
async def test_the_same_approval_sent_twice_is_answered_twice_and_carried_out_once(
    tmp_path: Path, in_session: bool, stream: bool
) -> None:
    async with agent(ASKS, BREAD, says("Done."), tmp_path=tmp_path) as api:
        session_id = (await api.post("/session/start")).json["session_id"] if in_session else None
        client = Client(api, stream=stream, session_id=session_id, whole=True)
        await client.send(said("note it"))
        asked = await client.decide("approve")
        client.history.pop()
        again = await client.again()
        open_ones = [item["arguments"] for item in await waiting(api)]
        client.history.append(again)
        done = await client.decide("approve")
        client.history.pop()
        twice = [await client.again() for _ in range(2)]
        requests = len(api.upstream.requests)
    assert again == asked
    assert open_ones == [{"text": "bread"}]
    assert done["content"] == "Done."
    assert twice == [done, done]
    assert requests == 3


@pytest.mark.fault("http api: an approval by a word that a client sends again")
async def test_an_approval_sent_again_while_it_is_carried_out_gets_the_same_answer(tmp_path: Path) -> None:
    slow = dripping(says(*("word " for _ in range(4))), seconds=0.0005)
    async with agent(ASKS, slow, tmp_path=tmp_path) as api:
        client = Client(api)
        await client.send(said("note it"))
        client.history.append(said(coded("approve", client.history[-1]["content"])))
        first = asyncio.ensure_future(client.post())
        await api.upstream.received(2)
        second = await client.post()
        bodies = [(await asyncio.wait_for(first, 20)).json, second.json]
    assert [body["choices"][0]["message"]["content"] for body in bodies] == ["word " * 4] * 2
    assert bodies[0]["run_id"] == bodies[1]["run_id"]
    assert bodies[0]["usage"] == bodies[1]["usage"]


async def test_the_same_approval_hands_out_the_callers_calls_again(tmp_path: Path) -> None:
    async with agent(ASKS, wants("lookup", name="Ann"), says("Done."), tmp_path=tmp_path) as api:
        client = Client(api)
        await client.send(said("note it"))
        first = await client.decide("approve")
        client.history.pop()
        again = await client.again()
        client.history.append(again)
        done = await client.result("Ann is 42")
    assert again["tool_calls"] == first["tool_calls"]
    assert done["content"] == "Done."
    assert results(api) == ["noted: milk", "Ann is 42"]


@pytest.mark.fault("http api: an approval by a word that a client sends again")
async def test_a_word_sent_again_after_the_same_response_is_answered_by_the_same_response(tmp_path: Path) -> None:
    async with agent(ASKS, says("Done."), tmp_path=tmp_path) as api:
        asked = (await api.post("/v1/responses", {"input": "note it"})).json
        body = {"input": "approve", "previous_response_id": asked["id"]}
        first, again = [(await api.post("/v1/responses", body)).json for _ in range(2)]
        other = await api.post("/v1/responses", {**body, "input": "deny"})
    assert first["output"][0]["content"][0]["text"] == "Done."
    assert again == first
    assert other.status == 409


@pytest.mark.fault("http api: a word after a card has decided about some of the calls")
@pytest.mark.parametrize("in_session", [False, True])
async def test_a_word_decides_what_no_card_has_decided_before(tmp_path: Path, in_session: bool) -> None:
    three = [wants("write_note", text=text) for text in ("milk", "bread", "salt")]
    async with agent(three[0] & three[1] & three[2], says("Done."), tmp_path=tmp_path) as api:
        session_id = (await api.post("/session/start")).json["session_id"] if in_session else None
        client = Client(api, session_id=session_id, whole=True)
        await client.send(said("note them"))
        first = (await waiting(api))[0]
        await api.post(f"/approvals/{first['approval_id']}", {"decision": "deny"})
        codes = {item["arguments"]["text"]: item["code"] for item in await waiting(api)}
        done = await client.send(said(f"approve {codes['salt']}"))
        milk, bread, salt = results(api)
        open_ones = await waiting(api)
    assert (done["content"], salt, open_ones) == ("Done.", "noted: salt", [])
    assert "the user denied it" in milk
    assert "the user did not approve it" in bread


@pytest.mark.fault("http api: two alike questions in one conversation")
async def test_of_two_alike_questions_the_same_approval_sent_twice_decides_one(tmp_path: Path) -> None:
    async with agent(ASKS, ASKS, says("Done."), tmp_path=tmp_path) as api:
        client = Client(api)
        client.history = [said("note it")]
        await client.again()
        question = await client.again()
        client.history += [question, said(coded("approve", question["content"]))]
        done, again = await client.again(), await client.again()
        open_ones = len(await waiting(api))
    assert (done["content"], again, open_ones) == ("Done.", done, 1)


async def test_what_was_approved_runs_although_the_caller_wants_no_further_calls(tmp_path: Path) -> None:
    async with agent(ASKS, says("Done."), tmp_path=tmp_path) as api:
        client = Client(api)
        await client.send(said("note it"))
        body = {
            "messages": [*client.history, said(coded("approve", client.history[-1]["content"]))],
            "tool_choice": "none",
        }
        done = (await api.post("/v1/chat/completions", body)).json
        known, seen_by_model = results(api), api.upstream.requests[-1].body["tool_choice"]
    assert (done["choices"][0]["message"]["content"], known) == ("Done.", ["noted: milk"])
    assert seen_by_model == "none"


@pytest.mark.fault("http api: two alike questions in one conversation")
async def test_a_code_is_of_the_call_that_was_read_and_no_other_that_looks_alike(tmp_path: Path) -> None:
    calls = [wants("write_note", text=text) for text in ("salt and oil", "saltand oil")]
    async with agent(*calls, says("Done."), tmp_path=tmp_path) as api:
        client = Client(api)
        client.history = [said("note it")]
        read = (await client.again())["content"]
        await client.again()
        respaced = " ".join(read.split())
        client.history += [said(respaced, "assistant"), said(coded("approve", read))]
        await client.again()
        known, open_ones = results(api), len(await waiting(api))
    assert (known, open_ones) == (["noted: salt and oil"], 1)
