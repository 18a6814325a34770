"""A real Dapr sidecar: the peer of the other tests does what it does, and it carries our requests to their end."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from dapr.conf.helpers import GrpcEndpoint
from dapr.proto import api_v1
from dapr.proto.runtime.v1.dapr_pb2_grpc import DaprStub
from google.protobuf.json_format import MessageToDict, ParseDict

from task.conversation.messages import Message, tool_message, user
from task.errors import ProviderError
from task.llm.base import Accumulator, ModelOptions, ToolSchema
from task.llm.dapr import DaprServer
from task.llm.scripted import Reply, says, wants
from task.llm.transport import Retries
from task.settings import Settings
from tests.live_dapr.conftest import ADDRESS, AGENT_PORT, PROVIDER_PORT, TOKEN
from tests.support.agent import running_agent
from tests.support.dapr import dapr_peer, refusal
from tests.support.dapr_component import chat_body
from tests.support.documented import tool_calling_examples
from tests.support.http_api import NOWHERE
from tests.support.upstream import Received, hanging, http_error, openai_upstream

pytestmark = [pytest.mark.live_dapr, pytest.mark.system]

COMPONENTS = {"provider": "conversation.openai"}
PARAMETERS = {"type": "object", "properties": {"b": {"type": "integer", "minimum": 1}, "a": {"type": "string"}}}


def texts(*pieces: str) -> list[dict[str, Any]]:
    return [{"text": piece} for piece in pieces]


def message(role: str, *pieces: str, **more: Any) -> dict[str, Any]:
    return {f"of_{role}": {"content": texts(*pieces), **more}}


def tool(name: str) -> dict[str, Any]:
    return {"function": {"name": name, "description": "D.", "parameters": PARAMETERS}}


def inputs(*messages: dict[str, Any], **more: Any) -> list[dict[str, Any]]:
    return [{"messages": list(messages), **more}]


HI = inputs(message("user", "Hi"))
CALL = {"id": "call_1", "function": {"name": "look", "arguments": '{"a": "x"}'}}
HISTORY = inputs(
    message("system", "Be brief."),
    message("user", "one", "two"),
    message("assistant", tool_calls=[CALL]),
    message("tool", "found", tool_id="call_1", name="look"),
)
PERSONAL = "ann@example.com, +1 234 567 8901, 4111 1111 1111 1111, 10.0.0.1, 2001-01-01, https://a.example/b"
REQUESTS: dict[str, dict[str, Any]] = {
    "plain": {"inputs": HI},
    "context id": {"inputs": HI, "context_id": "c1"},
    "no such component": {"name": "nowhere", "inputs": HI},
    "developer": {"inputs": inputs(message("developer", "Be brief."), message("user", "?", name="ann"))},
    "history": {"inputs": HISTORY, "tools": [tool("look")]},
    "several inputs": {"inputs": [*inputs(message("system", "s")), *HI, *inputs(message("assistant", "a")), *HI]},
    "empty texts": {"inputs": inputs(message("user", ""), message("assistant", ""), message("user", "?"))},
    "scrubbed question": {"inputs": [*inputs(message("user", PERSONAL), scrub_pii=True), *HI]},
    "scrubbed answer": {"inputs": HI, "scrub_pii": True},
    "tools": {"inputs": HI, "tools": [tool("look"), tool("find")]},
    "auto without tools": {"inputs": HI, "tool_choice": "auto"},
    "required without tools": {"inputs": HI, "tool_choice": "required"},
    "name without tools": {"inputs": HI, "tool_choice": "look"},
    "none": {"inputs": HI, "tools": [tool("look")], "tool_choice": "none"},
    "required": {"inputs": HI, "tools": [tool("look")], "tool_choice": "required"},
    "another name": {"inputs": HI, "tools": [tool("look")], "tool_choice": "find"},
    "temperature": {"inputs": HI, "temperature": 0.7},
    "too large": {"inputs": inputs(message("user", "x" * 5 * 2**20))},
}  # fmt: skip
ANSWERS: dict[str, Reply] = {"scrubbed answer": says(PERSONAL), "tools": wants("look", a="x") & wants("find", a="y")}


async def asked(address: str, request: dict[str, Any]) -> Any:
    """The answer, or the status and its text."""
    given = ParseDict({"name": "provider", **request}, api_v1.ConversationRequestAlpha2())
    metadata = (("dapr-api-token", TOKEN),) if TOKEN else ()
    async with grpc.aio.insecure_channel(GrpcEndpoint(address).endpoint) as channel:
        try:
            return _known(await DaprStub(channel).ConverseAlpha2(given, timeout=20, metadata=metadata))
        except grpc.aio.AioRpcError as error:
            return error.code().name, error.details()


def _known(response: Any) -> Any:
    """Without what the scripts decide: ids, the model's name and the counts of its tokens."""
    answer = MessageToDict(response)
    for output in answer.get("outputs", ()):
        if "model" in output:
            output["model"] = "model"
            output["usage"] = sorted(output["usage"])
        for choice in output["choices"]:
            for number, call in enumerate(choice["message"].get("toolCalls", ())):
                call["id"] = f"{number}" if "id" in call else None
    return answer


