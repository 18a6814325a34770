"""Conversations through `/v1/chat/completions`, `/chat`, sessions and traces, in the documented shapes."""

import json
import shlex
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import pytest

from task.llm.base import DEMO_NAME, Usage
from task.llm.scripted import says, wants
from task.local.core.models import scripted_demo
from task.settings import Settings
from task.store import keys
from tests.support.agent import running_agent
from tests.support.core import API_KEY, local_core
from tests.support.core_peers import answers, peer
from tests.support.http_api import http_api, key_of, said
from tests.support.upstream_wire import Answer, Framing, Received, chunk, framed_parts

SEARCH = '''
from task.tools.declare import tool

@tool
def duckduckgo_web_search(query: str) -> str:
    """Search the web."""
    return query
'''
CALCULATION = (wants("calculator", expression="25*47"), says("11", "75"))


async def test_a_platform_gets_an_answer_a_session_and_a_trace_with_the_documented_fields(tmp_path: Path) -> None:
    async with http_api(*CALCULATION, tmp_path=tmp_path) as api:
        answer = (await api.post("/chat", {"messages": [said("25*47?")]})).json
        trace = (await api.get(f"/traces/{answer['trace']['trace_id']}")).json
    assert answer["response"] == "1175"
    assert answer["session_id"].startswith("sess_")
    [call] = trace["tool_calls"]
    assert (call["name"], call["arguments"], call["result"]) == ("calculator", {"expression": "25*47"}, "1175")
    assert call["full_result_length"] == 4
    assert call["duration_ms"] >= 0
    assert call["timestamp"].endswith("+00:00")
    assert [turn["role"] for turn in trace["turns"]] == ["user", "assistant", "tool", "assistant"]
    assert trace["turns"][1]["tool_calls"][0]["arguments"] == '{"expression": "25*47"}'
    assert trace["turns"][-1]["tool_calls"] is None
    assert trace["config"] | {} == {"model": "test-model", "temperature": 0.7, "top_p": 1.0, "max_tokens": 2048}
    assert trace["total_tokens"] == 30
    assert trace["error"] is None


async def test_a_system_message_alone_is_answered_on_every_route(tmp_path: Path) -> None:
    terse, plain = said("Greet in Latin.", "system"), said("Greet in Latin.", "developer")
    async with http_api(then=says("Salve!"), tmp_path=tmp_path) as api:
        for path in ("/v1/chat/completions", "/chat", "/openai/deployments/general-purpose-agent/chat/completions"):
            for messages in ([terse], [plain], [said("Be short.", "system"), terse], [said("Hi"), terse]):
                reply = await api.post(path, {"messages": messages}, headers={"Api-Key": "k"})
                assert (reply.status, "Salve!" in reply.text) == (200, True), (path, messages, reply.text)
        reply = await api.post("/v1/responses", {"input": [terse]})
        assert (reply.status, "Salve!" in reply.text) == (200, True), reply.text
    assert all("Greet in Latin." in str(request.body["messages"][-1]) for request in api.upstream.requests)


@pytest.mark.fault("http api: a chat on an ended session")
async def test_a_session_ends_once_with_its_questions_and_stays_to_be_read_and_branched(tmp_path: Path) -> None:
    rules = {"rules": [{"action": "ask", "tool": "calculator"}]}
    script = says("Hello!"), wants("calculator", expression="1+1")
    async with http_api(*script, tmp_path=tmp_path, permissions=rules) as api:
        started = (await api.post("/session/start", {})).json
        session_id = started["session_id"]
        await api.complete("Hi", session_id=session_id)
        active = (await api.get(f"/session/{session_id}")).json
        await api.complete("1+1?", session_id=session_id)
        asked = (await api.get("/approvals", params={"session_id": session_id})).json
        ended = (await api.post("/session/end", {"session_id": session_id})).json
        again = await api.post("/session/end", {"session_id": session_id})
        withdrawn = (await api.get("/approvals", params={"session_id": session_id})).json
        late = await api.complete("Still there?", session_id=session_id)
        read = (await api.get(f"/session/{session_id}/messages")).json
        branch = (await api.post(f"/session/{session_id}/branch", {"keep": 1000})).json
    assert started.keys() == {"session_id", "started_at"}
    assert active["status"] == "active"
    assert active["messages"] == [said("Hi"), said("Hello!", "assistant")]
    assert len(active["traces"]) == 1
    assert (again.json, asked["count"], withdrawn["count"]) == (ended, 1, 0)
    assert (late.status, late.error["code"]) == (409, "conflict")
    assert (read["status"], read["messages"][0]["content"]) == ("completed", "Hi")
    assert (branch["status"], branch["parent"]) == ("active", session_id)


