"""A Dapr application whose model is this agent, and the design's inputs through the client of Dapr's own SDK."""

import asyncio
import os
import sys
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from dapr.aio.clients import DaprClient

from task.conversation.messages import assistant, system, tool_message, user
from task.errors import ProviderError
from task.llm.base import Accumulator, ModelOptions
from task.llm.dapr import DaprServer
from task.llm.dapr_sdk import alpha1, alpha2, answer_of
from task.llm.scripted import says, wants
from task.llm.transport import Retries
from task.reference.conversation_input import ConversationInput
from task.tools.toolset import ToolSet
from tests.support.dapr import MODEL, DaprPeer, answer, dapr_process, in_openais_shape, scripted_peer
from tests.support.documented import tool_calling_examples
from tests.support.http_api import Api, http_api, key_of
from tests.support.mcp_processes import ServerProcess
from tests.support.tool_calls import call_of

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "models.md").read_text(encoding="utf-8").partition("the model of a Dapr application")[2]
COMPONENT: Any = yaml.safe_load(PAGE.partition("```yaml\n")[2].partition("```")[0])
PROGRAM = PAGE.partition("```python\n")[2].partition("```")[0]
Process = tuple[ServerProcess, int]


@pytest.fixture(scope="module")
def process() -> Generator[Process]:
    with dapr_process() as running:
        yield running


@asynccontextmanager
async def sidecar_before(api: Api, key: str, process: Process) -> AsyncGenerator[DaprPeer]:
    """A sidecar with the documented component, which has this agent's address and this key."""
    given = {item["name"]: item["value"] for item in COMPONENT["spec"]["metadata"]}
    name, endpoint = COMPONENT["metadata"]["name"], {"url": f"{api.url}/v1", "model": given["model"], "key": key}
    components = {name: COMPONENT["spec"]["type"]}
    async with scripted_peer(process, components=components, endpoints={name: endpoint}) as peer:
        yield peer


async def run_program(peer: DaprPeer, folder: Path) -> str:
    """What the documented program prints."""
    variables = {"DAPR_GRPC_ENDPOINT": peer.address, "DAPR_HTTP_ENDPOINT": peer.url, "PYTHONPATH": str(ROOT)}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PROGRAM, cwd=folder, env={**os.environ, **variables},
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    try:
        printed, _ = await asyncio.wait_for(process.communicate(), 45)
    finally:
        if process.returncode is None:
            process.kill()
    return printed.decode()


async def asked(peer: DaprPeer, *messages: Any, tools: Any = (), **options: Any) -> Accumulator:
    server, received = DaprServer(peer.address, retries=Retries(1)), Accumulator()
    try:
        async for delta in server.chat_model("any").stream(messages, tools, ModelOptions(**options)):
            received.add(delta)
    finally:
        await server.close()
    return received


def roles(request: Any) -> list[str]:
    return [message["role"] for message in request.messages if message["role"] != "system"]


async def test_the_documented_program_runs_with_its_own_tools_and_a_key(process: Process, tmp_path: Path) -> None:
    key = await key_of("ann", tmp_path)
    script = (
        wants("calculator", expression="72-2") & wants("get_weather", location="NYC"),
        says("It is sunny at 70 degrees."),
    )
    async with (
        http_api(*script, tmp_path=tmp_path, http={"mode": "keys"}) as api,
        sidecar_before(api, key, process) as peer,
    ):
        printed = await run_program(peer, tmp_path)
        first, second = api.upstream.requests
        traces = (await api.with_key(key).get("/traces")).json["traces"]
    assert printed == "It is sunny at 70 degrees.\n"
    assert {"calculator", "get_weather"} <= set(first.tools)
    assert roles(second) == ["user", "assistant", "tool", "tool"]
    ours, theirs = [message["content"] for message in second.messages[-2:]]
    assert ours == "70"
    assert '"condition":"sunny"' in theirs
    assert len(traces) == 2


@pytest.mark.fault("tool calling: a Dapr application with a wrong key")
async def test_with_a_wrong_key_the_application_learns_that(process: Process, tmp_path: Path) -> None:
    async with (
        http_api(tmp_path=tmp_path, http={"mode": "keys"}) as api,
        sidecar_before(api, "dga-wrong", process) as peer,
    ):
        with pytest.raises(ProviderError) as caught:
            await asked(peer, user("?"))
        assert api.upstream.requests == []
    assert caught.value.status_code == 401
    assert "dga-wrong" not in f"{caught.value} {caught.value.display_message} {caught.value.text}"


