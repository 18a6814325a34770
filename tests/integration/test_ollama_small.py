"""A small model of Ollama gets the small models' profile, a large one everything; loading is shown while it lasts."""

import json
import re
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import aclosing
from itertools import pairwise
from typing import Any

import pytest

from task.conversation.messages import Message, assistant, system, tool_message, user
from task.llm.base import Accumulator, ModelOptions, ToolSchema, Usage, Waiting
from task.llm.ollama import OllamaServer
from task.llm.scripted import Reply, says
from task.llm.transport import Retries, new_session
from task.local.model.decision import REPLIED
from task.local.model.prompt import CONTINUE, DECIDE
from task.product.backends import SizedOllamaModel
from task.prompts import SYSTEM_PROMPT
from tests.support.local_tools import DEFAULT_TOOLS
from tests.support.mcp_processes import ServerProcess
from tests.support.ollama import MODEL, OllamaPeer, answer, ollama_process, scripted_peer

SMALL = {"parameters": 1_543_714_304}
QUESTION = [system(SYSTEM_PROMPT), user("What is 25 * 47?")]
REPLY = says('[{"tool":"reply"}]')


def calls(name: str, **arguments: object) -> Reply:
    return says(json.dumps([{"tool": name, "arguments": arguments}]))


@pytest.fixture(scope="module")
def process() -> Generator[ServerProcess]:
    with ollama_process() as running:
        yield running


@pytest.fixture
async def peer(process: ServerProcess) -> AsyncGenerator[OllamaPeer]:
    async with scripted_peer(process) as peer:
        yield peer


@pytest.fixture
async def server(peer: OllamaPeer) -> AsyncGenerator[OllamaServer]:
    async with new_session() as session:
        yield OllamaServer(session, peer.url, context=16_384, retries=Retries(1))


class Received(Accumulator):
    """An answer, and what it waited for."""

    def __init__(self) -> None:
        super().__init__()
        self.waited: list[str] = []


async def answered(
    server: OllamaServer,
    messages: Sequence[Message] = QUESTION,
    tools: Sequence[ToolSchema] = DEFAULT_TOOLS,
    options: ModelOptions | None = None,
) -> Received:
    received = Received()
    stream = SizedOllamaModel(server, MODEL).stream(messages, tools, options or ModelOptions())
    async with aclosing(stream) as deltas:
        async for delta in deltas:
            received.add(delta)
            if isinstance(delta, Waiting):
                received.waited.append(delta.text)
    return received


def conversation(body: dict[str, Any]) -> list[tuple[str, str]]:
    """A request's messages without what asks for the next step at their end, and what was decided."""
    ends = re.compile(f"(\n\n)?({re.escape(DECIDE)}|{re.escape(CONTINUE)}).*", re.DOTALL)
    messages = body["messages"]
    if messages[-1]["content"] == CONTINUE:
        *messages, decided, _ = messages
        assert decided == {"role": "assistant", "content": REPLIED}
    return [(message["role"], ends.sub("", message["content"])) for message in messages]


async def test_a_small_model_decides_by_a_schema_and_its_json_becomes_a_call(
    peer: OllamaPeer, server: OllamaServer
) -> None:
    await peer.script(calls("calculator", expression="25*47"), models={f"{MODEL}:latest": SMALL})
    received = await answered(server)
    (call,) = received.message().tool_calls
    assert (call.name, json.loads(call.function.arguments)) == ("calculator", {"expression": "25*47"})
    assert received.finish_reason == "tool_calls"
    (body,) = (await peer.seen(requests=1)).bodies
    assert "tools" not in body
    assert "anyOf" in body["format"]
    assert body["options"]["temperature"] == 0
    assert SYSTEM_PROMPT not in body["messages"][0]["content"]