@pytest.mark.fault("http api: a history that is sent again, or is another one")
async def test_whole_history_with_a_session_repeats_no_turn_and_another_history_branches(tmp_path: Path) -> None:
    async with http_api(says("One."), says("Two."), says("Three."), tmp_path=tmp_path) as api:
        first = (await api.post("/chat", {"messages": [said("1")]})).json
        history = [said("1"), said("One.", "assistant"), said("2")]
        second = (await api.post("/chat", {"messages": history, "session_id": first["session_id"]})).json
        other = [said("1"), said("One.", "assistant"), said("something else")]
        third = (await api.post("/chat", {"messages": other, "session_id": first["session_id"]})).json
        asked = [[message["content"] for message in request.messages[1:]] for request in api.upstream.requests]
    assert asked == [["1"], ["1", "One.", "2"], ["1", "One.", "something else"]]
    assert second["session_id"] == first["session_id"]
    assert third["session_id"] != first["session_id"]


async def test_the_system_prompt_is_the_first_message_else_the_field_else_the_endpoints_own(tmp_path: Path) -> None:
    async with http_api(then=says("ok"), tmp_path=tmp_path) as api:
        both = {"messages": [said("as message", "system"), said("?")], "system_prompt": "as field"}
        await api.post("/chat", both)
        await api.post("/chat", {"messages": [said("?")], "system_prompt": "as field"})
        await api.post("/chat", {"messages": [said("?")]})
        await api.complete("?")
        prompts = [request.messages[0]["content"] for request in api.upstream.requests]
    assert prompts[:2] == ["as message", "as field"]
    assert prompts[2].startswith("You are a helpful assistant with access to calculator tools.\n\n")
    assert prompts[3].startswith("You are a General Purpose Agent.")


@pytest.mark.fault("start: a search that is promised and not there")
async def test_the_prompt_of_chat_promises_a_search_only_where_there_is_one(tmp_path: Path) -> None:
    (tmp_path / "search.py").write_text(SEARCH)
    only = {"permissions": {"tools": ["web_search"]}}
    prompts: list[str] = []
    for settings in ({}, {"tool_paths": ["search.py"]}, {"tool_paths": ["search.py"], **only}):
        paths = [str(tmp_path / name) for name in settings.get("tool_paths", ())]
        async with http_api(then=says("ok"), tmp_path=tmp_path, **{**settings, "tool_paths": paths}) as api:
            await api.post("/chat", {"messages": [said("?")]})
        prompts.append(api.upstream.requests[0].messages[0]["content"].partition("\n")[0])
    assert prompts == [
        "You are a helpful assistant with access to calculator tools.",
        "You are a helpful assistant with access to web search and calculator tools.",
        "You are a helpful assistant with access to web search tools.",
    ]


async def test_each_endpoint_sends_its_own_defaults_and_the_callers_values_before_them(tmp_path: Path) -> None:
    async with http_api(then=says("ok"), tmp_path=tmp_path) as api:
        await api.complete("?")
        await api.post("/chat", {"messages": [said("?")]})
        await api.complete("?", temperature=0, top_p=0.5, max_tokens=9000, stop="END", seed=7)
        bodies = [request.body for request in api.upstream.requests]
    assert [body.get("max_tokens") for body in bodies] == [None, 2048, 9000]
    assert [(body["temperature"], body["top_p"]) for body in bodies] == [(0.7, 1.0), (0.7, 1.0), (0, 0.5)]
    assert (bodies[2]["stop"], bodies[2]["seed"]) == (["END"], 7)


