"""The DIAL front door, through local Core, as a person's chat reads it."""

import asyncio
import copy
import json
import re
from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from task.conversation.messages import SHOWN_AGAIN
from task.conversation.state import TOOL_CALL_HISTORY_KEY
from task.llm.base import Finish, TextDelta, Usage
from task.llm.demo import SAMPLES
from task.llm.scripted import Reply, says, wants
from tests.support.chat_reader import chat_reader
from tests.support.http_api import http_api, key_of
from tests.support.image_deployment import image_deployment
from tests.support.product import MODEL, Product, product
from tests.support.stores import opened, sqlite_url
from tests.support.upstream import (
    Item,
    Received,
    broken_off,
    error_in_stream,
    hanging,
    http_error,
    malformed_chunk,
    never_answering,
    parallel_calls,
    plain_error,
)
from tests.support.waiting import until

SUM = wants("calculator", expression="25*47")
HELLO = {"messages": [{"role": "user", "content": "Hi"}]}


async def posted(p: Product, body: dict[str, Any], **headers: str) -> tuple[int, dict[str, Any]]:
    """Status and body of the agent's answer to a request that reaches it past Core."""
    path = f"{p.agent_url}/openai/deployments/general-purpose-agent/chat/completions"
    async with aiohttp.ClientSession() as session, session.post(path, json=body, headers=headers) as response:
        return response.status, await response.json()


@pytest.mark.parametrize("stream", [True, False])
async def test_a_question_is_answered_with_a_tool_shown_as_a_stage(stream: bool, tmp_path: Path) -> None:
    used = Usage(100, 7)
    called, says_it = says("", usage=used) & SUM, says("It is ", "1175.", usage=used)
    async with product(called, says_it, tmp_path=tmp_path) as p:
        answer = await p.reader.ask("25*47?", stream=stream)
    [stage] = answer.stages.values()
    assert (answer.content, answer.finish_reason, answer.done) == ("It is 1175.", "stop", stream)
    assert re.fullmatch(r"calculator: 25\*47 \[\d+\.\d\ds\]", stage.name)
    assert (stage.status, stage.content) == (
        "completed",
        "## Request arguments:\n\n**Expression**: 25*47\n\n## Response:\n\n1175\n",
    )
    assert answer.state is not None
    assert answer.usage is not None
    assert (answer.usage["prompt_tokens"], answer.usage["completion_tokens"]) == (200, 14)


async def test_the_next_turn_remembers_the_tools_of_the_last(tmp_path: Path) -> None:
    async with product(says("Let me see.") & SUM, says("It is 1175."), says("1176."), tmp_path=tmp_path) as p:
        first = await p.reader.ask("25*47?")
        await p.reader.ask("And one more?")
    assert first.content == "Let me see.\n\nIt is 1175."
    sent = [(message["role"], message.get("content")) for message in p.upstream.requests[2].messages[1:]]
    assert sent == [
        ("user", "25*47?"),
        ("assistant", "Let me see."),
        ("tool", "1175"),
        ("assistant", "It is 1175."),
        ("user", "And one more?"),
    ]
    assert first.state is not None
    assert '"index"' not in json.dumps(first.state)


@pytest.mark.fault("tool: arguments of 300 kB")
async def test_a_long_argument_is_stored_as_a_file_and_shortened_for_the_model_and_the_state(tmp_path: Path) -> None:
    expression = "+".join(["1"] * 150_000)
    items = (wants("calculator", expression=expression), says("Too long."), says("Yes."))
    async with product(*items, tmp_path=tmp_path) as p:
        first = await p.reader.ask("Add them")
        await p.reader.ask("Really?")
        argument = json.loads(p.upstream.requests[1].messages[-2]["tool_calls"][0]["function"]["arguments"])
        [place] = re.findall(r"All of it is in (files/\S+):", argument["expression"])
        stored = await p.reader.get(place)
    assert (first.content, stored) == ("Too long.", (200, expression.encode()))
    assert argument["expression"].startswith("1+1+1")
    assert len(json.dumps(first.state)) < 20_000
    assert p.upstream.requests[2].messages[2] == p.upstream.requests[1].messages[2]


Forge = Callable[[dict[str, Any]], None]


def other_result(state: dict[str, Any]) -> None:
    state[TOOL_CALL_HISTORY_KEY][1]["content"] = "9999"


