"""Runs that are left, picked up again, stopped, approved, and limited for each caller."""

import asyncio
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from task.llm.scripted import Reply, says, wants
from tests.support.api_client import NOTES
from tests.support.core import served
from tests.support.http_api import Api, http_api, key_of, said
from tests.support.product import product
from tests.support.replies import Reply as HttpReply
from tests.support.upstream import Received, dripping, hanging, never_answering
from tests.support.waiting import until


@pytest.mark.fault("http api: a listener that comes after the end")
@pytest.mark.fault("http api: a client gone in the middle and back")
async def test_events_are_picked_up_again_after_the_last_one_that_was_seen(tmp_path: Path) -> None:
    async with http_api(wants("calculator", expression="1+1"), says("2"), tmp_path=tmp_path) as api:
        run = (await api.post("/runs", {"messages": [said("1+1?")]})).json
        events = await api.events(run["run_id"])
        rest = await api.events(run["run_id"], headers={"Last-Event-ID": "3"})
        queried = (await api.get(f"/runs/{run['run_id']}/events?after=3")).chunks
    assert [event["id"] for event in events] == list(range(1, len(events) + 1))
    kinds = [event["type"] for event in events]
    assert kinds[:2] == ["started", "stage_opened"]
    assert kinds[-4:] == ["stage_closed", "text", "usage", "finished"]
    assert events[-1]["status"] == "finished"
    assert rest == queried == events[3:]


@pytest.mark.fault("http api: a client gone in the middle and back")
async def test_a_run_in_a_session_continues_when_its_client_leaves(tmp_path: Path) -> None:
    async with http_api(dripping(says(*("word " for _ in range(4))), seconds=0.0005), tmp_path=tmp_path) as api:
        session_id = (await api.post("/session/start")).json["session_id"]
        body = {"messages": [said("?")], "session_id": session_id, "stream": True}
        async with api.session.post(f"{api.url}/v1/chat/completions", json=body) as response:
            await response.content.readline()
        [run] = (await api.get(f"/runs?session_id={session_id}")).json["runs"]
        events = await api.events(run["run_id"])
        session = (await api.get(f"/session/{session_id}")).json
    assert events[-1]["status"] == "finished"
    assert session["messages"][-1]["content"] == "word " * 4


@pytest.mark.fault("http api: a client gone for good")
async def test_a_run_without_listeners_is_ended_after_its_time(tmp_path: Path) -> None:
    endless = hanging(says("Half", " a sentence"), chunks=3)
    async with http_api(endless, tmp_path=tmp_path, http={"detach_seconds": 0.2}) as api:
        session_id = (await api.post("/session/start")).json["session_id"]
        body = {"messages": [said("?")], "session_id": session_id, "stream": True}
        async with api.session.post(f"{api.url}/v1/chat/completions", json=body) as response:
            await response.content.readline()
            await api.upstream.received(1)
        [run] = (await api.get("/runs")).json["runs"]

        async def over() -> bool:
            return (await api.get(f"/runs/{run['run_id']}")).json["status"] == "cancelled"

        await until(over)
        await api.upstream.disconnected(1)


async def test_a_run_that_is_stopped_before_it_begins_ends_and_leaves_its_session_free(tmp_path: Path) -> None:
    async with http_api(says("hi"), tmp_path=tmp_path, http={"detach_seconds": 0}) as api:
        run = (await api.post("/runs", {"messages": [said("?")]})).json
        events = await api.events(run["run_id"])
        again = await api.complete("And now?", session_id=run["session_id"])
    assert (events[-1]["type"], events[-1]["status"]) == ("finished", "cancelled")
    assert again.status == 200, again.text


@pytest.mark.fault("http api: a client gone for good")
async def test_without_a_session_a_client_that_leaves_ends_the_run(tmp_path: Path) -> None:
    async with http_api(never_answering(), never_answering(), tmp_path=tmp_path) as api:
        for stream in (False, True):
            waiting = asyncio.ensure_future(api.complete("?", stream=stream))
            await api.upstream.received(1 + stream)
            waiting.cancel()
            await asyncio.wait({waiting})
            await api.upstream.disconnected(1 + stream)

        async def over() -> bool:
            return [run["status"] for run in (await api.get("/runs")).json["runs"]] == ["cancelled"] * 2

        await until(over)


@pytest.mark.parametrize("path", ["/chat", "/v1/chat/completions", "/v1/chat/completions stream"])
async def test_a_caller_sees_that_somebody_stopped_the_answer(tmp_path: Path, path: str) -> None:
    body = {"messages": [said("?")], "stream": True} if path.endswith("stream") else {"messages": [said("?")]}
    async with http_api(hanging(says("Half", " a sentence"), chunks=3), tmp_path=tmp_path) as api:
        waiting = asyncio.ensure_future(api.post(path.split()[0], body))
        await api.upstream.received(1)
        [run] = (await api.get("/runs")).json["runs"]
        await spoken(api, run["run_id"])
        await api.post(f"/runs/{run['run_id']}/cancel")
        reply = await asyncio.wait_for(waiting, 20)
        again = (await api.post(f"/runs/{run['run_id']}/cancel")).json
    last = reply.chunks[-1] if path.endswith("stream") else reply.json
    assert (reply.status, last["status"], again["status"]) == (200, "cancelled", "cancelled")
    assert [choice["finish_reason"] for choice in last.get("choices", ())] == ["length"] * ("v1" in path)