async def test_the_second_turn_begins_with_all_of_the_first_one_so_that_the_servers_cache_is_hit(
    peer: OllamaPeer, server: OllamaServer
) -> None:
    await peer.script(
        calls("calculator", expression="25*47"), REPLY, REPLY, says("2350."),
        models={f"{MODEL}:latest": SMALL},
    )  # fmt: skip
    first = await answered(server)
    asked = [*QUESTION, first.message(), tool_message(first.message().tool_calls[0], "1175")]
    second = await answered(server, asked)
    assert second.text == "The result is **1175** (`25*47`)."
    await answered(server, [*asked, second.message(), user("And twice that?")])
    bodies = (await peer.seen(requests=4)).bodies
    decision, prose = (body["messages"] for body in bodies[-2:])
    assert prose[: len(decision)] == decision
    conversations = [conversation(body) for body in bodies]
    for before, after in pairwise(conversations):
        assert after[: len(before)] == before
    for messages in conversations:  # Ollama moves every system message to the beginning
        assert [role for role, _ in messages].count("system") == 1


@pytest.mark.parametrize(("reply", "calls"), [(-1.6, 0), (-1.8, 1)])
async def test_a_call_that_is_hardly_likelier_than_a_reply_is_a_reply(
    peer: OllamaPeer, server: OllamaServer, reply: float, calls: int
) -> None:
    choice = {"token": "calculator", "likeliest": {"calculator": -0.5, "reply": reply}}
    rest = {"text": '","arguments":{"expression":"3+4"}}]'}
    await peer.script(answer({"text": '[{"tool":"'}, choice, rest), says("Seven."), models={f"{MODEL}:latest": SMALL})
    received = await answered(server)
    assert (len(received.message().tool_calls), received.text) == (calls, "" if calls else "Seven.")
    assert received.usage
    assert received.usage.prompt_tokens > 0


@pytest.mark.parametrize(("models", "context"), [({f"{MODEL}:latest": SMALL}, 8192), ({}, 16_384)])
async def test_a_small_model_is_loaded_with_no_more_context_than_it_reads(
    peer: OllamaPeer, server: OllamaServer, models: dict[str, Any], context: int
) -> None:
    await peer.script(REPLY, says("1175."), models=models)
    await answered(server)
    seen = await peer.seen(requests=1)
    assert {body["options"]["num_ctx"] for body in seen.bodies} == {context}
    assert [size for _, size in seen.loads] == [context]
    assert (await server.model(MODEL)).context == context


