"""The caller's own tools on `/v1`, alone and in one step with a call that a user has to approve."""

from pathlib import Path
from typing import Any

import pytest

from task.conversation.messages import INTERRUPTED
from task.llm.scripted import says, wants
from tests.support.api_client import LOOKUP, Client, agent, numbered, results, waiting
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


BOTH = (
    says("Let me see. ")
    & wants("write_note", text="milk")
    & wants("lookup", name="Ann")
    & wants("calculator", expression="1+1")
)


@pytest.mark.fault("http api: a call to approve and a call of the caller's own tool in one step")
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("in_session", "whole"), [(False, True), (True, False), (True, True)])
async def test_the_callers_calls_are_handed_out_and_then_the_question_is_put(
    tmp_path: Path, in_session: bool, whole: bool, stream: bool
) -> None:
    async with agent(BOTH, says("Done."), tmp_path=tmp_path) as api:
        session_id = (await api.post("/session/start")).json["session_id"] if in_session else None
        client = Client(api, stream=stream, session_id=session_id, whole=whole)
        first = await client.send(said("note it"))
        ended, early = client.finish_reason, await waiting(api)
        second = await client.result("Ann is 42")
        asked = [(len(api.upstream.requests), client.finish_reason), [item["tool"] for item in await waiting(api)]]
        third = await client.decide("approve")
        contents = results(api)
    assert (first["content"].strip(), ended, early) == ("Let me see.", "tool_calls", [])
    assert second["content"].startswith("**May I do this?**")
    assert asked == [(1, "stop"), ["write_note"]]
    assert third["content"] == "Done."
    assert contents == ["noted: milk", "Ann is 42", "2"]


@pytest.mark.fault("http api: a call with the id and arguments of one that was approved before")
async def test_an_approval_of_an_earlier_call_with_the_same_id_and_arguments_allows_nothing(tmp_path: Path) -> None:
    write = numbered(wants("write_note", text="milk"))
    script = (write, says("Done."), numbered(BOTH), write)
    async with agent(*script, tmp_path=tmp_path) as api:
        client = Client(api, session_id=(await api.post("/session/start")).json["session_id"])
        await client.send(said("note it"))
        await client.send(said("approve"))
        await client.send(said("again, and look Ann up"))
        asked = await client.result("Ann is 42")
        again = await client.send(said("What is new?"))
    assert asked["content"].startswith("**May I do this?**")
    assert again["content"].startswith("**May I do this?**")


@pytest.mark.fault("http api: a call to approve and a call of the caller's own tool in one step")
@pytest.mark.parametrize("in_session", [False, True])
async def test_a_message_in_place_of_the_result_leaves_no_call_open(tmp_path: Path, in_session: bool) -> None:
    async with agent(BOTH, says("Sure."), tmp_path=tmp_path) as api:
        session_id = (await api.post("/session/start")).json["session_id"] if in_session else None
        client = Client(api, session_id=session_id)
        await client.send(said("note it"))
        last = await client.send(said("Never mind."))
        contents, open_ones = results(api), await waiting(api)
    assert (last["content"], open_ones) == ("Sure.", [])
    assert (contents[0], contents[2], len(contents)) == (INTERRUPTED, "2", 3)
    if in_session:
        assert contents[1].startswith("Error: the program that runs this tool continued without its result")


@pytest.mark.fault("http api: results that a client sends again")
@pytest.mark.parametrize("whole", [False, True])
async def test_results_sent_again_in_a_session_are_answered_and_taken_once(tmp_path: Path, whole: bool) -> None:
    script = (BOTH, wants("lookup", name="Bob"), says("Done."))
    async with agent(*script, tmp_path=tmp_path) as api:
        session_id = (await api.post("/session/start")).json["session_id"]
        client = Client(api, session_id=session_id, whole=whole)
        await client.send(said("note it"))
        asked = await client.result("Ann is 42")
        client.history.pop()
        again = await client.again(client.history[-1])
        client.history.append(again)
        questions = len(await waiting(api))
        await client.send(said("approve"))
        done = await client.result("Bob is 43")
        client.history.pop()
        twice = await client.again(client.history[-1])
        contents = results(api)
        kept = (await api.get(f"/session/{session_id}/messages")).json["messages"]
    assert (again["content"], questions) == (asked["content"], 1)
    assert (done["content"], twice["content"], len(api.upstream.requests)) == ("Done.", "Done.", 3)
    assert contents == ["noted: milk", "Ann is 42", "2", "Bob is 43"]
    assert [item["role"] for item in kept].count("tool") == 4


@pytest.mark.fault("http api: results that a client sends again")
async def test_results_sent_again_after_the_same_response_are_answered_by_the_same_response(tmp_path: Path) -> None:
    tools = [{"type": "function", "name": "lookup", "parameters": {"type": "object"}}]
    async with agent(BOTH, says("Done."), says("Bob, then."), tmp_path=tmp_path) as api:
        first = (await api.post("/v1/responses", {"input": "note it", "tools": tools})).json
        [call_id] = [item["call_id"] for item in first["output"] if item["type"] == "function_call"]
        given = {"type": "function_call_output", "call_id": call_id, "output": "Ann is 42"}
        body = {"input": [given], "tools": tools, "previous_response_id": first["id"]}
        asked, again = [(await api.post("/v1/responses", body)).json for _ in range(2)]
        open_ones = len(await waiting(api))
        word = {"input": "approve", "tools": tools, "previous_response_id": again["id"]}
        done = (await api.post("/v1/responses", word)).json
        late = (await api.post("/v1/responses", body)).json
        other = (await api.post("/v1/responses", {**body, "input": [{**given, "output": "Bob"}]})).json
        contents = results(api)
    assert again == asked == late
    assert asked["output"][0]["content"][0]["text"].startswith("**May I do this?**")
    assert open_ones == 1
    assert done["output"][0]["content"][0]["text"] == "Done."
    assert contents == ["noted: milk", "Ann is 42", "2"]
    assert other["output"][0]["content"][0]["text"].startswith("**May I do this?**")
