"""A real Dapr sidecar: what it does with our requests, which the peer of the other tests only imitates."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from task.conversation.messages import Message, assistant, system, tool_message, user
from task.errors import ProviderError
from task.llm.base import Accumulator, ModelOptions, ToolSchema
from task.llm.dapr import DaprServer
from task.llm.scripted import says, wants
from task.llm.transport import Retries
from task.settings import Settings
from tests.live_dapr.conftest import ADDRESS, AGENT_PORT, PROVIDER_PORT, TOKEN
from tests.support.agent import running_agent
from tests.support.documented import tool_calling_examples
from tests.support.http_api import NOWHERE
from tests.support.upstream import Item, Upstream, hanging, openai_upstream
from tests.support.upstream_wire import Received

pytestmark = [pytest.mark.live_dapr, pytest.mark.system, pytest.mark.timeout(120)]

TOOLS: list[ToolSchema] = tool_calling_examples()["Multiple Tools Array"]
WEATHER = wants("get_weather", location="San Francisco, CA")


def provider(*items: Item, **more: Any) -> AbstractAsyncContextManager[Upstream]:
    """What the component `provider` points at."""
    return openai_upstream(*items, port=PROVIDER_PORT, **more)


@asynccontextmanager
async def sidecar(component: str = "provider", **more: Any) -> AsyncGenerator[DaprServer]:
    server = DaprServer(ADDRESS, TOKEN, component=component, **more)
    try:
        yield server
    finally:
        await server.close()


async def answered(
    server: DaprServer, messages: Sequence[Message], tools: Sequence[ToolSchema] = (), **options: Any
) -> Accumulator:
    received = Accumulator()
    async for delta in server.chat_model("any").stream(messages, tools, ModelOptions(**options)):
        received.add(delta)
    return received


async def test_the_designs_conversation_runs_with_its_tools_word_for_word() -> None:
    """Checks 1, 2, 3: a call, its result and the answer; the whole history is sent again."""
    async with provider(WEATHER, says("It is sunny.")) as upstream, sidecar() as server:
        question = [system("Be brief."), user("What's the weather like in San Francisco?")]
        asked = (await answered(server, question, TOOLS)).message()
        [call] = asked.tool_calls
        result = tool_message(call, '{"temperature": 72}')
        final = (await answered(server, [*question, asked, result], TOOLS)).message()
        first, second = upstream.requests
    assert (call.name, json.loads(call.function.arguments)) == ("get_weather", {"location": "San Francisco, CA"})
    assert final.content == "It is sunny."
    assert [item["function"] for item in first.body["tools"]] == [item["function"] for item in TOOLS]
    assert [message["role"] for message in second.messages] == ["system", "user", "assistant", "tool"]
    assert second.messages[2]["tool_calls"] == [call.as_dict()]
    assert second.messages[3]["tool_call_id"] == call.id


async def test_a_deadline_and_a_cancellation_reach_the_provider() -> None:
    """Check 10."""
    async with provider(then=hanging(says("?"), chunks=0)) as upstream:
        async with sidecar(seconds=1.0, retries=Retries(1)) as server:
            with pytest.raises(ProviderError):
                await answered(server, [user("?")])
        await upstream.disconnected(1, within=30)
        async with sidecar() as server:
            asking = asyncio.create_task(answered(server, [user("?")]))
            await upstream.received(2, within=30)
            asking.cancel()
            await asyncio.wait({asking})
            await upstream.disconnected(2, within=30)
    assert asking.cancelled()


async def test_a_long_history_and_every_script_arrive_as_they_are() -> None:
    words = "größte 東京 👩‍👩‍👧 \u202eabc\u0000\ttab"
    history = [turn for number in range(2000) for turn in (user(f"{words} {number}"), assistant(f"{number}"))]
    async with provider(says(words)) as upstream, sidecar() as server:
        answer = await answered(server, [*history, user(words)])
        sent = upstream.requests[0].messages
    assert answer.text == words
    assert [message["content"] for message in sent] == [message.text() for message in [*history, user(words)]]


async def test_the_agent_is_the_model_of_a_dapr_application(tmp_path: Path) -> None:
    """The component `agent` points at our own `/v1`."""

    def of_both(request: Received) -> Any:
        return wants("calculator", expression="6*7") if request.messages[-1]["role"] == "user" else says("It is 42.")

    values = {
        "backend": "openai", "openai_base_url": f"http://127.0.0.1:{PROVIDER_PORT}/v1", "openai_api_key": "sk-test",
        "deployment_name": "test-model", "data_dir": tmp_path / "agent", "dial_endpoint": NOWHERE,
    }  # fmt: skip
    asks: Callable[[Received], Any] = of_both
    async with (
        provider(asks, asks, WEATHER, says("Sunny.")),
        running_agent(Settings.model_validate(values), port=AGENT_PORT),
        sidecar("agent") as server,
    ):
        own = await answered(server, [user("6*7?")])
        asked = (await answered(server, [user("Weather?")], TOOLS)).message()
        [call] = asked.tool_calls
        final = await answered(server, [user("Weather?"), asked, tool_message(call, "sunny")], TOOLS)
    assert own.text == "It is 42."
    assert (call.name, final.text) == ("get_weather", "Sunny.")