def saying(text: str, *, pieces: int) -> Reply:
    """The text as so many deltas."""
    size = -(-len(text) // pieces)
    return says(*(text[place : place + size] for place in range(0, len(text), size)))


LEAKS = (
    ('JSON: [{"tool":"reply"}] Eleven.', "Eleven."),
    ('JSON:\n[ {"tool": "reply"} ]\n\nEleven.', "Eleven."),
    ('[{"tool":"reply"}]\nEleven.', "Eleven."),
    ('{"tool":"reply"}\nEleven.', "Eleven."),
    ('Eleven. [{"tool":"reply"}]', "Eleven. "),
    ('JSON: a list such as [{"tool":"x"}] or [1]', 'JSON: a list such as [{"tool":"x"}] or [1]'),
    ("Json [", "Json ["),
)


@pytest.mark.fault("local model: the decision inside the answer")
@pytest.mark.parametrize(("text", "shown"), LEAKS)
@pytest.mark.parametrize("pieces", [1, 3, 40])
async def test_a_decision_that_the_model_repeats_is_never_part_of_the_answer(
    peer: OllamaPeer, server: OllamaServer, text: str, shown: str, pieces: int
) -> None:
    await peer.script(REPLY, saying(text, pieces=pieces), models={f"{MODEL}:latest": SMALL})
    assert (await answered(server, [user("Five and six?")])).text.strip() == shown.strip()


@pytest.mark.fault("local model: the decision inside the answer")
@pytest.mark.parametrize(("text", "shown"), [('JSON: [{"tool":"reply"}] Eleven.', "Eleven."), ("Eleven.", "Eleven.")])
async def test_a_decision_without_the_schemas_shape_is_not_shown_either(
    peer: OllamaPeer, server: OllamaServer, text: str, shown: str
) -> None:
    await peer.script(says(text), models={f"{MODEL}:latest": SMALL})
    assert (await answered(server, [user("Five and six?")])).text == shown


TABLE = "| p | n |\n| --- | --- |\n| B | 7 |\n"
ABOUT = user("Which sold most?\n\nAttached files:\n- a.csv (text/csv): files/b/a.csv")


async def test_decision_and_answer_about_a_table_begin_the_same_and_so_does_the_next_question(
    peer: OllamaPeer, server: OllamaServer
) -> None:
    choice = json.dumps({"rows": "df", "result": "rows.nlargest(1, 'n')"}, separators=(",", ":"))
    await peer.script(says(choice), says("B."), says(choice), models={f"{MODEL}:latest": SMALL})
    [reading] = (await answered(server, [ABOUT])).message().tool_calls
    read = [ABOUT, assistant(calls=[reading]), tool_message(reading, TABLE)]
    [running] = (await answered(server, read)).message().tool_calls
    described = await answered(server, [*read, assistant(calls=[running]), tool_message(running, "**Output:**\nB 7")])
    again = [*read, assistant(described.text), user("And who sold least?"), assistant(calls=[reading])]
    await answered(server, [*again, tool_message(reading, TABLE)])
    decision, answer, other = (body["messages"] for body in (await peer.seen(requests=3)).bodies)
    assert described.text == "B."
    assert answer[: len(decision)] == decision
    assert answer[len(decision)] == {"role": "assistant", "content": choice}
    assert "B 7" in answer[-1]["content"]
    assert other[0] == decision[0]


async def test_a_large_model_gets_the_whole_prompt_and_the_schemas(peer: OllamaPeer, server: OllamaServer) -> None:
    await peer.script(says("1175."))
    await answered(server)
    (body,) = (await peer.seen(requests=1)).bodies
    assert len(body["tools"]) == len(DEFAULT_TOOLS)
    assert body["messages"][0]["content"] == SYSTEM_PROMPT


@pytest.mark.parametrize(("parameters", "small"), [(3_999_999_999, True), (4_000_000_000, False)])
async def test_the_bound_between_small_and_large_is_four_billion_parameters(
    peer: OllamaPeer, server: OllamaServer, parameters: int, small: bool
) -> None:
    await peer.script(models={f"{MODEL}:latest": {"parameters": parameters}})
    await answered(server)
    assert ("format" in (await peer.seen(requests=1)).bodies[0]) is small


async def test_a_small_model_without_tools_answers_without_them_and_the_trace_says_so(
    peer: OllamaPeer, server: OllamaServer
) -> None:
    await peer.script(says("1175."), models={f"{MODEL}:latest": {**SMALL, "capabilities": ["completion"]}})
    received = await answered(server)
    assert received.text == "1175."
    assert received.warnings == [f"the tools had no effect: {MODEL} cannot call tools"]
    assert len((await peer.seen(requests=1)).bodies) == 1


@pytest.mark.parametrize(("effort", "think"), [(None, False), ("high", "high")])
async def test_a_small_model_thinks_only_when_it_is_asked_to(
    peer: OllamaPeer, server: OllamaServer, effort: str | None, think: bool | str
) -> None:
    thinking = {**SMALL, "capabilities": ["completion", "tools", "thinking"]}
    await peer.script(REPLY, says("1175."), models={f"{MODEL}:latest": thinking})
    await answered(server, options=ModelOptions(reasoning_effort=effort))
    decision, prose = (await peer.seen(requests=2)).bodies
    assert (decision["think"], prose["think"]) == (False, think)


async def test_a_small_model_of_the_cloud_gets_everything_because_no_schema_constrains_it(
    peer: OllamaPeer, server: OllamaServer
) -> None:
    await peer.script(says("1175."), models={f"{MODEL}:latest": {**SMALL, "remote_host": "https://ollama.com:443"}})
    await answered(server)
    (body,) = (await peer.seen(requests=1)).bodies
    assert len(body["tools"]) == len(DEFAULT_TOOLS)


async def test_a_model_that_is_not_loaded_is_waited_for_and_only_once(peer: OllamaPeer, server: OllamaServer) -> None:
    await peer.script(REPLY, says("1175."), REPLY, says("1175."), models={f"{MODEL}:latest": SMALL})
    first, second = await answered(server), await answered(server)
    assert first.waited == [f"Ollama is loading the model {MODEL}"]
    assert second.waited == []
    assert first.usage == second.usage != Usage()
