"""What MCP servers ask users in the middle of a call: forms and pages as our questions, at each door, and refusals."""

import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from task.approvals.approvals import typed_answer
from task.conversation.messages import FunctionCall, Message, ToolCall
from task.errors import ArgumentsError
from task.llm.scripted import says, wants
from task.tools.mcp.elicitation import MAX_ROUNDS, answer_to
from task.tools.mcp.mcp_client import MCPClient
from task.tools.mcp.mcp_tool import MCPTool
from task.tools.toolbox import Toolbox
from tests.support.choices import CALLER, RecordingChoice
from tests.support.command_console import AtTheTerminal, talking
from tests.support.http_api import Api, http_api, said
from tests.support.mcp_wire import listed, raw_server
from tests.support.product import product

SEATS = {"type": "integer", "title": "Seats", "minimum": 1, "maximum": 9}
CABIN = {"type": "string", "oneOf": [{"const": "eco", "title": "Economy"}, {"const": "biz", "title": "Business"}]}
WINDOW = {"type": "boolean", "default": False}
BOOK = wants("book", flight="X1")
READS = {"annotations": {"readOnlyHint": True}}


def form(required: tuple[str, ...] = (), message: str = "How many seats?", **fields: Any) -> dict[str, Any]:
    return {"message": message, "requestedSchema": {"type": "object", "properties": fields, "required": list(required)}}


def fields(count: int) -> dict[str, Any]:
    return {f"f{number}": {"type": "string"} for number in range(count)}


def page(url: str) -> dict[str, Any]:
    return {"mode": "url", "message": "Please pay.", "url": url}


@asynccontextmanager
async def booking(*asked: dict[str, Any], reads: bool = False) -> AsyncGenerator[tuple[str, list[dict[str, Any]]]]:
    """A server with a tool that asks this, one after the other, before it books; and the calls that it gets."""
    calls: list[dict[str, Any]] = []

    def call(parameters: dict[str, Any]) -> dict[str, Any]:
        calls.append(parameters)
        step = int(parameters.get("requestState") or 0) + bool(parameters.get("inputResponses"))
        if step < len(asked):
            requests = {"q": {"method": "elicitation/create", "params": asked[step]}}
            return {"resultType": "input_required", "inputRequests": requests, "requestState": str(step)}
        answers = [item["q"] for item in (call.get("inputResponses") for call in calls) if item]
        shown = ", ".join(f"{answer['action']} {answer.get('content')}" for answer in answers)
        return {"content": [{"type": "text", "text": f"Booked: {shown}."}]}

    more = READS if reads else {}
    async with raw_server({"tools/list": listed("book", **more), "tools/call": call}) as url:
        yield url, calls


def servers(url: str) -> list[dict[str, str]]:
    return [{"name": "tickets", "url": url}]


def code_in(text: str) -> str:
    return re.findall(r"\b(?:approve|answer) ([a-z]\d[a-z]\d)\b", text)[-1]


def result_in(received: Any) -> str:
    return str(received.messages[-1]["content"])


@pytest.mark.usefixtures("chat")
@pytest.mark.fault("mcp: an answer to a question after the run has ended")
async def test_a_form_is_answered_in_words_in_dial_chat_after_the_call_was_approved_once(tmp_path: Path) -> None:
    async with (
        booking(form(("seats",), seats=SEATS), form(cabin=CABIN, window=WINDOW)) as (url, calls),
        product(BOOK, says("Done."), tmp_path=tmp_path, mcp_servers=servers(url)) as p,
    ):
        asked = await p.reader.ask("Book")
        first = await p.reader.press("Approve", asked)
        wrong = await p.reader.ask(f"answer {code_in(first.content)}: many")
        second = await p.reader.ask(f"answer {code_in(wrong.content)}: 3")
        done = await p.reader.ask(f"answer {code_in(second.content)}: cabin = biz\nwindow: yes")
        late = await p.reader.ask(f"answer {code_in(second.content)}: cabin = eco")
    assert "tickets asks" in first.content
    assert "How many seats?" in first.content
    assert "answer" in first.content
    assert "always" not in first.content.casefold()
    assert "is not of type 'integer'" in wrong.content
    assert (done.content, "Nothing has run" in late.content) == ("Done.", True)
    assert [call.get("arguments") for call in calls] == [{"flight": "X1"}] * 3
    booked = "Booked: accept {'seats': 3}, accept {'cabin': 'biz', 'window': True}."
    assert result_in(p.upstream.requests[-1]) == booked


