"""Programs: `aidial-client` and the `openai` client pointed at local Core get what a person gets."""

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from task.llm.scripted import Reply, says, wants
from tests.support.agent import running_agent
from tests.support.chat_reader import chat_reader
from tests.support.core import RunningCore, local_core
from tests.support.ports import free_port
from tests.support.product import DEPLOYMENT, Product, core_config, product, settings_of
from tests.support.upstream import Received, openai_upstream

QUESTION: Any = {"role": "user", "content": "25*47?"}
ANSWER = "It is 1175."


def model(received: Received) -> Reply:
    return (
        says("It is ", "1175.") if received.messages[-1]["role"] == "tool" else wants("calculator", expression="25*47")
    )


@pytest.fixture
async def running(tmp_path: Path) -> AsyncGenerator[Product]:
    async with product(then=model, tmp_path=tmp_path) as started:
        yield started


async def test_aidial_client_asynchronously(running: Product) -> None:
    from aidial_client import AsyncDial

    async with AsyncDial(base_url=running.core.url, api_key="key-one") as client:
        whole = await client.chat.completions.create(deployment_name=DEPLOYMENT, messages=[QUESTION], stream=False)
        stream = await client.chat.completions.create(deployment_name=DEPLOYMENT, messages=[QUESTION], stream=True)
        pieces = [chunk.choices[0].delta.content async for chunk in stream if chunk.choices]
    assert whole.choices[0].message.content == ANSWER
    assert "".join(filter(None, pieces)) == ANSWER


def azure_url(running: Product) -> str:
    return f"{running.core.url}/openai/deployments/{DEPLOYMENT}"


async def test_openai_client_synchronously(running: Product) -> None:
    import openai

    def ask() -> tuple[str | None, str]:
        with openai.AzureOpenAI(azure_endpoint=running.core.url, api_key="key-one", api_version="2024-02-01") as client:
            whole = client.chat.completions.create(model=DEPLOYMENT, messages=[QUESTION])
            stream = client.chat.completions.create(model=DEPLOYMENT, messages=[QUESTION], stream=True)
            pieces = [chunk.choices[0].delta.content for chunk in stream if chunk.choices]
        return whole.choices[0].message.content, "".join(filter(None, pieces))

    assert await asyncio.wait_for(asyncio.to_thread(ask), 20) == (ANSWER, ANSWER)


async def test_a_failure_reaches_a_program_as_an_error_it_can_name(tmp_path: Path) -> None:
    import openai

    async with product(tmp_path=tmp_path) as p:
        client = openai.AsyncOpenAI(base_url=azure_url(p), api_key="key-one", max_retries=0)
        with pytest.raises(openai.APIStatusError) as failure:
            await client.chat.completions.create(model=DEPLOYMENT, messages=[QUESTION])
        await client.close()
    assert failure.value.status_code == 500
    assert failure.value.code == "script_exhausted"


@pytest.mark.fault("compose: Core restarted under the agent")
async def test_an_agent_answers_through_a_core_that_was_away_and_one_that_was_restarted(tmp_path: Path) -> None:
    port, core_port = free_port(), free_port()
    async with openai_upstream(then=says("Here.")) as upstream:
        config = core_config(port, upstream.endpoint)
        async with local_core(config, tmp_path, port=core_port) as known:
            settings = settings_of(known, upstream, tmp_path, {})
        async with running_agent(settings, port=port):
            for question in ("Before?", "After?"):
                async with local_core(config, tmp_path, port=core_port) as core:
                    assert await answer(core, question) == "Here."


async def answer(core: RunningCore, question: str) -> str:
    async with chat_reader(core.url, "key-one") as reader:
        return (await reader.ask(question)).content