@pytest.mark.fault("http api: a model that always calls tools")
async def test_a_model_that_always_calls_tools_is_stopped_with_an_explained_answer(tmp_path: Path) -> None:
    calls = [wants("calculator", expression=f"{number}+1") for number in range(3)]
    async with http_api(*calls, says("I got this far."), tmp_path=tmp_path, http={"steps": 3}) as api:
        answer = await api.complete("go on")
    trace = answer.json["trace"]
    assert (answer.status, answer.json["choices"][0]["message"]["content"]) == (200, "I got this far.")
    assert trace["error"] == "stopped at the limit of 3 steps"
    assert trace["total_tokens"] == 60


async def test_a_required_tool_choice_is_sent_once_and_none_offers_no_tools(tmp_path: Path) -> None:
    async with http_api(*CALCULATION, says("no tools"), tmp_path=tmp_path) as api:
        await api.complete("25*47?", tool_choice="required")
        await api.complete("?", tool_choice="none")
        bodies = [request.body for request in api.upstream.requests]
    assert [body.get("tool_choice") for body in bodies] == ["required", None, None]
    assert "tools" not in bodies[2]


async def test_a_session_is_renamed_branched_listed_and_deleted(tmp_path: Path) -> None:
    async with http_api(says("One."), tmp_path=tmp_path) as api:
        session_id = (await api.post("/chat", {"messages": [said("1")]})).json["session_id"]
        renamed = await api.call("PATCH", f"/session/{session_id}", {"title": "Numbers"})
        branch = (await api.post(f"/session/{session_id}/branch", {"keep": 1})).json
        first = (await api.get("/sessions?limit=1")).json
        second = (await api.get(f"/sessions?limit=1&cursor={first['cursor']}")).json
        gone = await api.call("DELETE", f"/session/{session_id}")
        after = await api.get(f"/session/{session_id}")
    assert renamed.json["title"] == "Numbers"
    assert (branch["messages"], branch["parent"]) == ([said("1")], session_id)
    listed = [row["session_id"] for page in (first, second) for row in page["sessions"]]
    assert (listed, second["cursor"]) == ([branch["session_id"], session_id], None)
    assert (gone.status, after.status) == (204, 404)


async def test_the_models_are_those_that_the_provider_lists_each_once(tmp_path: Path) -> None:
    listing = answers(body={"data": [{"id": "test-model"}, {"id": "other"}, {"id": "other"}]})
    async with peer(listing) as provider, http_api(tmp_path=tmp_path, openai_base_url=provider.url) as api:
        models = (await api.get("/v1/models")).json["data"]
    assert [model["id"] for model in models] == ["general-purpose-agent", "test-model", "other"]


COUNTED = (wants("calculator", expression="25*47"), says("1175", usage=Usage(100, 40, 64, 32)))
DETAILS = {"prompt_tokens_details": {"cached_tokens": 64}, "completion_tokens_details": {"reasoning_tokens": 32}}


async def test_cached_and_reasoning_tokens_are_in_completions_responses_events_and_traces(tmp_path: Path) -> None:
    async with http_api(*COUNTED * 3, tmp_path=tmp_path) as api:
        whole = (await api.complete("?")).json
        *_, last = (await api.complete("?", stream=True, stream_options={"include_usage": True})).chunks
        response = (await api.post("/v1/responses", {"input": "?"})).json
        stored = (await api.get(f"/v1/responses/{response['id']}")).json
        events = await api.events(response["run_id"])
        trace = (await api.get(f"/traces/{whole['trace_id']}")).json
    counted = {"prompt_tokens": 110, "completion_tokens": 45, "total_tokens": 155, **DETAILS}
    assert [whole["usage"], last["usage"]] == [counted, counted]
    assert response["usage"] == stored["usage"] == {
        "input_tokens": 110, "input_tokens_details": {"cached_tokens": 64},
        "output_tokens": 45, "output_tokens_details": {"reasoning_tokens": 32}, "total_tokens": 155,
    }  # fmt: skip
    assert DETAILS.items() <= next(event for event in events if event["type"] == "usage").items()
    assert trace["usage"]["test-model"]["cached_tokens"] == 64
    assert trace["turns"][-1]["usage"]["reasoning_tokens"] == 32