def signature_outside_ascii(state: dict[str, Any]) -> None:
    state["signature"] = "Unterschrift für 1175"


@pytest.mark.fault("state: tampered state")
@pytest.mark.fault("state: another principal's state")
@pytest.mark.fault(
    "state: a signature that is not ASCII, or any other value in a state", case="signature_outside_ascii"
)
@pytest.mark.parametrize("forge", [other_result, signature_outside_ascii])
async def test_a_forged_or_foreign_state_is_dropped_and_the_chat_continues(forge: Forge, tmp_path: Path) -> None:
    async with product(SUM, says("It is 1175."), then=says("Yes."), tmp_path=tmp_path) as p:
        await p.reader.ask("25*47?")
        p.other.messages = copy.deepcopy(p.reader.messages)
        forge(p.reader.messages[-1]["custom_content"]["state"])
        answer = await p.reader.ask("Sure?")
        await p.other.ask("Sure?")
    assert answer.content == "Yes."
    for request in p.upstream.requests[2:]:
        assert [message["role"] for message in request.messages] == ["system", "user", "assistant", "user"]


async def test_without_a_core_the_keys_owner_is_the_identity_and_tools_are_remembered(tmp_path: Path) -> None:
    ann, bob = await key_of("ann", tmp_path), await key_of("bob", tmp_path)
    items = (SUM, says("It is 1175."), says("Yes."), says("Who?"))
    async with (
        http_api(*items, tmp_path=tmp_path, http={"mode": "keys"}) as api,
        chat_reader(api.url, ann) as mine,
        chat_reader(api.url, bob) as theirs,
    ):
        await mine.ask("25*47?")
        theirs.messages = list(mine.messages)
        await mine.ask("Sure?")
        await theirs.ask("Sure?")
    roles = [[message["role"] for message in request.messages] for request in api.upstream.requests[2:]]
    assert roles == [
        ["system", "user", "assistant", "tool", "assistant", "user"],
        ["system", "user", "assistant", "user"],
    ]


@pytest.mark.usefixtures("chat")
async def test_the_first_word_needs_no_further_one(tmp_path: Path) -> None:
    async with (
        asyncio.timeout(20),
        product(hanging(says("Once ", "upon"), chunks=2), tmp_path=tmp_path) as p,
        aclosing(p.reader.watch("Tell me a story about a robot")) as watching,
    ):
        while not (shown := await anext(watching)).content:
            pass
    assert "Once upon".startswith(shown.content)


async def test_a_person_learns_that_the_model_stopped_at_its_limit_of_tokens(tmp_path: Path) -> None:
    async with product(SUM, Reply((TextDelta("It is 11"), Finish("length"))), tmp_path=tmp_path) as p:
        answer = await p.reader.ask("25*47?")
    assert answer.content == "It is 11\n\n[The answer was cut off at the model's token limit.]"


@pytest.mark.fault("calls: 200 parallel calls")
async def test_two_hundred_parallel_calls_are_all_answered(tmp_path: Path) -> None:
    calls = parallel_calls("calculator", 200, expression="1+1")
    async with product(calls, says("Done."), tmp_path=tmp_path) as p:
        answer = await p.reader.ask("Go")
    assert answer.content == "Done."
    assert [message["role"] for message in p.upstream.requests[1].messages[-200:]] == ["tool"] * 200


@pytest.mark.fault("model: the model answers 401", case="401")
@pytest.mark.fault("model: malformed chunks", case="malformed")
@pytest.mark.fault("model: the stream ends in the middle", case="reset")
@pytest.mark.fault("model: an error in the middle of the stream", case="error-event")
@pytest.mark.parametrize(
    ("fault", "code"),
    [
        (http_error(401, "Incorrect API key provided: sk-secret", code="invalid_api_key"), "invalid_api_key"),
        (http_error(400, "too long", code="context_length_exceeded"), "context_length_exceeded"),
        (plain_error(404, "Unknown application: test-model"), "404"),
        (error_in_stream(says("Half an answer")), None),
        (malformed_chunk(says("Half an answer")), None),
        (broken_off(says("Half", " an answer"), chunks=2), None),
        (broken_off(says("Half", " an answer"), chunks=2, reset=False), None),
    ],
    ids=["401", "context", "404", "error-event", "malformed", "reset", "no-finish"],
)
@pytest.mark.parametrize("stream", [True, False])
async def test_a_failing_model_ends_in_a_sentence(fault: Item, code: str | None, stream: bool, tmp_path: Path) -> None:
    async with product(SUM, fault, tmp_path=tmp_path) as p:
        answer = await p.reader.ask("25*47?", stream=stream)
    assert answer.error is not None
    assert answer.status == (200 if stream else 500)
    assert len(answer.error["display_message"]) > 20
    assert "sk-secret" not in json.dumps(answer.error)
    if code:
        assert answer.error["code"] == code
    if stream:
        assert answer.state is not None, "what was done before the failure is kept"
        assert answer.done
        assert [stage.status for stage in answer.stages.values()] == ["completed"]