async def test_a_caller_sees_that_the_answer_waits_for_a_person_or_met_a_limit(tmp_path: Path) -> None:
    steps = [wants("calculator", expression="1+1"), says("That far.")]
    script = (WRITES, WRITES, *steps, *steps)
    async with http_api(*script, tmp_path=tmp_path, tool_paths=[NOTES], http={"steps": 1}) as api:
        outcome = [
            (await api.post(path, {"messages": [said(text)]})).json["status"]
            for text in ("note it", "go on")
            for path in ("/chat", "/v1/chat/completions")
        ]
    assert outcome == ["suspended", "suspended", "limited", "limited"]


async def spoken(api: Api, run_id: str) -> None:
    """Wait for the run's first text."""
    async with asyncio.timeout(20), api.session.get(f"{api.url}/runs/{run_id}/events") as stream:
        async for line in stream.content:
            if b'"type":"text"' in line:
                return


async def asked(api: Api, **body: Any) -> dict[str, Any]:
    """A session in which the model wants to write, and the approval it needs."""
    outcome = (await api.post("/chat", {"messages": [said("note it")], **body})).json
    [approval] = (await api.get(f"/approvals?session_id={outcome['session_id']}")).json["approvals"]
    return {**outcome, **approval}


WRITES = wants("write_note", text="milk", intent="To remember")


@pytest.mark.fault("http api: an approval that was answered before, or changed arguments that do not fit")
async def test_an_approved_call_runs_once_and_the_run_continues(tmp_path: Path) -> None:
    async with http_api(WRITES, says("Done."), tmp_path=tmp_path, tool_paths=[NOTES]) as api:
        outcome = await asked(api)
        session = (await api.get(f"/session/{outcome['session_id']}")).json
        reply = await api.post(f"/approvals/{outcome['approval_id']}", {"decision": "approve"})
        events = await api.events(reply.json["resumed"]["run_id"])
        second = await api.post(f"/approvals/{outcome['approval_id']}", {"decision": "deny"})
        sent = api.upstream.requests[1].messages
        trace = (await api.get(f"/traces/{reply.json['resumed']['trace_id']}")).json
    assert outcome["trace"]["status"] == "suspended"
    assert (session["title"], session["traces"]) == ("note it", [outcome["trace"]["trace_id"]])
    assert outcome["card"]["intent"] == "To remember"
    assert outcome["arguments"] == {"text": "milk"}
    assert "**May I do this?**" in outcome["response"]
    assert events[-1]["status"] == "finished"
    assert [message["content"] for message in sent if message["role"] == "tool"] == ["noted: milk"]
    assert second.status == 409
    assert [item["verdict"] for item in trace["decisions"]] == ["allowed"]


@pytest.mark.fault("http api: an approval that was answered before, or changed arguments that do not fit")
async def test_changed_arguments_are_checked_and_are_what_runs(tmp_path: Path) -> None:
    async with http_api(WRITES, says("Done."), tmp_path=tmp_path, tool_paths=[NOTES]) as api:
        outcome = await asked(api)
        path = f"/approvals/{outcome['approval_id']}"
        wrong = await api.post(path, {"decision": "approve", "arguments": {"text": 5}})
        reply = await api.post(path, {"decision": "approve", "arguments": {"text": "bread"}})
        await api.events(reply.json["resumed"]["run_id"])
        sent = api.upstream.requests[1].messages
        kept = (await api.get(f"/session/{outcome['session_id']}/messages")).json["messages"]
    assert wrong.status == 400
    assert [message["content"] for message in sent if message["role"] == "tool"] == ["noted: bread"]
    [result] = [message["content"] for message in kept if message["role"] == "tool"]
    assert result.startswith("[The user approved this call with other arguments")


async def test_always_holds_in_the_session_until_it_is_revoked(tmp_path: Path) -> None:
    again, ok = wants("write_note", text="eggs"), says("ok")
    script = (again, ok, WRITES, ok, again, ok, again)
    async with http_api(*script, tmp_path=tmp_path, tool_paths=[NOTES]) as api:
        session = {"session_id": (await asked(api))["session_id"]}
        await api.complete("approve", **session)  # its result is somebody else's text: grants from before end with it
        outcome = await asked(api, **session)
        reply = await api.post(f"/approvals/{outcome['approval_id']}", {"decision": "always"})
        await api.events(reply.json["resumed"]["run_id"])
        free = (await api.complete("eggs too", **session)).json
        [grant] = (await api.get(f"/grants?session_id={outcome['session_id']}")).json["grants"]
        await api.call("DELETE", f"/grants/{grant['grant_id']}")
        bound = (await api.complete("and again", **session)).json
    assert free["trace"]["status"] == "finished"
    assert grant["description"] == "every call of write_note"
    assert bound["trace"]["status"] == "suspended"