@pytest.mark.parametrize(
    "more", [{}, {"prompt_tokens_details": [], "completion_tokens_details": {"reasoning_tokens": "x"}}]
)
async def test_a_model_that_reports_no_such_tokens_has_none(more: dict[str, Any], tmp_path: Path) -> None:
    def answer(received: Received) -> Answer:
        last = chunk(received, {}, "stop") | {"usage": {"prompt_tokens": 9, "completion_tokens": 1, **more}}
        return Answer(tuple(framed_parts([chunk(received, {"content": "ok"}), last], Framing())))

    async with http_api(answer, tmp_path=tmp_path) as api:
        counted = (await api.complete("?")).json["usage"]
    assert counted["total_tokens"] == 10
    assert counted["prompt_tokens_details"] == {"cached_tokens": 0}
    assert counted["completion_tokens_details"] == {"reasoning_tokens": 0}


@pytest.mark.fault("web page: a prompt of another owner, with a wrong name, without text, or one too many")
async def test_prompts_are_saved_and_deleted_by_their_owner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys, "MOST_PROMPTS", 2)
    async with http_api(tmp_path=tmp_path, http={"mode": "keys"}) as api:
        ann, bob = [api.with_key(await key_of(name, tmp_path)) for name in ("ann", "bob")]
        for name, text in (("b", "Two {{words}}"), ("a", "One"), ("a", "1")):
            assert (await ann.call("PUT", f"/prompts/{name}", {"text": text})).status == 200
        assert (await ann.get("/prompts")).json["prompts"] == [
            {"name": "a", "text": "1"}, {"name": "b", "text": "Two {{words}}"},
        ]  # fmt: skip
        assert (await bob.get("/prompts")).json == {"prompts": []}
        refused = [
            await bob.call("DELETE", "/prompts/a"),
            await ann.call("PUT", "/prompts/c", {"text": "one too many"}),
            await ann.call("PUT", "/prompts/two%20words", {"text": "x"}),
            await ann.call("PUT", "/prompts/empty", {"text": ""}),
        ]
        assert [reply.status for reply in refused] == [404, 400, 400, 400]
        assert (await ann.call("DELETE", "/prompts/a")).status == 204
        assert [prompt["name"] for prompt in (await ann.get("/prompts")).json["prompts"]] == ["b"]


PAGE = Path(__file__).parent.parent.parent / "docs" / "http-api.md"


def first_example() -> tuple[str, Any]:
    """The path and the body of the first command line of the page."""
    block = PAGE.read_text(encoding="utf-8").partition("```sh\n")[2].partition("```")[0]
    program, url, *rest = shlex.split(block)
    assert program == "curl"
    return urlsplit(url).path, json.loads(rest[rest.index("-d") + 1])


async def test_the_first_documented_command_shows_something_where_no_model_is_connected(tmp_path: Path) -> None:
    path, body = first_example()
    async with local_core({}, tmp_path, model=scripted_demo()) as core:
        settings = Settings.model_validate(
            {"dial_endpoint": core.url, "dial_api_key": API_KEY, "deployment_name": DEMO_NAME, "data_dir": tmp_path}
        )
        async with (
            running_agent(settings) as url,
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(20)) as session,
            session.post(f"{url}{path}", json=body) as response,
        ):
            answer = await response.json()
    assert [call["name"] for call in answer["trace"]["tool_calls"]] == ["file_content_extraction_tool"]
    assert "| February | 47 |" in answer["choices"][0]["message"]["content"]
