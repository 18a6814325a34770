"""The caller's own tools on `/v1`: what a turn with its calls and ours keeps for the next request."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from task.llm.scripted import says, wants
from tests.support.api_client import LOOKUP, numbered, results
from tests.support.documented import tool_calling_examples
from tests.support.http_api import Api, http_api, said

DESIGN = tool_calling_examples()


async def asked(api: Api, text: str, **body: Any) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The conversation in which the model waits for `lookup`, and what was answered."""
    answer = (await api.complete(text, tools=[LOOKUP], **body)).json
    return [said(text), answer["choices"][0]["message"]], answer


async def answer_to(api: Api, messages: list[dict[str, Any]], content: str, **body: Any) -> Any:
    """The answer to the result of the call at the end of `messages`."""
    [call] = messages[-1]["tool_calls"]
    result = {"role": "tool", "tool_call_id": call["id"], "content": content}
    whole = {"messages": [*messages, result], "tools": [LOOKUP], **body}
    return (await api.post("/v1/chat/completions", whole)).json


async def test_conversations_whose_calls_have_equal_ids_stay_separate(tmp_path: Path) -> None:
    script = (
        numbered(wants("lookup", name="Ann") & wants("calculator", expression="1+1")),
        numbered(wants("lookup", name="Bob") & wants("calculator", expression="6*7")),
        numbered(wants("lookup", name="Ann")),
        says("ok"), says("ok"), says("ok"),
    )  # fmt: skip
    async with http_api(*script, tmp_path=tmp_path) as api:
        conversations = [(await asked(api, text))[0] for text in ("Ann?", "Bob?", "Who is Ann?")]
        for name, messages in zip("ABC", conversations, strict=True):
            await answer_to(api, messages, name)
        seen = [results(api, number) for number in (3, 4, 5)]
        arguments = [
            [call["function"]["arguments"] for call in request.messages[2]["tool_calls"]]
            for request in api.upstream.requests[3:]
        ]
    assert seen == [["A", "2"], ["B", "42"], ["C"]]
    assert [len(calls) for calls in arguments] == [2, 2, 1]
    assert ["Ann" in calls[0] for calls in arguments] == [True, False, True]


async def test_a_turn_is_found_again_by_clients_that_write_its_words_and_arguments_their_own_way(
    tmp_path: Path,
) -> None:
    both = says("Let me see.") & wants("calculator", expression="1+1") & wants("lookup", name="Ann", age=5)
    async with http_api(both, says("ok"), tmp_path=tmp_path) as api:
        [question, answer], _ = await asked(api, "Ann?")
        [call] = answer["tool_calls"]
        other = {**call, "function": {"name": "lookup", "arguments": '{ "age":5,"name":"Ann" }'}}
        words, calls = said("Let me see.", "assistant"), {"role": "assistant", "content": None, "tool_calls": [other]}
        await answer_to(api, [question, words, calls], "here")
        sent = api.upstream.requests[1].messages[1:]
    assert [message["role"] for message in sent] == ["user", "assistant", "tool", "tool"]
    assert [message["content"] for message in sent] == ["Ann?", "Let me see.", "2", "here"]


async def test_a_call_that_the_caller_leaves_without_a_result_is_marked_as_such(tmp_path: Path) -> None:
    async with http_api(wants("lookup", name="Ann"), says("Sure."), tmp_path=tmp_path) as api:
        session_id = (await api.post("/session/start")).json["session_id"]
        await asked(api, "Ann?", session_id=session_id)
        await api.complete("Never mind.", session_id=session_id, tools=[LOOKUP])
        [result] = results(api, 1)
    assert result.startswith("Error: the program that runs this tool continued without its result")
    assert "asked" not in result