async def waiting(api: Api) -> dict[str, Any]:
    [question] = (await api.get("/approvals")).json["approvals"]
    return question


async def test_a_form_is_answered_as_json_through_the_api_even_after_a_restart(tmp_path: Path) -> None:
    async with booking(form(("seats",), seats=SEATS), reads=True) as (url, calls):
        async with http_api(BOOK, tmp_path=tmp_path, mcp_servers=servers(url)) as api:
            run = (await api.post("/runs", {"messages": [said("Book")]})).json
            assert (await api.events(run["run_id"]))[-1]["status"] == "suspended"
        async with http_api(says("Done."), tmp_path=tmp_path, mcp_servers=servers(url)) as api:
            asked = await waiting(api)
            given = {**asked["arguments"], "answer": {"seats": 2}}
            answered = await api.post(f"/approvals/{asked['approval_id']}", {"decision": "always", "arguments": given})
            events = await api.events(answered.json["resumed"]["run_id"])
            assert (await api.get("/grants")).json["grants"] == []  # nothing is answered beforehand
            late = await api.post(f"/approvals/{asked['approval_id']}", {"decision": "deny"})
    assert "".join(event["text"] for event in events if event["type"] == "text") == "Done."
    assert result_in(api.upstream.requests[-1]) == "Booked: accept {'seats': 2}."
    assert (asked["card"]["command"].splitlines()[0], asked["tool"]) == ('tickets asks = "How many seats?"', "book")
    assert (len(calls), late.status) == (2, 409)


@pytest.mark.fault("mcp: a question in a call whose arguments the user has changed")
async def test_a_call_that_the_user_has_changed_never_goes_on_as_the_model_wrote_it(tmp_path: Path) -> None:
    async with (
        booking(form(("seats",), seats=SEATS)) as (url, calls),
        http_api(BOOK, says("Done."), tmp_path=tmp_path, mcp_servers=servers(url)) as api,
    ):
        run = (await api.post("/runs", {"messages": [said("Book")]})).json
        await api.events(run["run_id"])
        for given in ({"flight": "X2"}, {"answer": {"seats": 2}}):
            asked = await waiting(api)
            body = {"decision": "approve", "arguments": asked["arguments"] | given}
            answered = await api.post(f"/approvals/{asked['approval_id']}", body)
            await api.events(answered.json["resumed"]["run_id"])
    assert [call["arguments"] for call in calls] == [{"flight": "X2"}] * len(calls)


@pytest.mark.fault("mcp: a question whose tool is another server's when it is answered")
async def test_an_answer_goes_to_no_other_server_than_the_one_that_asked(tmp_path: Path) -> None:
    asks = booking(form(("seats",), seats=SEATS), reads=True)
    async with asks as (url, calls), booking(reads=True) as (other, others):
        async with http_api(BOOK, tmp_path=tmp_path, mcp_servers=servers(url)) as api:
            run = (await api.post("/runs", {"messages": [said("Book")]})).json
            await api.events(run["run_id"])
        async with http_api(says("Done."), tmp_path=tmp_path, mcp_servers=servers(other)) as api:
            asked = await waiting(api)
            given = {**asked["arguments"], "answer": {"seats": 2}}
            answered = await api.post(f"/approvals/{asked['approval_id']}", {"decision": "approve", "arguments": given})
            await api.events(answered.json["resumed"]["run_id"])
    assert (len(calls), others) == (1, [])
    assert "it was changed while the user was asked" in result_in(api.upstream.requests[-1])