@pytest.mark.fault("model: the model answers 429", case="429")
@pytest.mark.fault("model: the model answers 500", case="500")
@pytest.mark.parametrize("status", [429, 500, 503])
async def test_a_model_that_fails_once_is_asked_again_before_anything_was_shown(status: int, tmp_path: Path) -> None:
    async with product(http_error(status, retry_after=0.01), says("Hello."), tmp_path=tmp_path) as p:
        assert (await p.reader.ask("Hi")).content == "Hello."


@pytest.mark.fault("request: no messages", case="empty")
@pytest.mark.fault("request: the last message is not the user's", case="assistant-last")
@pytest.mark.fault("request: an unknown or impossible configuration", case="range")
@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ({"messages": []}, "no messages"),
        ({"messages": HELLO["messages"] * 5_001}, "more than 5,000 messages"),
        ({"messages": [*HELLO["messages"], {"role": "assistant", "content": "Ho"}]}, "must be the user"),
        ({**HELLO, "custom_fields": {"configuration": {"temperature": 3}}}, "temperature"),
        ({**HELLO, "custom_fields": {"configuration": {"colour": 1}}}, "colour"),
    ],
    ids=["empty", "too-many", "assistant-last", "range", "unknown-key"],
)
async def test_a_wrong_request_is_refused_with_what_to_change(
    body: dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    async with product(tmp_path=tmp_path) as p:
        for stream in (True, False):
            status, answer = await posted(p, {**body, "stream": stream}, **{"Api-Key": "k"})
            assert (status, answer["error"]["code"]) == (400, "400")
            assert sentence in answer["error"]["display_message"]


async def test_behind_an_old_core_a_persons_mistake_is_reported_inside_the_stream(tmp_path: Path) -> None:
    async with product(tmp_path=tmp_path, errors_in_stream=True) as p:
        p.reader.configuration = {"colour": "blue"}
        answer = await p.reader.ask("Hi")
    assert answer.status == 200
    assert answer.error is not None
    assert "colour" in answer.error["display_message"]


@pytest.mark.fault("request: no key")
@pytest.mark.fault("request: unknown fields")
async def test_a_missing_key_is_refused_and_fields_beside_the_messages_are_taken(tmp_path: Path) -> None:
    attachment = {"type": "text/csv", "title": "report.csv", "url": "files/b/report.csv"}
    body = {**HELLO, "addons": [], "unheard_of": {"a": 1}, "custom_content": {"attachments": [attachment]}}
    async with product(says("Hello."), tmp_path=tmp_path) as p:
        status, refusal = await posted(p, body)
        assert (status, "Api-Key" in json.dumps(refusal)) == (400, True)
        status, answer = await posted(p, body, Authorization="Bearer key-one")
    assert (status, answer["choices"][0]["message"]["content"]) == (200, "Hello.")
    assert p.upstream.requests[0].last["content"].endswith("- report.csv (text/csv): files/b/report.csv")


@pytest.mark.fault("client: it disconnects before the first token", case="waiting")
@pytest.mark.fault("client: it disconnects while text streams", case="writing")
@pytest.mark.fault("client: it disconnects after a tool has run", case="tool")
@pytest.mark.parametrize("phase", ["waiting", "writing", "tool"])
async def test_a_person_who_leaves_stops_the_model_in_every_phase(phase: str, tmp_path: Path) -> None:
    faults: dict[str, list[Item]] = {
        "waiting": [never_answering()],
        "writing": [hanging(says("Once ", "upon"), chunks=2)],
        "tool": [SUM, never_answering()],
    }
    async with product(*faults[phase], tmp_path=tmp_path) as p:
        watching = p.reader.watch("Tell me a story")
        reading = asyncio.create_task(anext(watching))
        await p.upstream.received(len(faults[phase]))
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        await watching.aclose()
        await p.upstream.disconnected(1)
        assert p.upstream.disconnects == 1
    async with opened(sqlite_url(tmp_path / "agent")) as store:
        assert [trace.status for trace in (await store.traces.list("")).items] == ["cancelled"]


SLOW_TOOL = """
import asyncio
from pathlib import Path

from task.tools.declare import tool


@tool
async def dig(folder: str) -> str:
    \"\"\"Dig until stopped.\"\"\"
    Path(folder, "digging").touch()
    try:
        await asyncio.Event().wait()
    finally:
        Path(folder, "stopped").touch()
    return "never"
"""


@pytest.mark.fault("client: it disconnects while a tool runs")
async def test_a_person_who_leaves_stops_a_running_tool(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(SLOW_TOOL)
    dig = wants("dig", folder=str(tmp_path))
    async with product(dig, tmp_path=tmp_path, tool_paths=[str(tmp_path / "slow.py")]) as p:
        reading = asyncio.create_task(p.reader.ask("Dig"))
        await until((tmp_path / "digging").exists)
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        await until((tmp_path / "stopped").exists)


async def test_a_quiet_stream_is_kept_alive(tmp_path: Path) -> None:
    async with product(says("Slow ", "answer.", pause=0.25), tmp_path=tmp_path, heartbeat_seconds=0.05) as p:
        answer = await p.reader.ask("Hi")
    assert (answer.content, answer.comments > 0) == ("Slow answer.", True)


async def test_headers_travel_on_to_the_model_but_not_the_callers_key(tmp_path: Path) -> None:
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    async with product(says("Hello."), tmp_path=tmp_path) as p:
        p.reader.headers = {"X-Team": "blue", "traceparent": trace}
        await p.reader.ask("Hi")
    headers = p.upstream.requests[0].headers
    assert headers["x-team"] == "blue"
    assert headers["traceparent"].split("-")[1] == trace.split("-")[1]
    assert headers["x-conversation-id"] == "conversations%2Fbucket%2Fchat"
    assert headers["api-key"] not in ("key-one", "key-two")


async def test_the_configuration_offers_and_chooses_model_and_temperature(tmp_path: Path) -> None:
    async with (
        product(says("Hello."), tmp_path=tmp_path, deployment_name="another") as p,
        aiohttp.ClientSession() as session,
    ):
        path = f"{p.core.url}/v1/deployments/general-purpose-agent/configuration"
        async with session.get(path, headers=p.core.headers()) as response:
            properties = (await response.json())["properties"]
        p.reader.configuration = {"model": MODEL, "temperature": 0.5, "starter": 1}
        answer = await p.reader.ask("Hi")
    assert set(properties) == {"model", "temperature", "permission_mode", "starter"}
    assert MODEL in properties["model"]["enum"]
    assert (answer.content, p.upstream.requests[0].body["temperature"]) == ("Hello.", 0.5)
    assert answer.state is not None
    assert (answer.state.keys(), answer.state[TOOL_CALL_HISTORY_KEY]) == ({TOOL_CALL_HISTORY_KEY, "signature"}, [])


async def test_a_starter_sends_its_own_text_in_either_chat(chat: str, tmp_path: Path) -> None:
    async with product(says("Hello."), tmp_path=tmp_path) as p:
        answer = await p.reader.start("What can you do?")
    assert (answer.content, p.upstream.requests[0].messages[-1]["content"]) == ("Hello.", "Hi, what can you do?")


async def test_a_starter_brings_its_sample_file_once(chat: str, tmp_path: Path) -> None:
    async with product(says("Standing desks."), says("They are."), tmp_path=tmp_path) as p:
        answers = [await p.reader.start("Read a table"), await p.reader.ask("Sure?")]
        first, second = p.upstream.requests
        [url] = re.findall(r"- sample-sales.csv \(text/csv\): (files/\S+)", first.messages[-1]["content"])
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"{p.core.url}/v1/{url}", headers=p.core.headers()) as file,
        ):
            assert (file.status, await file.read()) == (200, SAMPLES[0].path.read_bytes())
    assert [answer.content for answer in answers] == ["Standing desks.", "They are."]
    assert first.messages[-1]["content"].startswith(SAMPLES[0].question)
    assert (second.messages[-3], second.messages[-1]["content"]) == (first.messages[-1], "Sure?"), "the file stays"


