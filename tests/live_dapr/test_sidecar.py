"""A real Dapr sidecar: what it does with our requests, which the peer of the other tests only imitates."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from enum import Enum
from pathlib import Path
from typing import Any, Literal

import aiohttp
import pytest

from task.conversation.messages import Message, assistant, system, tool_message, user
from task.errors import ProviderError
from task.llm.base import Accumulator, ModelOptions, ToolSchema
from task.llm.dapr import DaprServer
from task.llm.scripted import says, wants
from task.llm.transport import Retries
from task.settings import Settings
from task.tools.base import in_format
from task.tools.declare import tool
from tests.live_dapr.conftest import ADDRESS, AGENT_PORT, PROVIDER_PORT, TOKEN
from tests.support.agent import running_agent
from tests.support.documented import tool_calling_examples
from tests.support.http_api import NOWHERE, said
from tests.support.upstream import RESET, Answer, Item, Upstream, hanging, http_error, openai_upstream
from tests.support.upstream_wire import Received

pytestmark = [pytest.mark.live_dapr, pytest.mark.system, pytest.mark.timeout(120)]

EXAMPLES = tool_calling_examples()
TOOLS: list[ToolSchema] = EXAMPLES["Multiple Tools Array"]
QUICK = Retries(3, pause=0.01)
WEATHER = wants("get_weather", location="San Francisco, CA")


class Unit(Enum):
    CELSIUS = "c"
    FAHRENHEIT = "f"


@tool
def forecast(place: str, unit: Unit, style: Literal["short", "long"] = "short", days: int | None = None) -> str:
    """Forecast the weather.

    Args:
        place: Where.
        days: For so many days.
    """
    return f"{place} {unit} {style} {days}"


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


def settings_of(folder: Path, component: str) -> dict[str, Any]:
    """Those of an agent whose model is the component."""
    return {
        "backend": "dapr", "dapr_grpc_endpoint": ADDRESS, "dapr_api_token": TOKEN or None,
        "dapr": {"component": component}, "data_dir": folder / "agent", "dial_endpoint": NOWHERE,
        "deployment_name": "any",
    }  # fmt: skip


def agent(folder: Path, component: str, **more: Any) -> AbstractAsyncContextManager[str]:
    """An agent with these settings; its address."""
    return running_agent(Settings.model_validate({**settings_of(folder, component), **more}))


async def posted(url: str, body: dict[str, Any]) -> str:
    async with aiohttp.ClientSession() as session, session.post(f"{url}/v1/chat/completions", json=body) as response:
        return await response.text()


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


async def test_our_api_answers_over_dapr_in_the_designs_words_streaming_or_not(tmp_path: Path) -> None:
    """Checks 4 and 11."""
    request = EXAMPLES["Tool Call Request Message"]
    replies = wants("get_weather", location="New York"), says("Sunny."), says("Sunny.")
    async with provider(*replies), agent(tmp_path, "provider") as url:
        called = json.loads(await posted(url, {"messages": [request]}))["choices"][0]["message"]
        plain = json.loads(await posted(url, {"messages": [said("?")]}))["choices"][0]["message"]
        stream = await posted(url, {"messages": [said("?")], "stream": True})
    [expected] = EXAMPLES["Tool Call Response Message"]["tool_calls"]
    [made] = called["tool_calls"]
    assert called["content"] is None
    assert {**made, "id": expected["id"]} == {
        **expected, "function": {**expected["function"], "arguments": made["function"]["arguments"]},
    }  # fmt: skip
    assert json.loads(made["function"]["arguments"]) == {"location": "New York"}
    assert plain["content"] == "Sunny."
    chunks = [json.loads(line[6:]) for line in stream.splitlines() if line.startswith("data: {")]
    texts = [chunk["choices"][0]["delta"].get("content") for chunk in chunks if chunk["choices"]]
    assert [text for text in texts if text] == ["Sunny."]
    assert stream.rstrip().endswith("data: [DONE]")


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


async def test_options_that_dapr_does_not_carry_do_not_arrive_and_a_temperature_does() -> None:
    """Check 12."""
    async with provider(says("ok"), says("ok")) as upstream, sidecar() as server:
        received = await answered(server, [user("?")], temperature=0.7, top_p=0.5, max_tokens=9, seed=1, stop=["x"])
        await answered(server, [user("?")])
        first, second = [request.body for request in upstream.requests]
    assert set(first) == {"model", "messages", "temperature"}
    assert (first["temperature"], second["temperature"]) == (0.7, 0)
    assert "max_tokens has no effect before Dapr 1.19" in received.warnings


async def test_the_schema_of_a_function_is_the_same_behind_the_sidecar() -> None:
    """Check 15."""
    async with provider(says("ok")) as upstream, sidecar() as server:
        await answered(server, [user("?")], [forecast.schema])
        [sent] = upstream.requests[0].body["tools"]
    assert sent == forecast.schema
    assert sent["function"] == in_format(forecast.schema, "dapr")["function"]


@pytest.mark.parametrize(
    ("fault", "status"),
    [(http_error(429, "Slow down"), 429), (http_error(500, "Oh"), 500), (Answer((RESET,)), None)],
)
async def test_what_a_provider_fails_with_is_tried_again(fault: Item, status: int | None) -> None:
    async with provider(fault, says("ok"), fault, fault, fault) as upstream, sidecar(retries=QUICK) as server:
        assert (await answered(server, [user("?")])).text == "ok"
        assert len(upstream.requests) == 2
        with pytest.raises(ProviderError) as caught:
            await answered(server, [user("?")])
    assert caught.value.status_code == status


async def test_a_prompt_that_is_too_long_is_refused_in_words_that_the_window_knows() -> None:
    long = http_error(400, "This model's maximum context length is 8192 tokens", code="context_length_exceeded")
    async with provider(long), sidecar() as server:
        with pytest.raises(ProviderError) as caught:
            await answered(server, [user("?")])
        assert caught.value.code == "context_length_exceeded"
        with pytest.raises(ProviderError) as caught:
            await answered(server, [user("x" * 5 * 2**20)])
        assert "--max-body-size" in (caught.value.display_message or "")


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
