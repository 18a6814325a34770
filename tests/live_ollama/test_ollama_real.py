"""A real Ollama: what it does with our requests, which the peer of the other tests only imitates."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any

import aiohttp
import pytest

from task.conversation.messages import Message, system, tool_message, user
from task.errors import ProviderError
from task.llm.base import Accumulator, ModelOptions, TextDelta, ToolSchema
from task.llm.ollama import OllamaServer, context_for, machine_memory
from task.llm.transport import Retries, new_session
from tests.live_ollama.conftest import ADDRESS, MODEL

pytestmark = [pytest.mark.live_ollama, pytest.mark.system, pytest.mark.timeout(1800)]
CONTEXT = context_for(machine_memory())  # as the product has it: another one would load the model again
CAPITAL: ToolSchema = {
    "type": "function",
    "function": {
        "name": "capital_of",
        "description": "Look up the capital of a country.",
        "parameters": {"type": "object", "properties": {"country": {"type": "string"}}, "required": ["country"]},
    },
}
COLD = ModelOptions(temperature=0, seed=1, max_tokens=60)


@pytest.fixture
async def server() -> AsyncGenerator[OllamaServer]:
    async with new_session(read_seconds=900) as session:
        yield OllamaServer(session, str(ADDRESS), context=CONTEXT, retries=Retries(1))


async def answered(
    server: OllamaServer, *messages: Message, tools: Sequence[ToolSchema] = (), options: ModelOptions = COLD
) -> Accumulator:
    received = Accumulator()
    async with aclosing(server.chat_model(str(MODEL)).stream(messages, tools, options)) as deltas:
        async for delta in deltas:
            received.add(delta)
    return received


async def asked_directly(path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    async with aiohttp.ClientSession() as session:
        method = "GET" if body is None else "POST"
        async with session.request(method, f"{ADDRESS}{path}", json=body) as response:
            return await response.json(content_type=None)


async def test_the_context_in_force_is_ours_and_stays(server: OllamaServer) -> None:
    await asked_directly("/api/chat", {"model": MODEL, "messages": [], "keep_alive": 0})
    first = await answered(server, user("Say yes."))
    (loaded,) = [item for item in (await asked_directly("/api/ps"))["models"] if item["name"] == MODEL]
    again = await answered(server, user("Say yes."))
    assert (first.warnings, again.warnings) == ([], [])
    assert loaded["context_length"] == (await server.model(str(MODEL))).context


async def test_a_call_is_asked_for_and_its_result_accepted(server: OllamaServer) -> None:
    question = [system("Use the tool for every question about capitals."), user("What is the capital of Atlantis?")]
    asked = (await answered(server, *question, tools=[CAPITAL])).message()
    assert [call.name for call in asked.tool_calls] == ["capital_of"]
    result = tool_message(asked.tool_calls[0], "The capital is Poseidonis.")
    final = (await answered(server, *question, asked, result, tools=[CAPITAL])).message()
    assert final.content or final.tool_calls  # what it says is up to the model


async def test_a_prompt_that_is_too_long_is_refused_in_words_that_the_window_knows(server: OllamaServer) -> None:
    with pytest.raises(ProviderError) as caught:
        await answered(server, user("word " * 2 * CONTEXT))
    assert (caught.value.status_code, caught.value.code) == (400, "context_length_exceeded")


async def test_an_answer_that_is_left_ends_and_the_next_one_comes_at_once(server: OllamaServer) -> None:
    endless = ModelOptions(temperature=0, seed=1, max_tokens=3000)
    story = user("Count from 1 to 2000, one number a line.")
    async with aclosing(server.chat_model(str(MODEL)).stream([story], (), endless)) as deltas:
        async for delta in deltas:
            if isinstance(delta, TextDelta):
                break
    assert (await answered(server, user("Say yes."))).text, "it did not wait for three thousand tokens"


async def test_structured_output_has_its_shape(server: OllamaServer) -> None:
    schema = {"type": "object", "properties": {"capital": {"type": "string"}}, "required": ["capital"]}
    shape = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
    received = await answered(
        server, user("The capital of France?"), options=ModelOptions(temperature=0, extra={"response_format": shape})
    )
    assert '"capital"' in received.text
    assert received.text.lstrip().startswith("{")


async def test_a_schema_with_everything_that_ollama_does_not_know_is_accepted(server: OllamaServer) -> None:
    parameters = {
        "type": "object",
        "properties": {
            "country": {"$ref": "#/$defs/Country"},
            "year": {"type": ["integer", "null"], "default": 2024, "minimum": 1},
            "how": {"oneOf": [{"const": "short"}, {"const": "long"}]},
            "anything": True,
        },
        "required": ["country"],
        "$defs": {"Country": {"type": "string", "minLength": 2}},
    }
    tool = {"type": "function", "function": {**CAPITAL["function"], "parameters": parameters}}
    received = await answered(server, user("What is the capital of Atlantis?"), tools=[tool])
    assert received.finish_reason