@pytest.mark.fault("mcp: a call whose tool is another server's when it is approved")
async def test_an_approval_runs_no_tool_of_another_server_that_has_got_its_name(tmp_path: Path) -> None:
    async with booking() as (url, _), booking() as (other, others):
        async with http_api(BOOK, tmp_path=tmp_path, mcp_servers=servers(url)) as api:
            run = (await api.post("/runs", {"messages": [said("Book")]})).json
            await api.events(run["run_id"])
        named = [{"name": "other", "url": other}]
        async with http_api(then=says("Done."), tmp_path=tmp_path, mcp_servers=named) as api:
            asked = await waiting(api)
            answered = await api.post(f"/approvals/{asked['approval_id']}", {"decision": "approve"})
            await api.events(answered.json["resumed"]["run_id"])
            again = await waiting(api)
    assert (others, again["tool"]) == ([], "book")


async def test_a_user_who_declines_ends_the_call_and_a_page_is_opened_by_the_user_only(tmp_path: Path) -> None:
    async with booking(page("https://pay.example/7"), reads=True) as (url, calls):
        script = (BOOK, says("Then not."), BOOK, says("Paid."))
        async with http_api(*script, tmp_path=tmp_path, mcp_servers=servers(url)) as api:
            for decision in ("deny", "approve"):
                run = (await api.post("/runs", {"messages": [said("Book")]})).json
                await api.events(run["run_id"])
                asked = await waiting(api)
                answered = await api.post(f"/approvals/{asked['approval_id']}", {"decision": decision})
                await api.events(answered.json["resumed"]["run_id"])
    results = [result_in(api.upstream.requests[place]) for place in (1, 3)]
    assert (asked["arguments"]["host"], asked["arguments"]["page"]) == ("pay.example", "https://pay.example/7")
    assert "the user denied it" in results[0]
    assert results[1] == "Booked: accept None."
    assert ["inputResponses" in call for call in calls] == [False, False, True]


