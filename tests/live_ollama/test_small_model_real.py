"""A real Ollama through the product's model of it: loading is waited for, the cache is hit, decisions are right."""

import asyncio
import json
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

import aiohttp
import pytest

from scripts.local_model import PROMPTS, verdict
from task.conversation.messages import Message, assistant, system, user
from task.llm.base import ModelOptions, Waiting
from task.llm.ollama import OllamaServer, context_for, machine_memory
from task.llm.ollama_request import chat_body
from task.llm.transport import Retries, new_session
from task.local.model.prompt import predicted_prefix
from task.product.backends import SizedOllamaModel
from tests.live_ollama.conftest import ADDRESS, MODEL
from tests.support.local_tools import DEFAULT_TOOLS

pytestmark = [pytest.mark.live_ollama, pytest.mark.system, pytest.mark.timeout(3600)]
ONE_WORD = ModelOptions(temperature=0, max_tokens=1)


@pytest.fixture
async def server() -> AsyncGenerator[OllamaServer]:
    async with new_session(read_seconds=900) as session:
        yield OllamaServer(session, str(ADDRESS), context=context_for(machine_memory()), retries=Retries(1))


async def posted(body: bytes) -> dict[str, int]:
    """The last line of the answer."""
    async with aiohttp.ClientSession() as session, session.post(f"{ADDRESS}/api/chat", data=body) as response:
        return json.loads((await response.text()).splitlines()[-1])


async def waited(model: SizedOllamaModel) -> list[str]:
    """What a short question waits for."""
    async with aclosing(model.stream([user("Say yes.")], (), ONE_WORD)) as deltas:
        return [delta.text async for delta in deltas if isinstance(delta, Waiting)]


async def test_a_model_that_is_not_loaded_is_waited_for_once(server: OllamaServer) -> None:
    model = SizedOllamaModel(server, str(MODEL))
    described = await server.model(str(MODEL))
    await posted(chat_body(described, (), (), ModelOptions(), keep_alive="0"))
    async with asyncio.timeout(60):  # the server answers before the model is gone
        while await server.is_loaded(described):
            await asyncio.sleep(0.1)
    assert await waited(model) == [f"Ollama is loading the model {MODEL}"]
    assert await waited(model) == []


async def test_the_second_turn_reads_only_what_is_new(server: OllamaServer) -> None:
    described = await server.model(str(MODEL))

    async def reading(messages: Sequence[Message]) -> int:
        return (await posted(chat_body(described, messages, (), ONE_WORD)))["prompt_eval_duration"]

    await reading([user("Something else.")])  # loads the model, and leaves nothing of the beginning in the cache
    first = [system(predicted_prefix().text()), user("Who wrote Emma?")]
    cold = await reading(first)
    assert await reading([*first, assistant("Jane Austen."), user("And Faust?")]) < cold / 2


async def test_of_forty_fresh_questions_a_small_model_decides_thirty_four_right(server: OllamaServer) -> None:
    if not (await server.model(str(MODEL))).is_small:
        pytest.skip(f"{MODEL} is no small model")
    model = SizedOllamaModel(server, str(MODEL))
    verdicts = [await verdict(model, prompt, DEFAULT_TOOLS) for prompt in PROMPTS]
    wrong = [(item.prompt.text, item.decided) for item in verdicts if not item.right]
    assert len(wrong) <= 6, wrong
