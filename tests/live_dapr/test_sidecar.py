"""A real Dapr sidecar: what it does with our requests, which the peer of the other tests only imitates."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import Any, Literal

import aiohttp
import pytest
from dapr.aio.clients import DaprClient

from task.coding.planner import Plan, planned
from task.conversation.messages import Message, assistant, system, tool_message, user
from task.errors import ProviderError
from task.llm.base import Accumulator, ModelOptions, ModelWarning, ToolSchema
from task.llm.conversation_input import ConversationInput
from task.llm.dapr import DaprServer
from task.llm.dapr_sdk import alpha1, alpha2, answer_of
from task.llm.scripted import says, wants
from task.llm.transport import Retries
from task.product import opened
from task.settings import Settings
from task.tools.base import in_format
from task.tools.declare import tool
from task.tools.models import Caller, nobody
from task.tools.toolset import ToolSet
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
MAYBE = {"anyOf": [{"type": "integer"}, {"type": "null"}]}
PEOPLE = {"type": "object", "properties": {"name": {"type": "string"}, "age": MAYBE}}


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


async def test_inputs_go_through_the_sdks_own_client_with_and_without_tools() -> None:
    """Check 5."""
    question = ConversationInput("What's the weather?", "user", tools=list(map(dict, TOOLS)))
    async with provider(says("Hello."), WEATHER, says("Sunny.")) as upstream, DaprClient(ADDRESS) as client:
        old = await client.converse_alpha1("provider", alpha1([ConversationInput("Hi.", "user")]))
        inputs, tools = alpha2([question])
        asked = answer_of(await client.converse_alpha2("provider", inputs, tools=tools))
        results = await ToolSet(forecast).execute_async(asked.as_dict())
        inputs, tools = alpha2([question, asked, *map(ConversationInput.from_dict, results)])
        final = answer_of(await client.converse_alpha2("provider", inputs, tools=tools))
        sent = upstream.requests
    assert (old.outputs[0].result, final.content) == ("Hello.", "Sunny.")
    assert sent[0].messages == [{"role": "user", "content": "Hi."}]
    assert [message["role"] for message in sent[2].messages] == ["user", "assistant", "tool"]
    assert "There is no tool 'get_weather'" in sent[2].messages[2]["content"]


async def test_several_calls_come_together_and_those_without_an_id_get_one() -> None:
    """Check 6."""
    both = wants("get_weather", location="Rome") & wants("get_weather", location="Oslo")
    async with provider(both) as upstream, sidecar() as server:
        message = (await answered(server, [user("?")], TOOLS)).message()
        assert len(upstream.requests) == 1
    assert [json.loads(call.function.arguments)["location"] for call in message.tool_calls] == ["Rome", "Oslo"]
    assert len({call.id for call in message.tool_calls}) == 2


async def test_echo_whose_arguments_are_no_json_ends_in_a_bounded_loop(tmp_path: Path) -> None:
    """Check 7."""
    async with agent(tmp_path, "echo", limits={"steps": 3}) as url:
        body = json.loads(await posted(url, {"messages": [said("Hello")]}))
    assert body["choices"][0]["finish_reason"] in ("stop", "length")
    assert "Hello" in body["choices"][0]["message"]["content"]


@pytest.mark.parametrize(
    ("choice", "sent", "offered"),
    [
        (None, "auto", 2), ("auto", "auto", 2), ("none", "none", 2), ("required", "required", 2),
        ({"type": "function", "function": {"name": "get_weather"}}, "required", 1),
    ],
)  # fmt: skip
async def test_a_tool_choice_reaches_the_provider(choice: Any, sent: str, offered: int) -> None:
    """Check 8."""
    async with provider(says("ok")) as upstream, sidecar() as server:
        await answered(server, [user("?")], TOOLS, tool_choice=choice)
        body = upstream.requests[0].body
    assert (body["tool_choice"], len(body["tools"])) == (sent, offered)


async def test_a_choice_that_names_no_tool_and_a_component_that_is_not_there_are_refused_in_words() -> None:
    async with sidecar() as server:
        with pytest.raises(ProviderError, match="no_such"):
            await answered(server, [user("?")], TOOLS, tool_choice="no_such")
    async with sidecar("nowhere") as server:
        with pytest.raises(ProviderError, match=r"no conversation component nowhere\. It has "):
            await answered(server, [user("?")])


async def test_a_wrong_address_is_named_within_five_seconds_while_the_event_loop_works() -> None:
    """Check 9, without restarting somebody's sidecar."""
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    server = DaprServer("127.0.0.1:9", component="provider")
    async with asyncio.timeout(30):
        with pytest.raises(ProviderError, match=r"127\.0\.0\.1:9"):
            await answered(server, [user("?")])
    counting.cancel()
    await server.close()
    assert turns > 100


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
    assert ModelWarning("max_tokens had no effect: this version of Dapr does not carry it").text in received.warnings


async def test_a_response_format_with_optional_values_reaches_the_provider() -> None:
    """Check 13."""
    shape = {"type": "json_schema", "json_schema": {"name": "people", "schema": PEOPLE}}
    async with provider(says("{}")) as upstream, sidecar() as server:
        await answered(server, [user("?")], extra={"response_format": shape})
        sent = upstream.requests[0].body["response_format"]
    assert (sent["type"], sent["json_schema"]["name"]) == ("json_schema", "people")
    properties = sent["json_schema"]["schema"]["properties"]
    assert (properties["name"]["type"], properties["age"]["type"]) == ("string", "integer")


async def test_personal_data_is_removed_from_one_message_or_from_the_answer() -> None:
    """Check 14."""
    address = "Write to ann@example.com"
    async with provider(says("ok"), says(address), says(address)) as upstream, sidecar() as server:
        marked = replace(user(address), scrub_pii=True)
        await answered(server, [user(address), assistant("?"), marked])
        scrubbed = await answered(server, [user("?")], extra={"scrub_pii": True})
        plain = await answered(server, [user("?")])
        sent = [message["content"] for message in upstream.requests[0].messages]
    assert sent == [address, "?", "Write to <EMAIL_ADDRESS>"]
    assert (scrubbed.text, plain.text) == ("Write to <EMAIL_ADDRESS>", address)


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


async def test_the_planner_gets_a_plan(tmp_path: Path) -> None:
    plan: dict[str, Any] = {"plan": ["Read it."], "coder_prompt": "Do it.", "tests": ["pytest -q"]}
    tree = Settings.model_validate(settings_of(tmp_path, "provider"))
    async with provider(says(json.dumps(plan))) as upstream:
        services, planner = opened(tree, tools=())
        try:
            made, _ = await planned(planner, Caller("", nobody), "Do it.")
        finally:
            await services.close()
        shape = upstream.requests[0].body["response_format"]["json_schema"]["schema"]
    assert made == Plan(**plan)
    assert set(shape["properties"]) == set(plan)


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
