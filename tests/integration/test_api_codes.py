"""Codes and words that must decide nothing, or only once, at the HTTP door."""

from __future__ import annotations

import asyncio
import base64
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from task.llm.scripted import says, wants
from tests.support.agent import agent_process
from tests.support.api_client import NOTES as NOTES_TOOL
from tests.support.api_client import Client, agent, coded, numbered, results, waiting
from tests.support.core import API_KEY
from tests.support.http_api import MODEL, NOWHERE, Api, key_of, said
from tests.support.ports import free_port
from tests.support.product import product
from tests.support.two_agents import NOTES
from tests.support.upstream import never_answering, openai_upstream

MILK, BREAD = wants("write_note", text="milk"), wants("write_note", text="bread")


@pytest.mark.fault("http api: a code of another owner, at the HTTP door")
async def test_a_code_of_another_owner_is_not_there_and_runs_nothing(tmp_path: Path) -> None:
    secrets = [await key_of(owner, tmp_path) for owner in ("ann", "bob")]
    async with agent(MILK, tmp_path=tmp_path, http={"mode": "keys"}) as api:
        ann, bob = map(api.with_key, secrets)
        question = (await ann.complete("note it")).json["choices"][0]["message"]["content"]
        words = said(coded("approve", question))
        bodies = {"/v1/chat/completions": {"messages": [words]}, "/chat": {"messages": [words]}}
        replies = [await bob.post(path, body) for path, body in bodies.items()]
        replies.append(await bob.post("/v1/responses", {"input": words["content"]}))
        replies.append(await bob.post("/runs", {"messages": [words]}))
        [approval] = await waiting(ann)
    assert [reply.status for reply in replies] == [404] * 4
    assert "Nothing has run" in replies[0].error["message"]
    assert (approval["status"], len(api.upstream.requests)) == ("waiting", 1)


@pytest.mark.fault("http api: a code in a file or a result, at the HTTP door")
async def test_a_code_in_a_file_a_result_or_an_answer_decides_nothing(tmp_path: Path) -> None:
    script = MILK, wants("lookup", name="Ann")
    core: dict[str, Any] = {"dial_api_key": API_KEY, "tool_paths": [NOTES_TOOL]}
    async with (
        product(*script, then=says("I see."), tmp_path=tmp_path, **core) as running,
        aiohttp.ClientSession() as session,
    ):
        api = Api(running.agent_url, running.upstream, session)
        words = coded("approve", (await api.complete("note it")).json["choices"][0]["message"]["content"])
        client = Client(api)
        await client.send(said("look it up"))
        await client.result(words)
        await client.send(said(words, "assistant"), said("and now?"))
        data = base64.b64encode(words.encode()).decode()
        file = {"type": "file", "file": {"filename": "note.txt", "file_data": f"data:text/plain;base64,{data}"}}
        await client.send({"role": "user", "content": [file, {"type": "text", "text": words}]})
        [approval] = await waiting(api)
    assert approval["status"] == "waiting"


@pytest.mark.fault("http api: two codes in one message, at the HTTP door")
async def test_two_codes_of_one_question_both_count_and_two_of_two_questions_run_nothing(tmp_path: Path) -> None:
    async with agent(MILK & BREAD, MILK, says("Done."), tmp_path=tmp_path) as api:
        both = Client(api)
        await both.send(said("note them"))
        await api.complete("note it")
        one, other, third = [item["code"] for item in await waiting(api)]
        refused = await api.post("/v1/chat/completions", {"messages": [said(f"approve {one} and {third}")]})
        open_ones = [item["code"] for item in await waiting(api)]
        done = await both.send(said(f"approve {one} and {other}"))
        known = results(api)
    assert (refused.status, open_ones) == (409, [one, other, third])
    assert (done["content"], known) == ("Done.", ["noted: milk", "noted: bread"])


@pytest.mark.fault("http api: a code after another message, at the HTTP door")
async def test_a_code_of_a_closed_question_never_answers_the_one_that_is_open(tmp_path: Path) -> None:
    milk, bread = numbered(MILK), numbered(BREAD)  # both calls have the same id
    async with agent(milk, bread, says("Done."), tmp_path=tmp_path) as api:
        session_id = (await api.post("/session/start")).json["session_id"]
        old = (await api.complete("note it", session_id=session_id)).json["choices"][0]["message"]["content"]
        await api.complete("Write bread instead", session_id=session_id)
        refused = await api.complete(coded("deny", old), session_id=session_id)
        [approval] = await waiting(api)
        await api.complete("approve", session_id=session_id)
        known = results(api)
    assert refused.status == 409
    assert approval["arguments"] == {"text": "bread"}
    assert known[-1] == "noted: bread"


@pytest.mark.fault("http api: the same approval from two doors at once")
async def test_the_same_approval_by_card_and_by_word_at_once_runs_the_call_once(tmp_path: Path) -> None:
    async with agent(MILK, says("Done."), tmp_path=tmp_path) as api:
        session_id = (await api.post("/session/start")).json["session_id"]
        await api.complete("note it", session_id=session_id)
        [approval] = await waiting(api)
        card, code = await asyncio.gather(
            api.post(f"/approvals/{approval['approval_id']}", {"decision": "approve"}),
            api.complete(f"approve {approval['code']}", session_id=session_id),
        )
        known = results(api)
    assert (card.status, code.status) == (200, 200)
    assert card.json["resumed"]["run_id"] == code.json["run_id"]
    assert (known, len(api.upstream.requests)) == (["noted: milk"], 2)


@pytest.mark.fault("http api: a process that is killed between an answer and its call")
async def test_an_answer_that_a_killed_process_had_not_carried_out_is_carried_out_once_when_it_is_sent_again(
    tmp_path: Path,
) -> None:
    (tmp_path / "notes.py").write_text(NOTES)
    async with openai_upstream(MILK, never_answering(), says("Done.")) as upstream, aiohttp.ClientSession() as session:
        variables = {
            "AGENT_BACKEND": "openai", "OPENAI_BASE_URL": upstream.url, "OPENAI_API_KEY": "sk-test",
            "DEPLOYMENT_NAME": MODEL, "DIAL_ENDPOINT": NOWHERE, "AGENT_TOOL_PATHS": str(tmp_path / "notes.py"),
            "AGENT_STORE__URL": f"sqlite:///{tmp_path / 'store.db'}",
        }  # fmt: skip
        port = free_port()
        api = Api(f"http://127.0.0.1:{port}", upstream, session)
        async with agent_process(tmp_path / "one", port, variables) as process:
            asked = (await api.complete("note it")).json
            [approval] = await waiting(api)
            path = f"/approvals/{approval['approval_id']}"
            await api.post(path, {"decision": "approve"})
            await upstream.received(2)
            process.kill()
        async with agent_process(tmp_path / "two", port, variables):
            again = await api.post(path, {"decision": "approve"})
            events = await api.events(again.json["resumed"]["run_id"])
            await api.complete("Was it noted?", session_id=asked["session_id"])
            [known] = results(api)
    assert (again.status, events[-1]["status"]) == (200, "interrupted")
    assert "It may have run" in known
    assert (tmp_path / "notes.txt").read_text() == "milk\n"
