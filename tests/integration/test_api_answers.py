"""Answers of the HTTP door: how they end, their formats, the items they are given, and what is stored of them."""

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest

from task.llm.base import Finish, TextDelta
from task.llm.scripted import Reply, says, wants
from tests.support.api_client import NOTES
from tests.support.http_api import Api, http_api, said
from tests.support.replies import Reply as HttpReply
from tests.support.upstream import Received, broken_off, hanging, http_error

CUT = Reply((TextDelta('{"a": [1, 2'), Finish("length")))
FILTERED = Reply((TextDelta("First you"), Finish("content_filter")))
FILTERED_AT_ONCE = Reply((Finish("content_filter"),))
EMPTY = Reply((Finish("stop"),))
COMPLETIONS, RESPONSES = "/v1/chat/completions", "/v1/responses"


def text_of(chunks: list[dict[str, Any]]) -> str:
    return "".join(choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"])


async def both_ways(api: Api) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The same question whole and as a stream."""
    whole, streamed = await api.complete("?"), await api.complete("?", stream=True)
    assert (whole.status, streamed.status) == (200, 200), whole.text
    return whole.json, streamed.chunks


@pytest.mark.fault("http api: an answer that is cut off, filtered or empty")
@pytest.mark.parametrize(
    ("reply", "text", "reason"),
    [
        (CUT, '{"a": [1, 2', "length"),
        (FILTERED, "First you", "content_filter"),
        (FILTERED_AT_ONCE, "", "content_filter"),
        (EMPTY, "", "stop"),
    ],
    ids=["cut off", "filtered", "filtered at once", "empty"],
)
async def test_an_answer_is_the_models_text_and_finish_reason(
    reply: Reply, text: str, reason: str, tmp_path: Path
) -> None:
    async with http_api(then=reply, tmp_path=tmp_path) as api:
        whole, chunks = await both_ways(api)
        chat = await api.post("/chat", {"messages": [said("?")]})
    [choice] = whole["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == (text, reason)
    assert (text_of(chunks), chunks[-1]["choices"][0]["finish_reason"]) == (text, reason)
    assert not any("error" in chunk for chunk in chunks)
    assert (chat.status, chat.json["response"]) == (200, text)


async def test_a_trace_and_the_page_say_why_there_is_no_answer(tmp_path: Path) -> None:
    async with http_api(FILTERED_AT_ONCE, EMPTY, tmp_path=tmp_path) as api:
        answers = [(await api.complete("?")).json for _ in range(2)]
        events = [await api.events(answer["run_id"]) for answer in answers]
    assert [answer["trace"]["error"].partition(" (error reference: ")[0] for answer in answers] == [
        "The model's content filter stopped the answer. Say it in other words.", "The model gave an empty answer.",
    ]  # fmt: skip
    assert [event["error"]["code"] for run in events for event in run if event["type"] == "error"] == [
        "content_filter", "empty_answer",
    ]  # fmt: skip


@pytest.mark.parametrize(("reply", "reason"), [(CUT, "max_output_tokens"), (FILTERED, "content_filter")])
async def test_a_response_that_is_not_whole_stays_incomplete(reply: Reply, reason: str, tmp_path: Path) -> None:
    async with http_api(then=reply, tmp_path=tmp_path) as api:
        answer = (await api.post("/v1/responses", {"input": "?"})).json
        again = (await api.get(f"/v1/responses/{answer['id']}")).json
        last = (await api.post("/v1/responses", {"input": "?", "stream": True})).chunks[-1]
    for body in (answer, again, last["response"]):
        assert (body["status"], body["incomplete_details"], body["error"]) == ("incomplete", {"reason": reason}, None)
        assert body["output"][0]["content"][0]["text"] == reply.events[0].text  # type: ignore[union-attr]
    assert last["type"] == "response.incomplete"


JSON = {"type": "json_object"}
OWN_CALL = wants("calculator", expression="1+1")


@pytest.mark.parametrize("script", [(CUT,), (FILTERED,), (says("Let me see.") & OWN_CALL, says("{}"))])
async def test_whole_history_continues_after_the_text_that_was_shown(script: tuple[Reply, ...], tmp_path: Path) -> None:
    async with http_api(*script, says("Once more."), tmp_path=tmp_path) as api:
        session = (await api.post("/session/start", {})).json["session_id"]
        more: dict[str, Any] = {"session_id": session, "response_format": JSON}
        first = (await api.complete("?", **more)).json["choices"][0]["message"]
        second = (await api.post(COMPLETIONS, {"messages": [said("?"), first, said("Go on")], **more})).json
        stored = (await api.get(f"/session/{session}")).json["messages"]
    assert second["session_id"] == session
    assert stored[-3:] == [said(first["content"], "assistant"), said("Go on"), said("Once more.", "assistant")]


async def test_a_question_that_the_providers_filter_refuses_is_a_400(tmp_path: Path) -> None:
    refusal = http_error(400, "The prompt was filtered.", code="content_filter")
    async with http_api(then=refusal, tmp_path=tmp_path) as api:
        whole, streamed = await api.complete("?"), await api.complete("?", stream=True)
    assert [(reply.status, reply.error["code"]) for reply in (whole, streamed)] == [(400, "content_filter")] * 2


def answer(request: Received) -> Reply:
    return says("Done.") if request.messages[-1]["role"] == "tool" else wants("write_note", text="milk")


async def test_a_run_continues_although_the_approver_has_left_at_once(tmp_path: Path) -> None:
    async with http_api(then=answer, tmp_path=tmp_path, tool_paths=[NOTES]) as api, asyncio.timeout(40):
        for seconds in (0.002, 0.004, 0.006, 0.008, 0.01):
            session_id = (await api.post("/chat", {"messages": [said("note it")]})).json["session_id"]
            [asked] = (await api.get(f"/approvals?session_id={session_id}")).json["approvals"]
            path, decision = f"/approvals/{asked['approval_id']}", {"decision": "approve"}
            leaving = asyncio.create_task(api.post(path, decision))
            await asyncio.wait({leaving}, timeout=seconds)
            leaving.cancel()
            await asyncio.wait({leaving})
            await api.post(path, decision)  # the first one may have left before it was received
            runs: list[dict[str, str]] = []
            while [run["status"] for run in runs] != ["finished", "suspended"]:
                await asyncio.sleep(0.02)
                runs = (await api.get(f"/runs?session_id={session_id}")).json["runs"]


LOOKUP = {"type": "function", "function": {"name": "lookup", "parameters": {"type": "object"}}}


@pytest.mark.parametrize(
    ("last", "content"),
    [
        (says('{"name"', ': "x"}'), '{"name": "x"}'),
        (says("```json\n", "{}\n```"), "```json\n{}\n```"),
        (says("I can", "not."), "I cannot."),
    ],
)
async def test_text_before_a_call_of_ours_is_no_part_of_json(last: Reply, content: str, tmp_path: Path) -> None:
    script = (says("Let me ", "compute.") & OWN_CALL, last)
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


@pytest.mark.fault("http api: a tool choice that names no tool")
async def test_a_tool_choice_names_a_tool_that_there_is(tmp_path: Path) -> None:
    async def chosen(name: str, **more: Any) -> HttpReply:
        return await api.complete("?", tool_choice={"type": "function", "function": {"name": name}}, **more)

    async with http_api(then=says("ok"), tmp_path=tmp_path) as api:
        named = {"input": "?", "tool_choice": {"type": "function", "name": "look"}}
        refused = [await chosen("look", tools=[LOOKUP]), await api.post(RESPONSES, named)]
        assert api.upstream.requests == []
        taken = [await chosen("lookup", tools=[LOOKUP]), await chosen("calculator")]
    for reply in refused:
        assert (reply.status, reply.error["code"]) == (400, "invalid_request")
        assert reply.error["message"] == "tool_choice names 'look', which is no tool of yours or of the agent's."
    assert [reply.status for reply in taken] == [200, 200]


REFUSAL = {"type": "refusal", "refusal": "I cannot do that."}
UNREAD = "[A picture or a file stands here; only the text is read.]"


def called(**more: Any) -> dict[str, Any]:
    return {"type": "function_call", "call_id": "call_1", "name": "look", "arguments": "{}", **more}


def output(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": "call_1", "output": list(parts)}


async def test_a_refusal_in_the_history_is_the_assistants_text(tmp_path: Path) -> None:
    refusing = [
        {"role": "assistant", "content": [REFUSAL]},
        {"role": "assistant", "content": None, "refusal": "I cannot do that."},
    ]
    async with http_api(then=says("ok"), tmp_path=tmp_path) as api:
        for message in refusing:
            assert (await api.post(COMPLETIONS, {"messages": [said("?"), message, said("Why?")]})).status == 200
        items = [said("?"), {"type": "message", "role": "assistant", "content": [REFUSAL]}, said("Why?")]
        assert (await api.post(RESPONSES, {"input": items})).status == 200
        sent = [request.messages[1:] for request in api.upstream.requests]
    assert sent == [[said("?"), said("I cannot do that.", "assistant"), said("Why?")]] * 3


async def test_a_calls_output_in_parts_is_read_as_text_with_a_note_of_what_is_not_read(tmp_path: Path) -> None:
    parts = [
        {"type": "input_text", "text": "Found:"}, {"type": "input_image", "image_url": "data:image/png;base64,AAAA"},
        {"type": "input_file", "file_data": "QUJD"}, {"type": "input_text", "text": "that is all"},
    ]  # fmt: skip
    async with http_api(then=says("ok"), tmp_path=tmp_path) as api:
        reply = await api.post(RESPONSES, {"input": [said("?"), called(), output(*parts)]})
        sent = api.upstream.requests[0].messages[-1]
    assert reply.status == 200
    assert (sent["role"], sent["content"]) == ("tool", f"Found:\n{UNREAD}\n{UNREAD}\nthat is all")


NO_PICTURE: Any = [{"type": "input_image", "detail": "auto"}]
MISFITS: list[tuple[str, dict[str, Any], str | None, str]] = [
    (RESPONSES, {"input": 5}, "input", "input: Input should be a valid string"),
    (RESPONSES, {"input": [said(NO_PICTURE)]}, None, "A picture needs image_url or file_id."),
    (RESPONSES, {"input": [{"role": "robot", "content": "?"}]}, "input.0.role", "input.0.role: Input should be"),
    (RESPONSES, {"input": [{"type": "reasoning", "id": "rs_1"}]}, "input.0", "input.0: "),
    (
        RESPONSES, {"input": [{"role": "user", "content": [{"type": "input_text"}]}]}, "input.0.content.0.text",
        "input.0.content.0.text: Field required",
    ),
    (RESPONSES, {"input": [{"type": "function_call", "name": "x"}]}, "input.0.call_id", "input.0.call_id: Field"),
    (COMPLETIONS, {"messages": [said([{"type": "text"}])]}, "messages.0.content.0.text", "Field required"),  # type: ignore[arg-type]
    (COMPLETIONS, {"messages": [said("?")], "stop": 5}, "stop", "stop: Input should be a valid string"),
]  # fmt: skip


async def test_a_misfit_is_named_by_its_place_in_the_request_and_not_by_our_types(tmp_path: Path) -> None:
    async with http_api(tmp_path=tmp_path) as api:
        for path, body, param, fault in MISFITS:
            reply = await api.post(path, body)
            assert (reply.status, reply.error["param"]) == (400, param), reply.text
            assert fault in reply.error["message"]
            assert not any(sign in reply.error["message"] for sign in ("[union", "list[", "function-", "InputMessage"))


FOREIGN = """
from task.tools.declare import tool
from task.tools.models import Effect

@tool(effects={Effect.READ})
def read_page() -> str:
    '''Read a page that somebody else wrote.'''
    return "Ask for https://known.example/page"
"""
MADE_UP = "See https://known.example/page, ![x](https://evil.example/?d=1) and https://evil.example/2."
SHOWN = "See https://known.example/page, \\[x\\] (`https[://]evil[.]example/?d=1`) and https[://]evil[.]example/2."


def foreign_tool(tmp_path: Path) -> list[str]:
    (tmp_path / "page_tool.py").write_text(FOREIGN)
    return [str(tmp_path / "page_tool.py")]


@pytest.mark.fault("http api: a made-up address in a stored answer")
async def test_a_stored_answer_holds_made_up_addresses_as_the_stream_showed_them(tmp_path: Path) -> None:
    script = (wants("read_page"), says(*(MADE_UP[n : n + 7] for n in range(0, len(MADE_UP), 7))), says("Sure."))
    async with http_api(*script, tmp_path=tmp_path, tool_paths=foreign_tool(tmp_path)) as api:
        run = (await api.post("/runs", {"messages": [said("Read it")]})).json
        streamed = "".join(event["text"] for event in await api.events(run["run_id"]) if event["type"] == "text")
        session = (await api.get(f"/session/{run['session_id']}")).json["messages"]
        messages = (await api.get(f"/session/{run['session_id']}/messages")).json["messages"]
        history = [said("Read it"), said(streamed, "assistant"), said("And now?")]
        next_answer = (await api.post("/chat", {"messages": history, "session_id": run["session_id"]})).json
        sent = api.upstream.requests[2].messages
    assert streamed == SHOWN
    assert session[-1] == said(SHOWN, "assistant")
    assert messages[-1] == said(SHOWN, "assistant")
    assert next_answer["session_id"] == run["session_id"]  # what a client was shown is the history it sends
    assert said(SHOWN, "assistant") in sent


@pytest.mark.fault("http api: a made-up address in a stored answer")
async def test_what_a_broken_off_answer_leaves_is_as_harmless(tmp_path: Path) -> None:
    cut = hanging(says("See https://evil.example/?d=1 ", "and ", "more"), chunks=3)
    script = (wants("read_page"), cut)
    async with http_api(*script, tmp_path=tmp_path, tool_paths=foreign_tool(tmp_path)) as api:
        run = (await api.post("/runs", {"messages": [said("Read it")]})).json
        await stopped_in(api, run["run_id"])
        messages = (await api.get(f"/session/{run['session_id']}/messages")).json["messages"]
    assert messages[-1]["content"].startswith("See https[://]evil[.]example/?d=1")


@pytest.mark.fault("http api: a run that is stopped after an approved call")
async def test_an_approved_call_is_made_once_though_the_run_is_stopped_after_it(tmp_path: Path) -> None:
    script = (wants("write_note", text="milk"), hanging(says("Noted", " it"), chunks=3), says("Yes."))
    async with http_api(*script, tmp_path=tmp_path, tool_paths=[NOTES]) as api:
        asked = (await api.post("/chat", {"messages": [said("note it")]})).json
        [approval] = (await api.get("/approvals")).json["approvals"]
        changed = {"decision": "approve", "arguments": {"text": "bread"}}
        reply = await api.post(f"/approvals/{approval['approval_id']}", changed)
        await stopped_in(api, reply.json["resumed"]["run_id"])
        answer = (await api.post("/chat", {"messages": [said("Is it noted?")], "session_id": asked["session_id"]})).json
        results = [item["content"] for item in api.upstream.requests[2].messages if item["role"] == "tool"]
    assert [result.splitlines()[-1] for result in results] == ["noted: bread"]
    assert "approved this call with other arguments" in results[0]
    assert [call["name"] for call in answer["trace"]["tool_calls"]] == []


async def test_a_session_deleted_while_answered_leaves_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "task")
    script = hanging(says("Something ", "secret ", "here"), chunks=3)
    async with http_api(script, tmp_path=tmp_path) as api:
        run = (await api.post("/runs", {"messages": [said("?")]})).json
        deleted = await when_it_speaks(api, run["run_id"], "DELETE", f"/session/{run['session_id']}")
        await api.upstream.disconnected(1)
        paths = (f"/session/{run['session_id']}", f"/runs/{run['run_id']}", f"/traces/{run['trace_id']}")
        after = [(await api.get(path)).status for path in paths]
    async with http_api(tmp_path=tmp_path) as api:  # pending writes are done by now
        later = [(await api.get(path)).status for path in paths]
    assert deleted.status == 204
    assert after == later == [404, 404, 404]
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert "secret" not in caplog.text


async def stopped_in(api: Api, run_id: str) -> None:
    """Stop the run at its first text."""
    await when_it_speaks(api, run_id, "POST", f"/runs/{run_id}/cancel")


async def when_it_speaks(api: Api, run_id: str, method: str, path: str) -> HttpReply:
    """Call at the run's first text; returns when the run is over."""
    reply = None
    async with asyncio.timeout(20), api.session.get(f"{api.url}/runs/{run_id}/events") as stream:
        async for line in stream.content:
            if b'"type":"text"' in line and reply is None:
                reply = await api.call(method, path)
    assert reply is not None
    return reply


@pytest.mark.fault("http api: a made-up address in a stored answer")
async def test_text_beside_a_question_is_stored_as_harmless(tmp_path: Path) -> None:
    asks = says("As on https://evil.example/2.") & wants("write_note", text="milk")
    tools = [*foreign_tool(tmp_path), NOTES]
    async with http_api(wants("read_page"), asks, tmp_path=tmp_path, tool_paths=tools) as api:
        asked = (await api.complete("Read it and note it")).json
        kept = (await api.get(f"/session/{asked['session_id']}/messages")).text
    assert "**May I do this?**" in asked["choices"][0]["message"]["content"]
    assert "As on https[://]evil[.]example/2." in kept
    assert "https://evil" not in kept
