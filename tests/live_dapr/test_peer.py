"""The peer of the other tests does what the real sidecar does: both get the same requests and answers."""

from __future__ import annotations

from typing import Any

import grpc
import grpc.aio
import pytest
from dapr.conf.helpers import GrpcEndpoint
from dapr.proto import api_v1
from dapr.proto.runtime.v1.dapr_pb2_grpc import DaprStub
from google.protobuf.json_format import MessageToDict, ParseDict

from task.llm.scripted import Reply, says, wants
from tests.live_dapr.conftest import ADDRESS, PROVIDER_PORT, TOKEN
from tests.support.dapr import dapr_peer, refusal
from tests.support.dapr_component import chat_body
from tests.support.upstream import http_error, openai_upstream

pytestmark = [pytest.mark.live_dapr, pytest.mark.system, pytest.mark.timeout(120)]

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