async def test_in_a_session_the_whole_history_continues_with_our_calls_of_the_same_turn(tmp_path: Path) -> None:
    both = says("Let me see.") & wants("calculator", expression="2+2") & wants("lookup", name="Ann")
    async with http_api(both, says("Ann has 4."), says("Bye."), tmp_path=tmp_path) as api:
        session = {"session_id": (await api.post("/session/start")).json["session_id"]}
        history, _ = await asked(api, "?", **session)
        done = await answer_to(api, history, "2+2", **session)
        [call] = history[-1]["tool_calls"]
        result = {"role": "tool", "tool_call_id": call["id"], "content": "2+2"}
        history += [result, done["choices"][0]["message"], said("Thanks")]
        last = (await api.post("/v1/chat/completions", {"messages": history, "tools": [LOOKUP], **session})).json
        seen = [results(api, number) for number in (1, 2)]
    assert [done["session_id"], last["session_id"]] == [session["session_id"]] * 2
    assert seen == [["4", "2+2"]] * 2


@pytest.mark.fault("http api: a restart, or another agent, between the steps of a client without a session")
async def test_our_calls_of_a_turn_are_known_after_a_restart(tmp_path: Path) -> None:
    both = wants("lookup", name="Ann") & wants("calculator", expression="1+1")
    async with http_api(both, tmp_path=tmp_path) as api:
        history, _ = await asked(api, "Ann?")
    async with http_api(says("ok"), tmp_path=tmp_path) as api:
        await answer_to(api, history, "Ann is 42")
        seen = results(api, 0)
    assert seen == ["Ann is 42", "2"]


async def test_the_messages_of_the_design_of_tool_calling_are_taken_and_answered_word_for_word(tmp_path: Path) -> None:
    request, result = DESIGN["Tool Call Request Message"], DESIGN["Tool Result Message"]
    final = DESIGN["Final Response Message"]
    script = wants("get_weather", location="New York"), says(final["content"])
    async with http_api(*script, tmp_path=tmp_path) as api:
        first = (await api.post("/v1/chat/completions", {"messages": [request]})).json["choices"][0]["message"]
        result = {**result, "tool_call_id": first["tool_calls"][0]["id"]}
        answer = (await api.post("/v1/chat/completions", {"messages": [request, first, result]})).json
        offered = [
            tool["function"]
            for tool in api.upstream.requests[0].body["tools"]
            if tool["function"]["name"] == "get_weather"
        ]
        assert results(api, 1) == [result["content"]]
    expected = DESIGN["Tool Call Response Message"]
    [call] = expected["tool_calls"]
    # OpenAI's answers have one field more.
    assert first == {**expected, "refusal": None, "tool_calls": [{**call, "id": first["tool_calls"][0]["id"]}]}
    assert answer["choices"][0]["message"] == {**final, "refusal": None}
    assert offered == [request["tools"][0]["function"]]


@pytest.mark.fault("tool calling: one tool twice, in messages and in the request")
async def test_a_tool_of_the_request_takes_the_place_of_one_in_a_message(tmp_path: Path) -> None:
    later = {"type": "function", "function": {"name": "lookup", "description": "later"}}
    message = {**said("?"), "tools": [LOOKUP, DESIGN["Single Tool Definition"]]}
    async with http_api(says("ok"), tmp_path=tmp_path) as api:
        await api.post("/v1/chat/completions", {"messages": [message], "tools": [later]})
        offered = {tool["function"]["name"]: tool["function"] for tool in api.upstream.requests[0].body["tools"]}
    assert offered["lookup"]["description"] == "later"
    assert offered["get_weather"] == DESIGN["Single Tool Definition"]["function"]


async def test_tools_in_a_message_have_no_effect_where_callers_have_no_tools_and_the_trace_reports_it(
    tmp_path: Path,
) -> None:
    async with http_api(says("Hi."), tmp_path=tmp_path) as api:
        trace = (await api.post("/chat", {"messages": [{**said("?"), "tools": [LOOKUP]}]})).json["trace"]
        offered = [tool["function"]["name"] for tool in api.upstream.requests[0].body["tools"]]
    assert LOOKUP["function"]["name"] not in offered
    assert trace["warnings"] == ["messages.tools had no effect: it is not known here"]