SLOW = '''
import aiohttp
from task.tools.declare import tool

@tool(effects=set())
async def slow() -> str:
    """Take long."""
    async with aiohttp.ClientSession() as session, session.get("{url}") as response:
        return await response.text()
'''


@pytest.mark.fault("http api: a slow tool among fifty sessions")
async def test_one_slow_tool_delays_none_of_fifty_sessions_and_none_sees_another(tmp_path: Path) -> None:
    asked, free = asyncio.Event(), asyncio.Event()

    async def wait(_: web.Request) -> web.Response:
        asked.set()
        await asyncio.wait_for(free.wait(), 20)
        return web.Response(text="at last")

    def answer(received: Received) -> Reply:
        outcome = [message["content"] for message in received.messages[1:] if message["role"] != "assistant"]
        return wants("slow") if outcome == ["session 0"] else says(" | ".join(outcome))

    site = web.Application()
    site.router.add_get("/", wait)
    async with served(site) as url:
        (tmp_path / "slow_tool.py").write_text(SLOW.replace("{url}", url))
        async with http_api(then=answer, tmp_path=tmp_path, tool_paths=[str(tmp_path / "slow_tool.py")]) as api:
            first = asyncio.ensure_future(api.post("/chat", {"messages": [said("session 0")]}))
            await asyncio.wait_for(asked.wait(), 10)
            others = [api.post("/chat", {"messages": [said(f"session {number}")]}) for number in range(1, 50)]
            outcome = [reply.json for reply in await asyncio.gather(*others)]
            assert not first.done()
            free.set()
            outcome = [(await first).json, *outcome]
            kept = [(await api.get(f"/session/{item['session_id']}")).json["messages"] for item in outcome]
    answers = ["session 0 | at last", *(f"session {number}" for number in range(1, 50))]
    assert [item["response"] for item in outcome] == answers
    assert kept == [[said(f"session {n}"), said(text, "assistant")] for n, text in enumerate(answers)]


async def test_a_read_only_request_writes_nothing_and_asks_nothing(tmp_path: Path) -> None:
    async with http_api(WRITES, says("I may not."), tmp_path=tmp_path, tool_paths=[NOTES]) as api:
        answer = (await api.complete("note it", permission_mode="read_only")).json
        results = [item["content"] for item in api.upstream.requests[1].messages if item["role"] == "tool"]
    assert answer["choices"][0]["message"]["content"] == "I may not."
    assert "read-only" in results[0]


DIAL = "/openai/deployments/general-purpose-agent/chat/completions"
LIMITED = {"mode": "keys", "runs_per_caller": 1}


async def started(api: Api) -> HttpReply:
    return await api.post("/runs", {"messages": [said("Hi")]})


@pytest.mark.fault("approval: more runs at a time than one caller may have")
async def test_a_run_more_than_a_caller_may_have_is_refused_until_one_ends_or_waits_for_a_user(tmp_path: Path) -> None:
    ann, bob = [await key_of(name, tmp_path) for name in ("ann", "bob")]
    script: tuple[Any, ...] = (hanging(says("Hello.")), says("Hi Bob."), WRITES, says("Again."))
    async with http_api(*script, tmp_path=tmp_path, tool_paths=[NOTES], http=LIMITED) as api:
        anns, bobs = api.with_key(ann), api.with_key(bob)
        first = (await started(anns)).json
        await api.upstream.received(1)
        refused = [await started(anns), await anns.complete("Hi"), await anns.post("/v1/responses", {"input": "Hi"})]
        other = await bobs.complete("Hi")
        async with asyncio.timeout(20):
            await anns.post(f"/runs/{first['run_id']}/cancel")
            await anns.events(first["run_id"])
        waiting = (await anns.complete("Note it")).json["status"]  # such a run does not count
        later = await anns.complete("Hi")
    assert {(reply.status, reply.error["code"]) for reply in refused} == {(429, "rate_limit_exceeded")}
    assert all(int(reply.headers["Retry-After"]) > 0 for reply in refused)
    assert (other.status, waiting, later.status) == (200, "suspended", 200)


@pytest.mark.fault("approval: more runs at a time than one caller may have")
async def test_at_the_dial_route_one_more_is_refused_as_core_passes_it_on(tmp_path: Path) -> None:
    limited = {"runs_per_caller": 1}
    async with (
        product(hanging(says("Hello.")), says("Hi."), tmp_path=tmp_path, http=limited) as p,
        aiohttp.ClientSession() as session,
    ):
        core = Api(p.core.url, p.upstream, session)
        first = asyncio.create_task(core.post(DIAL, {"messages": [said("Hi")]}, headers={"Api-Key": "key-one"}))
        await p.upstream.received(1)
        refused = await core.post(DIAL, {"messages": [said("Hi")]}, headers={"Api-Key": "key-one"})
        other = await core.post(DIAL, {"messages": [said("Hi")]}, headers={"Api-Key": "key-two"})
        first.cancel()
        await asyncio.wait({first}, timeout=10)
    assert (refused.status, refused.error["code"], other.status) == (500, "rate_limit_exceeded", 200)
    assert refused.error["display_message"].startswith("1 of your requests")