@pytest.mark.fault("store: a rating of an answer that there is not, or that left no trace")
@pytest.mark.parametrize("kept", [True, False])
async def test_a_rating_in_dial_chat_is_kept_with_the_trace_of_its_answer(kept: bool, tmp_path: Path) -> None:
    async with (
        product(says("Hello."), says("Bye."), tmp_path=tmp_path, trace_content=kept) as p,
        aiohttp.ClientSession() as session,
    ):
        rated = (await p.reader.ask("Hi")).id
        await p.reader.ask("Thanks")

        async def rate(body: dict[str, Any]) -> int:
            path = f"{p.core.url}/v1/general-purpose-agent/rate"
            async with session.post(path, json=body, headers=p.core.headers()) as response:
                return response.status

        assert await rate({"rate": True, "responseId": rated}) == 200
        assert await rate({"rate": False, "responseId": rated, "comment": "too short"}) == 200
        for unknown in ("r1", "chatcmpl-", "trace_00000000", "x" * 5000, "nul \0"):
            assert await rate({"rate": True, "responseId": unknown}) == 200
        assert await rate({"rate": True}) in (200, 400, 422)
        for body in ({"rate": "sideways", "responseId": rated}, {"rate": False, "responseId": 5}):
            assert await rate(body) in (400, 422)
        async with opened(sqlite_url(tmp_path / "agent")) as store:
            traces = (await store.traces.list("")).items
    assert [(trace.rating, trace.comment) for trace in traces] == [
        (None, None), ("down", "too short" if kept else None),
    ]  # fmt: skip