@pytest.mark.fault("mcp: a question with a form of 1,000 fields", case="many")
@pytest.mark.fault("mcp: a question for a password, outside a page of the server's own", case="password")
@pytest.mark.fault("mcp: a question with a page that is not one with https", case="page")
@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        pytest.param(form(**fields(1_000)), "too long", id="many"),
        (form(**fields(20)), "one to 10 fields"),
        (form(nested={"type": "object"}), "one to 10 fields"),
        (form(either={"type": ["string", "null"]}), "one to 10 fields"),
        pytest.param(form(password={"type": "string"}), "passwords and secrets", id="password"),
        (form(message="Your API key?", value={"type": "string"}), "passwords and secrets"),
        pytest.param(page("http://pay.example/7"), "https", id="page"),
        (page("https://user@pay.example/7"), "https"),
        (page("javascript:alert(1)"), "https"),
        (page("https://evil.example\\.pay.example/"), "https"),
        (page(f"https://pay.example/{'x' * 1_000}"), "short"),
        (page("https://pаy.example/"), "https"),
    ],
)
async def test_what_users_are_not_asked_is_declined_with_a_sentence(
    asked: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    async with (
        booking(asked, reads=True) as (url, _),
        http_api(BOOK, says("Done."), tmp_path=tmp_path, mcp_servers=servers(url)) as api,
    ):
        await api.complete("Book")
    result = result_in(api.upstream.requests[-1])
    assert result.startswith("Error: The server asked the user for something, which was declined: ")
    assert reason in result


@pytest.mark.fault("mcp: a question of a toolset that another user made")
async def test_toolsets_that_users_made_ask_users_nothing() -> None:
    async with booking(form(seats=SEATS), reads=True) as (url, calls), MCPClient(url) as client:
        [model] = await client.get_tools()
        tool = MCPTool(client, model, called="toolsets/other/Approvals")
        call = ToolCall("c1", FunctionCall("book", '{"flight": "X1"}'))
        [result] = await Toolbox([tool]).call_all([call], RecordingChoice(), CALLER)
    assert isinstance(result, Message)
    assert "its server was made by a user" in result.text()
    assert len(calls) == 1


ONE: dict[str, Any] = {"schema": {"properties": {"n": {"type": "integer"}}}, "shown": {"answer": {"n": None}}}
TWO: dict[str, Any] = {
    "schema": {"properties": {"n": {"type": "number"}, "t": {"type": "string"}}, "additionalProperties": False},
    "shown": {"answer": {"n": 7, "t": None}},
}


@pytest.mark.parametrize(
    ("question", "said", "content"),
    [
        (ONE, "3", {"n": 3}),
        (ONE, " n = 3 ", {"n": 3}),
        (ONE, "{", "'{' is not of type 'integer'"),
        (ONE, '{"answer": {"n": 4}}', {"n": 4}),
        (ONE, '{"a":' + "[" * 9_000, "is not of type 'integer'"),
        (ONE, "n" + " " * 19_000 + "x", "is not of type 'integer'"),
        (TWO, "", {"n": 7}),
        (TWO, "t: no\nn: 1.5", {"n": 1.5, "t": "no"}),
        (TWO, "t = https://a.example/?b=c; d", {"n": 7, "t": "https://a.example/?b=c; d"}),
        (TWO, "no idea", "a line for each of n, t"),
        (TWO, '{"x": 1}', "'x' was unexpected"),
        (TWO, None, "^$"),
    ],
)  # fmt: skip
def test_an_answer_in_words_or_json_is_read_and_checked(question: Any, said: str | None, content: Any) -> None:
    if isinstance(content, dict):
        assert answer_to(question, said) == {"action": "accept", "content": content}
    else:
        with pytest.raises(ArgumentsError, match=content if content == "^$" else re.escape(content)):
            answer_to(question, said)


@pytest.mark.fault("mcp: an answer to a question with the code of an approval, a server that asks for ever")
async def test_an_answer_approves_no_call_and_a_server_cannot_ask_for_ever(tmp_path: Path) -> None:
    async with (
        booking(*[form(seats=SEATS)] * 9) as (url, calls),
        product(BOOK, says("No."), BOOK, says("Done."), tmp_path=tmp_path, mcp_servers=servers(url)) as p,
    ):
        asked = await p.reader.ask("Book")
        await p.reader.ask(f"answer {code_in(asked.content)}: 3")
        assert calls == []
        asked = await p.reader.ask("Book")
        while "approve" in asked.content:
            asked = await p.reader.ask(f"approve {code_in(asked.content)}")
    assert len(calls) == MAX_ROUNDS + 1
    assert "one too many" in result_in(p.upstream.requests[-1])


async def test_a_server_asks_in_a_call_of_a_sub_agent(tmp_path: Path) -> None:
    script = [wants("delegate", task="Book X1."), BOOK, says("It is booked."), says("Done.")]
    async with (
        booking(form(("seats",), seats=SEATS), reads=True) as (url, calls),
        product(*script, tmp_path=tmp_path, mcp_servers=servers(url), agents={"enabled": True}) as p,
    ):
        asked = await p.reader.ask("Book")
        done = await p.reader.ask(f"answer {code_in(asked.content)}: 3")
    assert ("tickets asks" in asked.content, done.content, len(calls)) == (True, "Done.", 2)
    assert result_in(p.upstream.requests[2]) == "Booked: accept {'seats': 3}."
    assert result_in(p.upstream.requests[3]) == "It is booked."


async def test_a_line_at_the_terminal_answers_and_what_is_typed_there_is_sent(tmp_path: Path) -> None:
    typed = [typed_answer("yes"), typed_answer("answer 3")]
    async with (
        booking(form(("seats",), seats=SEATS)) as (url, _),
        talking(tmp_path, BOOK, says("Done."), output=AtTheTerminal(*typed), mcp_servers=servers(url)) as console,
    ):
        await console.types("Book")
        assert console.history.get_messages()[-1]["content"] == "Done."
        assert result_in(console.upstream.requests[-1]) == "Booked: accept {'seats': 3}."
    assert [question.card["command"].partition("\n")[0] for question in console.output.asked] == [
        "book",
        'tickets asks = "How many seats?"',
    ]
