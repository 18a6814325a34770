"""The local backend: decisions become calls, prose streams, one request at a time, also when the server fails."""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import aiohttp
import pytest

from task.conversation.messages import FunctionCall, Message, ToolCall, assistant, tool_message, user
from task.errors import ProviderError
from task.llm.base import Accumulator, ChatModel, Delta, Finish, ModelOptions, ToolSchema, Usage, Waiting
from task.llm.scripted import Reply, says
from task.llm.transport import new_session
from task.local.model.process import PAUSES, server_model
from task.local.model.prompt import predicted_prefix
from task.local.model.small_model import SmallModel
from tests.support.local_tools import DEFAULT_TOOLS
from tests.support.upstream import RESET, Answer, Received, Upstream, hanging, http_error, openai_upstream

SUM = {"tool": "calculator", "arguments": {"expression": "1+1"}}
REPLY = says('[{"tool":"reply"}]')
LOST = Answer((RESET,))


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with new_session() as session:
        yield session


@dataclass
class Opened:
    """A model that answers when it is opened."""

    model: ChatModel
    opened: asyncio.Event
    name: str = "small"

    async def stream(
        self, messages: Sequence[Message], tools: Sequence[ToolSchema], options: ModelOptions
    ) -> AsyncGenerator[Delta]:
        await self.opened.wait()
        async with aclosing(self.model.stream(messages, tools, options)) as deltas:
            async for delta in deltas:
                yield delta


def served_by(
    peer: Upstream,
    session: aiohttp.ClientSession,
    *,
    after: asyncio.Event | None = None,
    **options: Any,
) -> SmallModel:
    engine = server_model(session, peer.endpoint, "key", "small")
    return SmallModel(Opened(engine, after) if after else engine, "small", pauses=PAUSES, **options)


def calls(*steps: object) -> Reply:
    return says(json.dumps(steps), usage=Usage(10, 5))


async def answered(
    model: ChatModel, *messages: Message, options: ModelOptions | None = None, waited: list[str] | None = None
) -> Accumulator:
    answer = Accumulator()
    asked = messages or (user("1+1?"),)
    async with asyncio.timeout(20), aclosing(model.stream(asked, DEFAULT_TOOLS, options or ModelOptions())) as deltas:
        async for delta in deltas:
            answer.add(delta)
            if isinstance(delta, Waiting) and waited is not None:
                waited.append(delta.text)
    return answer


async def test_json_becomes_calls_with_ids_of_their_own(session: aiohttp.ClientSession) -> None:
    other = {"tool": "execute_code", "arguments": {"code": "print('ü')"}}
    async with openai_upstream(calls(SUM, other)) as peer:
        answer = await answered(served_by(peer, session))
    message = answer.message()
    assert [(call.name, json.loads(call.function.arguments)) for call in message.tool_calls] == [
        ("calculator", {"expression": "1+1"}),
        ("execute_code", {"code": "print('ü')"}),
    ]
    assert len({call.id for call in message.tool_calls}) == 2
    assert (answer.finish_reason, answer.usage, message.content) == ("tool_calls", Usage(10, 5), None)
    assert len(peer.requests) == 1
    assert peer.requests[0].body["response_format"]["type"] == "json_schema"
    assert "tools" not in peer.requests[0].body


async def test_a_reply_streams_from_a_second_free_request_with_the_same_beginning(
    session: aiohttp.ClientSession,
) -> None:
    async with openai_upstream(calls({"tool": "reply"}), says("Two", ", I think.", usage=Usage(12, 4))) as peer:
        answer = await answered(served_by(peer, session))
    decision, prose = peer.requests
    assert (answer.message().content, answer.finish_reason, answer.usage) == ("Two, I think.", "stop", Usage(22, 9))
    assert prose.messages[:-1] == decision.messages[:-1]
    assert "response_format" not in prose.body


async def test_the_callers_parameters_apply_to_the_prose_and_the_decision_is_greedy(
    session: aiohttp.ClientSession,
) -> None:
    options = ModelOptions(temperature=0.9, max_tokens=50, stop=["."], tool_choice="auto")
    async with openai_upstream(REPLY, says("Two")) as peer:
        await answered(served_by(peer, session), options=options)
    decision, prose = (request.body for request in peer.requests)
    assert (decision["temperature"], "stop" in decision) == (0, False)
    assert (prose["temperature"], prose["max_tokens"], prose["stop"]) == (0.9, 50, ["."])
    assert "tool_choice" not in prose


@pytest.mark.fault("local model: prose where JSON is asked")
async def test_prose_in_place_of_json_is_the_answer(session: aiohttp.ClientSession) -> None:
    async with openai_upstream(says("Two, of course.")) as peer:
        answer = await answered(served_by(peer, session))
    assert (answer.message().content, answer.finish_reason) == ("Two, of course.", "stop")