EXAMPLES = tool_calling_examples()
TOOLS = EXAMPLES["Multiple Tools Array"]


def get_weather(location: str) -> dict[str, Any]:
    """Get current weather conditions for a location"""
    return {"temp": 75, "condition": "sunny", "place": location}


@asynccontextmanager
async def client_of(peer: DaprPeer, monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[DaprClient]:
    """The SDK's client; it waits for the health path of the sidecar before its first call."""
    monkeypatch.setattr("dapr.conf.settings.DAPR_HTTP_ENDPOINT", peer.url)
    async with DaprClient(peer.address) as client:
        yield client


async def test_the_designs_conversation_runs_over_the_sdks_client(
    process: tuple[ServerProcess, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    question = ConversationInput(content="What's the weather like in San Francisco?", role="user", tools=TOOLS)
    async with (
        scripted_peer(process, wants("get_weather", location="San Francisco, CA"), says("It is sunny.")) as peer,
        client_of(peer, monkeypatch) as client,
    ):
        inputs, tools = alpha2([question])
        asked = answer_of(await client.converse_alpha2(MODEL, inputs, tools=tools))
        results = [
            ConversationInput.from_dict(result) for result in await ToolSet(get_weather).execute_async(asked.as_dict())
        ]
        inputs, tools = alpha2([question, asked, *results])
        final = answer_of(await client.converse_alpha2(MODEL, inputs, tools=tools))
        first, second = [in_openais_shape(request) for request in (await peer.seen(requests=2)).requests]
    assert first.body["tools"] == TOOLS
    assert first.messages == [{"role": "user", "content": question.content}]
    assert second.messages == [*first.messages, *(each.message().as_dict() for each in (asked, *results))]
    assert (final.role, final.content, final.tool_calls) == ("assistant", "It is sunny.", None)


@pytest.mark.fault("tool calling: an answer of the SDK in several outputs, a call without an id")
async def test_all_outputs_of_an_answer_are_one_message(
    process: tuple[ServerProcess, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = [{"name": "get_weather", "arguments": f'{{"location": "{place}"}}'} for place in ("Rome", "Oslo")]
    split = answer({"text": "Let me see.", "calls": calls[:1]}, {"calls": [{**calls[1], "id": None}]})
    async with scripted_peer(process, split) as peer, client_of(peer, monkeypatch) as client:
        inputs, tools = alpha2([ConversationInput("Rome and Oslo?", tools=TOOLS)])
        merged = answer_of(await client.converse_alpha2(MODEL, inputs, tools=tools))
    assert merged.content == "Let me see."
    assert [call["function"] for call in merged.tool_calls or ()] == calls
    assert all(call["id"] for call in merged.tool_calls or ())


def test_every_role_has_its_message_and_scrubbing_is_marked_for_each() -> None:
    call = call_of("get_weather", {"location": "Rome"})
    history = [
        system("Be brief."),
        user("Rome?"),
        assistant(None, [call]),
        tool_message(call, "sunny"),
        assistant("Sun."),
    ]
    inputs = [ConversationInput.from_dict(message.as_dict()) for message in history]
    inputs[1].tools, inputs[1].scrub_pii = list(TOOLS), True
    converted, tools = alpha2(inputs)
    kinds = [each.messages[0].to_proto().WhichOneof("message_types") for each in converted]
    assert kinds == ["of_system", "of_user", "of_assistant", "of_tool", "of_assistant"]
    assert [each.scrub_pii for each in converted] == [None, True, None, None, None]
    assert [tool.function.name for tool in tools] == ["get_weather", "calculate_distance"]
    calling = converted[2].messages[0].to_proto().of_assistant
    assert (list(calling.content), calling.tool_calls[0].function.name) == ([], "get_weather")


@pytest.mark.fault("tool calling: tools where Dapr's interface has none")
def test_texts_go_through_alpha1_as_before_and_tools_do_not() -> None:
    [converted] = alpha1([ConversationInput("Call +1 234 567 8901", "user", scrub_pii=True)])
    assert (converted.content, converted.role, converted.scrub_pii) == ("Call +1 234 567 8901", "user", True)
    for given in (
        ConversationInput("?", tools=TOOLS),
        ConversationInput("sunny", "tool", tool_call_id="call_1"),
        ConversationInput(None, "assistant", tool_calls=[call_of("get_weather", {}).as_dict()]),
    ):
        with pytest.raises(ValueError, match="has no tools"):
            alpha1([given])