@pytest.mark.parametrize("version", [48, 49])
async def test_a_trace_has_the_ids_under_which_core_traces_its_requests(version: int, tmp_path: Path) -> None:
    async with product(wants("calculator", expression="1+1"), says("2"), tmp_path=tmp_path, core_version=version) as p:
        p.reader.headers["traceparent"] = f"00-{'4bf92f35' * 4}-00f067aa0ba902b7-01"
        await p.reader.ask("1+1?")
    async with opened(sqlite_url(tmp_path / "agent")) as store:
        (trace,) = (await store.traces.list("")).items
    assert trace.core_traces == (("4bf92f35" * 4,) if version == 49 else ())


@pytest.mark.parametrize("sent_back", [False, True])
async def test_a_generated_picture_reaches_a_model_that_sees_in_the_next_turn(sent_back: bool, tmp_path: Path) -> None:
    turns = [wants("image_generation_tool", prompt="a cat"), says("Here."), says("A cat.")]
    async with image_deployment() as images, product(*turns, tmp_path=tmp_path, models=images.models, sees=True) as p:
        images.core = p.core.url
        first = await p.reader.ask("Paint a cat")
        [picture] = first.attachments.values()
        if sent_back:  # as newer chats do, which then need no state
            p.reader.messages[-1]["custom_content"] = {"attachments": [picture]}
        await p.reader.ask("What is in that picture?")
    assert p.upstream.requests[-1].messages[-1]["content"] == [
        {"type": "text", "text": "What is in that picture?"},
        {"type": "text", "text": f"{SHOWN_AGAIN}\n- {picture['url']}"},
        {"type": "image_url", "image_url": {"url": picture["url"]}},
    ]


@pytest.mark.usefixtures("chat")
@pytest.mark.parametrize("people", [5, pytest.param(50, marks=pytest.mark.system)])
async def test_people_who_ask_at_once_get_their_own_answers(people: int, tmp_path: Path) -> None:
    def marked(received: Received) -> Reply:
        return says("You said: ", received.messages[-1]["content"])

    async def asked(number: int) -> str:
        async with chat_reader(p.core.url, "key-one") as reader:
            return (await reader.ask(f"marker {number}")).content

    async with product(then=marked, tmp_path=tmp_path) as p:
        answers = await asyncio.gather(*(asked(number) for number in range(people)))
    assert answers == [f"You said: marker {number}" for number in range(people)]