@pytest.mark.fault("local model: JSON that is cut off")
async def test_incomplete_json_leads_to_an_answer(session: aiohttp.ClientSession) -> None:
    async with openai_upstream(says('[{"tool":"calcul') & Reply((Finish("length"),)), says("Two")) as peer:
        answer = await answered(served_by(peer, session))
    assert answer.message().content == "Two"


@pytest.mark.fault("local model: an answer without end")
async def test_an_endless_answer_stops_at_the_token_limit(session: aiohttp.ClientSession) -> None:
    async with openai_upstream(REPLY, says("and so on") & Reply((Finish("length"),))) as peer:
        answer = await answered(served_by(peer, session, answer_tokens=64))
    assert answer.finish_reason == "length"
    assert peer.requests[1].body["max_tokens"] == 64


@pytest.mark.fault("local model: a conversation over the window")
async def test_a_conversation_larger_than_the_window_is_shortened(session: aiohttp.ClientSession) -> None:
    call = ToolCall("c1", FunctionCall("calculator"))
    long = [user("Read."), assistant(calls=[call]), tool_message(call, "12.5 | " * 20_000)]
    async with openai_upstream(REPLY, says("Read.")) as peer:
        await answered(served_by(peer, session, context=4096), *long)
    assert max(len(request.last["content"]) for request in peer.requests) < 10_000
    assert "characters left out" in peer.requests[0].messages[-2]["content"]


@pytest.mark.fault("local model: a conversation over the window")
async def test_a_conversation_the_server_still_finds_too_long_is_shortened_once_more(
    session: aiohttp.ClientSession,
) -> None:
    refusal = http_error(400, "the request exceeds the available context size (5000 tokens)", code="exceed_context")
    long = user("word " * 20_000)
    async with openai_upstream(refusal, says("Short.")) as peer:
        answer = await answered(served_by(peer, session), long, options=ModelOptions(tool_choice="none"))
    first, second = (len(request.last["content"]) for request in peer.requests)
    assert answer.message().content == "Short."
    assert second < 0.7 * first
    async with openai_upstream(refusal, refusal) as peer:
        with pytest.raises(ProviderError, match="too long"):
            await answered(served_by(peer, session), long, options=ModelOptions(tool_choice="none"))


@pytest.mark.fault("local model: a process killed in an answer")
async def test_a_request_is_retried_when_the_process_dies_before_the_first_word(session: aiohttp.ClientSession) -> None:
    async with openai_upstream(LOST, calls(SUM)) as peer:
        answer = await answered(served_by(peer, session))
    assert len(answer.message().tool_calls) == 1


@pytest.mark.fault("local model: a cancel in the middle")
@pytest.mark.parametrize("script", [[hanging(REPLY, chunks=0)], [REPLY, hanging(says("One", "Two"), chunks=1)]])
async def test_a_client_that_disconnects_stops_the_model_within_a_second(
    session: aiohttp.ClientSession, script: list[Answer]
) -> None:
    async with openai_upstream(*script) as peer:
        asking = asyncio.create_task(answered(served_by(peer, session)))
        await peer.received(len(script))
        asking.cancel()
        await peer.disconnected()


@pytest.mark.fault("local model: more requests than may wait")
async def test_more_requests_wait_in_line_and_see_their_position(session: aiohttp.ClientSession) -> None:
    go = asyncio.Event()

    async with openai_upstream(then=says("Done.")) as peer:
        model = served_by(peer, session, after=go, queue=2)
        asked = ModelOptions(tool_choice="none")
        waited: list[list[str]] = [[], [], []]
        asking = [asyncio.create_task(answered(model, options=asked, waited=each)) for each in waited]
        await asyncio.sleep(0)
        with pytest.raises(ProviderError, match="2 requests are waiting already") as refused:
            await answered(model, options=asked)
        go.set()
        answers = await asyncio.gather(*asking)
    assert refused.value.display_message
    assert [answer.message().content for answer in answers] == ["Done."] * 3
    assert waited[0] == []
    assert "1 ahead of this request" in waited[1][-1]
    assert waited[2] == ["Waiting for the local model: 2 ahead of this request"]


async def test_warming_up_reads_the_common_beginning_of_conversations(session: aiohttp.ClientSession) -> None:
    def same_beginning(received: Received) -> Reply:
        assert received.messages[0] == peer.requests[0].messages[0]
        return calls(SUM)

    async with openai_upstream(says("."), same_beginning) as peer:
        model = served_by(peer, session)
        await answered(model, predicted_prefix(), options=ModelOptions(max_tokens=1, tool_choice="none"))
        await answered(model)
    assert peer.requests[0].body["max_tokens"] == 1


