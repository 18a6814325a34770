"""Approvals in words at the HTTP door: stored, sent twice, and those that must decide nothing, or only once."""

import asyncio
import base64
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from task.llm.scripted import says, wants
from tests.support.agent import agent_process
from tests.support.api_client import NOTES as NOTES_TOOL
from tests.support.api_client import Client, agent, behind_core, coded, results, waiting
from tests.support.cluster import NOTES
from tests.support.core import API_KEY
from tests.support.http_api import MODEL, NOWHERE, Api, key_of, said
from tests.support.ports import free_port
from tests.support.replies import Reply
from tests.support.upstream import never_answering, openai_upstream

ASKS = says("I would. ") & wants("write_note", text="milk")
AND_BREAD = says("And this.") & wants("write_note", text="bread")


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
    more = AND_BREAD & wants("calculator", expression="1+1")
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
        "assistant", "tool", "assistant", "tool", "tool", "assistant", "tool", "assistant", "user",
    ]  # fmt: skip


@pytest.mark.fault("http api: an approval by a word that a client sends again")
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("in_session", [False, True])
async def test_an_approval_sent_twice_is_carried_out_once(tmp_path: Path, in_session: bool, stream: bool) -> None:
    async with agent(ASKS, AND_BREAD, says("Done."), tmp_path=tmp_path) as api:
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
    async with behind_core(*script, then=says("I see."), tmp_path=tmp_path, **core) as api:
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
async def test_an_answer_of_a_killed_process_is_carried_out_once_when_it_is_sent_again(tmp_path: Path) -> None:
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


@asynccontextmanager
async def client(*script: Any, tmp_path: Path) -> AsyncGenerator[tuple[Api, Client]]:
    """A client that sends its whole history in a session."""
    async with agent(*script, tmp_path=tmp_path) as api:
        yield api, Client(api, session_id=(await api.post("/session/start")).json["session_id"], whole=True)


async def ran(api: Api) -> list[str]:
    """All results of the agent's own tools that any model received."""
    return [result for request in range(len(api.upstream.requests)) for result in results(api, request)]


@pytest.mark.fault("http api: a yes after another history than the one that ends with the question")
@pytest.mark.parametrize(
    "history",
    [
        [said("hello"), said("Shall I tell you more?", "assistant")],
        [said("hello"), said("Shall I tell you more?", "assistant"), said("note it")],
        [said("hello"), said("Shall I tell you more?", "assistant"), said("note it"), said("Sugar?", "assistant")],
    ],
)
async def test_a_yes_after_another_history_is_talk_on_a_branch_and_the_question_stays(
    tmp_path: Path, history: list[dict[str, Any]]
) -> None:
    script = (says("Shall I tell you more?"), ASKS, says("More."), says("Done."))
    async with client(*script, tmp_path=tmp_path) as (api, person):
        await person.send(said("hello"))
        await person.send(said("note it"))
        asked, person.history = person.history, history
        other = await person.send(said("yes"))
        open_ones, early = len(await waiting(api)), await ran(api)
        person.history = asked
        done = await person.send(said("approve"))
        known = results(api)
    assert (other["content"], open_ones, early) == ("More.", 1, [])
    assert (done["content"], known) == ("Done.", ["noted: milk"])


async def test_a_client_that_shows_the_question_as_a_card_sends_the_answer_without_it(tmp_path: Path) -> None:
    async with client(ASKS, says("Done."), tmp_path=tmp_path) as (api, person):
        await person.send(said("note it"))
        person.history[-1] = said("I would.", "assistant")
        done = await person.send(said("approve"))
        known = results(api)
    assert (done["content"], known) == ("Done.", ["noted: milk"])