@pytest.mark.parametrize("name", REQUESTS)
async def test_a_request_is_answered_and_read_in_the_same_way(name: str) -> None:
    reply = ANSWERS.get(name, says("Hello"))
    async with openai_upstream(reply, port=PROVIDER_PORT, strict=False) as upstream:
        real = await asked(ADDRESS, REQUESTS[name])
        read = [request.body for request in upstream.requests]
    async with dapr_peer(reply, components=COMPONENTS, token=TOKEN or None) as peer:
        imitated = await asked(peer.address, REQUESTS[name])
        seen = await peer.seen()
    assert imitated == real
    if read:
        given = ParseDict(seen.bodies[0], api_v1.ConversationRequestAlpha2())
        body = chat_body(given, seen.prompts[0], "test-model")
        assert body == {**read[0], "messages": [_plain(item) for item in read[0]["messages"]]}


def _plain(item: dict[str, Any]) -> dict[str, Any]:
    """The message with several texts as one, as the peer has them."""
    texts = item["content"]
    return {**item, "content": "\n".join(part["text"] for part in texts)} if isinstance(texts, list) else item


@pytest.mark.parametrize(
    ("status", "text"), [(429, "Slow down"), (500, "Oh"), (400, "maximum context length"), (401, "No")]
)
async def test_a_providers_refusal_arrives_in_the_same_words(status: int, text: str) -> None:
    async with openai_upstream(http_error(status, text), port=PROVIDER_PORT):
        real = await asked(ADDRESS, {"inputs": HI})
    async with dapr_peer(refusal(status, text), components=COMPONENTS, token=TOKEN or None) as peer:
        assert await asked(peer.address, {"inputs": HI}) == real


async def test_a_provider_that_is_away_is_reported_in_the_same_words() -> None:
    real = await asked(ADDRESS, {"inputs": HI})
    async with dapr_peer({"error": "network error: failed to reach API server"}, components=COMPONENTS) as peer:
        assert await asked(peer.address, {"inputs": HI}) == real


TOOLS: list[ToolSchema] = tool_calling_examples()["Multiple Tools Array"]
WEATHER = wants("get_weather", location="San Francisco, CA")


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


async def test_a_deadline_and_a_cancellation_reach_the_provider() -> None:
    async with openai_upstream(port=PROVIDER_PORT, then=hanging(says("?"), chunks=0)) as upstream:
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
        openai_upstream(asks, asks, WEATHER, says("Sunny."), port=PROVIDER_PORT),
        running_agent(Settings.model_validate(values), port=AGENT_PORT),
        sidecar("agent") as server,
    ):
        own = await answered(server, [user("6*7?")])
        asked = (await answered(server, [user("Weather?")], TOOLS)).message()
        [call] = asked.tool_calls
        final = await answered(server, [user("Weather?"), asked, tool_message(call, "sunny")], TOOLS)
    assert own.text == "It is 42."
    assert (call.name, final.text) == ("get_weather", "Sunny.")