QUESTION = user("Which sold most?\n\nAttached files:\n- a.csv (text/csv): files/b/a.csv")
READING = ToolCall("c1", FunctionCall("file_content_extraction_tool", '{"file_url":"files/b/a.csv"}'))
READ = [QUESTION, assistant(calls=[READING]), tool_message(READING, "| p | n |\n| --- | --- |\n| B | 7 |\n")]


async def test_a_table_is_read_without_a_decision_computed_with_by_one_and_described_in_prose(
    session: aiohttp.ClientSession,
) -> None:
    expression = says(json.dumps({"rows": "df", "result": "rows.nlargest(1, 'n')"}))
    async with openai_upstream(expression, says("B.")) as peer:
        model = served_by(peer, session)
        [reading] = (await answered(model, QUESTION)).message().tool_calls
        [running] = (await answered(model, *READ)).message().tool_calls
        code = json.loads(running.function.arguments)["code"]
        output = f"## Execution Result\n\n```python\n{code}\n```\n\n**Output:**\nB 7"
        answer = await answered(model, *READ, assistant(calls=[running]), tool_message(running, output))
    assert json.loads(reading.function.arguments) == {"file_url": "files/b/a.csv", "page": 1}
    assert code.endswith("\nrows = df\nrows.nlargest(1, 'n')")
    assert answer.message().content == "B."
    assert len(peer.requests) == 2
    assert peer.requests[0].body["logit_bias"] == [["chart", -2.0]]
    prose = json.dumps(peer.requests[1].messages)
    assert "read_csv" not in prose
    assert "Which sold most?\\n\\nrows = df\\nrows.nlargest(1, 'n')\\n\\nResult:\\n**Output:**\\nB 7" in prose
    assert all("| B | 7 |" not in json.dumps(request.messages) for request in peer.requests)


async def test_another_question_about_a_table_is_computed_from_it_again(session: aiohttp.ClientSession) -> None:
    more = [*READ, assistant("B."), user("And in all?")]
    program = calls({"tool": "execute_code", "arguments": {"code": "print(7)"}})
    total = says(json.dumps({"rows": "df", "result": "rows['n'].sum()"}))
    async with openai_upstream(program, total, REPLY, says("Fine.")) as peer:
        model = served_by(peer, session)
        [again] = (await answered(model, *more)).message().tool_calls
        rows = tool_message(again, READ[-1].text())
        [running] = (await answered(model, *more, assistant(calls=[again]), rows)).message().tool_calls
        thanks = await answered(model, *more[:-1], user("Thank you!"))
    assert json.loads(again.function.arguments) == {"file_url": "files/b/a.csv", "page": 1}
    assert json.loads(running.function.arguments)["code"].endswith("\nrows = df\nrows['n'].sum()")
    assert thanks.message().content == "Fine."


async def test_a_program_that_has_failed_is_not_repeated(session: aiohttp.ClientSession) -> None:
    same = says(json.dumps({"rows": "df", "result": "rows['p'].nunique()"}))
    async with openai_upstream(same, same, says("I could not compute that.")) as peer:
        model = served_by(peer, session)
        [running] = (await answered(model, *READ)).message().tool_calls
        failed = [*READ, assistant(calls=[running]), tool_message(running, "ValueError: no axis")]
        assert (await answered(model, *failed)).message().content == "I could not compute that."


def computed(question: str, *steps: tuple[str, str]) -> list[Message]:
    """A question for which one step has computed each of these expressions, with its result."""
    made = [
        ToolCall(f"c{n}", FunctionCall("calculator", json.dumps({"expression": e}))) for n, (e, _) in enumerate(steps)
    ]
    results = [tool_message(call, value) for call, (_, value) in zip(made, steps, strict=True)]
    return [user(question), assistant(calls=made), *results]


CHANGE = ("20 - 3*4.35", "6.95")
LOOKING = ToolCall("c9", FunctionCall("file_content_extraction_tool", '{"file_url":"files/b/a.txt"}'))
DEPOSIT = [user("How much is the deposit?"), assistant(calls=[LOOKING]), tool_message(LOOKING, "50")]


@pytest.mark.parametrize(
    ("messages", "sentence"),
    [
        (computed("How much change do I get?", CHANGE), "The result is **6.95** (`20 - 3*4.35`)."),
        (
            computed("What are 7*8 and 9-4?", ("7*8", "56"), ("9-4", "5")),
            "The results are **56** (`7*8`) and **5** (`9-4`).",
        ),
        (computed("How much do I get back?", ("3*4.35 - 20", "-6.95")), "The result is **6.95** (`abs(3*4.35 - 20)`)."),
        (computed("What is left?", ("3 - 8", "-5"), ("8 - 3", "5")), "The result is **5** (`8 - 3`)."),
        (computed("What is 3 - 8?", ("3 - 8", "-5")), "The result is **-5** (`3 - 8`)."),
        (computed("Wie viel bekomme ich zurück?", CHANGE), "**6.95** (`20 - 3*4.35`)"),
    ],
)
async def test_a_computed_amount_is_answered_with_its_value_and_not_retold(
    session: aiohttp.ClientSession, messages: list[Message], sentence: str
) -> None:
    async with openai_upstream(REPLY) as peer:
        answer = await answered(served_by(peer, session), *messages)
    assert (answer.text, answer.finish_reason) == (sentence, "stop")
    assert len(peer.requests) == 1


@pytest.mark.parametrize(
    "messages",
    [
        computed("Write a note to Ben about what he gets back of a twenty.", CHANGE),
        computed("What change do I get? Explain it.", CHANGE),
        computed("Is that enough for me?", CHANGE),
        computed("How much change do I get?", ("20 - ", "Calculation error: this is not an arithmetic expression")),
        [*computed("How much change do I get?", CHANGE), assistant("6.95"), user("How much is that for two?")],
        DEPOSIT,
    ],
)
async def test_what_asks_for_more_than_an_amount_is_answered_by_the_model(
    session: aiohttp.ClientSession, messages: list[Message]
) -> None:
    async with openai_upstream(REPLY, says("Dear Ben.")) as peer:
        answer = await answered(served_by(peer, session), *messages)
    assert answer.text == "Dear Ben."


LOAN = "A saw costs 3 euros an hour. Late tools cost 15 cents a day, at most 9 euros. Ask for Ann, 2nd floor."


@pytest.mark.parametrize(
    ("question", "text", "expression"),
    [
        ("It is 15 cents a day, at most 9 euros. What is the fine for 10 days?", "", "min(10*0.15, 9)"),
        ("A pass costs 2.50 euros per day. How much are 4 days?", "", "4*2.50"),
        ("What is the fine for 10 days?", LOAN, "min(10*0.15, 9)"),
        ("How much is the saw for 6 hours?", LOAN, "6*3"),
        ("What is the fine for 10 days with a book?", f"{LOAN} A late book costs 4 euros a day.", "10*4"),
    ],
)
async def test_a_rule_with_a_number_in_the_question_is_computed_without_the_model(
    session: aiohttp.ClientSession, question: str, text: str, expression: str
) -> None:
    asked = [user(question)]
    asked += [assistant(calls=[LOOKING]), tool_message(LOOKING, text)] if text else []
    async with openai_upstream() as peer:
        [call] = (await answered(served_by(peer, session), *asked)).message().tool_calls
        answer = await answered(served_by(peer, session), *asked, assistant(calls=[call]), tool_message(call, "1.5"))
    assert json.loads(call.function.arguments) == {"expression": expression}
    assert answer.text == f"The result is **1.5** (`{expression}`)."
    assert peer.requests == []


@pytest.mark.parametrize(
    ("question", "text"),
    [
        ("A taxi takes 4 euros and 2 euros a mile. What are 7 miles?", ""),
        ("It is 2 euros a day. How much is that for 3 weeks?", ""),
        ("It is 2 euros a day, or 9 euros a week. What are 5 days?", ""),
        ("What is the fine for 10 days?", f"{LOAN} A lost book costs 4 euros a day."),
        ("What is the fine for 10 days?", "Late tools cost 15 cents a day after the first 3 days."),
        ("Is it open for 10 days?", LOAN),
        ("What is the fine?", LOAN),
    ],
)
async def test_what_is_no_plain_rule_is_left_to_the_model(
    session: aiohttp.ClientSession, question: str, text: str
) -> None:
    asked = [user(question)]
    asked += [assistant(calls=[LOOKING]), tool_message(LOOKING, text)] if text else []
    async with openai_upstream(REPLY, says("I think so.")) as peer:
        answer = await answered(served_by(peer, session), *asked)
    assert answer.text == "I think so."


@pytest.mark.parametrize(("question", "is_named"), [("Who are you?", True), ("Who wrote Emma, can you tell?", False)])
async def test_the_model_reads_the_agents_name_where_it_is_asked_for(
    session: aiohttp.ClientSession, question: str, is_named: bool
) -> None:
    async with openai_upstream(REPLY, says("Me.")) as peer:
        await answered(served_by(peer, session), user(question))
    decision, prose = peer.requests
    assert ("Your name is General Purpose Agent." in prose.messages[-1]["content"]) is is_named
    assert "General Purpose Agent" not in json.dumps(decision.messages)
