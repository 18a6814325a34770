"""The model that local Core serves itself: an OpenAI-compatible upstream, or the scripted demo."""

import base64
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession

from task.llm.base import DEMO_NAME, ChatModel, Usage
from task.llm.chat_request import LLAMA_CPP
from task.llm.demo import demo_reply
from task.llm.scripted import Reply, ScriptedModel, says, wants
from task.local.core.models import ConnectedModel, ModelChoice, UpstreamModel, scripted_demo
from tests.support.core import RunningCore, local_core
from tests.support.core_files import CoreFiles
from tests.support.core_peers import DONE, Handler, Peer, answers, ask, calling, chunk, config, dialling, peer, streams
from tests.support.upstream import openai_upstream

MODELS: dict[str, Any] = {
    "gpt-4o": {"endpoint": "http://adapter/", "displayName": "GPT 4o", "limits": {"maxTotalTokens": 128000}},
    "vectors": {"type": "embedding", "endpoint": "http://adapter/"},
}
CALLING = says(reasoning="Let me see. ", usage=Usage(3, 4)) & wants("calculator", expression="25*47")
TOOL: Any = {
    "type": "function",
    "function": {"name": "calculator", "description": "", "parameters": {"type": "object"}},
}
ASKED: Any = {"messages": [{"role": "user", "content": "25*47?"}]}
PNG = b"\x89PNG\r\n\x1a\nrest"

pytestmark = pytest.mark.local_core


@asynccontextmanager
async def core_with(choice: ModelChoice, tmp_path: Path) -> AsyncGenerator[tuple[RunningCore, ClientSession]]:
    async with local_core(config(models=MODELS), tmp_path, model=choice) as core, calling(core) as session:
        yield core, session


@asynccontextmanager
async def upstream(
    answer: Handler, tmp_path: Path, name: str = "local-model"
) -> AsyncGenerator[tuple[Peer, RunningCore, ClientSession]]:
    """An upstream, Core in front of it, and a caller."""
    async with peer(answer) as server:
        choice = UpstreamModel(f"{server.url}/v1/", name, "upstream-key")
        async with core_with(choice, tmp_path) as (core, session):
            yield server, core, session


def demo(*replies: Reply) -> ConnectedModel:
    """The demo with these replies in front of its own."""

    @asynccontextmanager
    async def connect() -> AsyncGenerator[ChatModel]:
        yield ScriptedModel(*replies, name=DEMO_NAME, then=demo_reply if replies else None)

    return replace(scripted_demo(), connect=connect)


async def listed(session: ClientSession) -> dict[str, dict[str, Any]]:
    async with session.get("/openai/models") as answer:
        return {model["id"]: model for model in (await answer.json())["data"]}


async def test_an_upstream_gets_its_own_key_and_name_and_no_dial_fields(tmp_path: Path) -> None:
    call = {"role": "assistant", "content": None, "tool_calls": []}
    body = {
        "model": "gpt-4o",
        "stream": True,
        "messages": [
            {"role": "user", "content": "Hello", "custom_content": {"state": {}}},
            call | {"custom_fields": {"cache_breakpoint": {}}},
        ],
        "custom_fields": {"configuration": {}},
        "addons": [],
        "tools": [TOOL | {"custom_fields": {"cache_breakpoint": {}}}],
        "seed": 7,
    }
    async with upstream(streams(chunk({"content": "Hi"}), DONE), tmp_path) as (server, _, session):
        answer = await ask(session, "local-model", body, query="api-version=1", X_CONVERSATION_ID="mine")
    assert answer.body == chunk({"content": "Hi"}) + DONE
    seen = server.last
    assert seen.url == "/v1/chat/completions"
    assert seen.headers["Authorization"] == "Bearer upstream-key"
    assert {"Api-Key", "X-CONVERSATION-ID"}.isdisjoint(seen.headers)
    assert seen.json == {
        "model": "local-model",
        "stream": True,
        "messages": [{"role": "user", "content": "Hello"}, call],
        "tools": [TOOL],
        "seed": 7,
    }


async def test_images_of_core_reach_the_upstream_as_data_urls_if_the_caller_may_read_them(tmp_path: Path) -> None:
    data_url = "data:image/png;base64," + base64.b64encode(PNG).decode()

    def part(url: str) -> dict[str, Any]:
        return {"type": "image_url", "image_url": {"url": url, "detail": "low"}}

    async with (
        upstream(answers(), tmp_path) as (server, core, session),
        CoreFiles.of(core.url, "key-one") as files,
        CoreFiles.of(core.url, "key-two") as theirs,
    ):
        await files.put("a%20b.png", PNG, type="image/png")
        await theirs.put("a.png", PNG)
        url = files.url("a%20b.png")
        attachments = [{"type": "image/png", "url": url}, {"type": "image/gif", "data": "R0lG"}, {"url": url}]
        messages = [
            {"role": "user", "content": [part(url), {"type": "text", "text": "What is it?"}]},
            {"role": "user", "content": "And this?", "custom_content": {"attachments": attachments}},
        ]
        assert (await ask(session, "local-model", {"messages": messages})).status == 200
        for other, status in ((files.url("gone.png"), 400), (theirs.url("a.png"), 403)):
            refused = {"messages": [{"role": "user", "content": [part(other)]}]}
            assert (await ask(session, "local-model", refused)).status == status
    [request] = server.requests
    first, second = request.json["messages"]
    assert first["content"][0]["image_url"] == {"url": data_url, "detail": "low"}
    assert second["content"] == [
        {"type": "text", "text": "And this?"},
        {"type": "image_url", "image_url": {"url": data_url}},
        {"type": "image_url", "image_url": {"url": "data:image/gif;base64,R0lG"}},
    ]


async def test_the_chosen_model_is_listed_alone_under_its_own_name(tmp_path: Path) -> None:
    async with core_with(UpstreamModel("http://127.0.0.1:9/v1", "local-model"), tmp_path) as (_, session):
        models = await listed(session)
        assert (await ask(session, "gpt-4o")).status == 404
        async with session.post("/openai/deployments/local-model/embeddings", json={}) as answer:
            assert answer.status == 404
        assert (await ask(session, "local-model")).status == 502
    assert set(models) == {"vectors", "local-model"}
    assert models["local-model"]["display_name"] == "local-model"
    assert {"tools": True, "temperature": True}.items() <= models["local-model"]["features"].items()
    assert "input_attachment_types" not in models["local-model"]


@pytest.mark.parametrize("stream", [False, True])
async def test_calls_in_the_text_of_an_open_models_server_are_calls_for_the_callers_of_core(
    stream: bool, tmp_path: Path
) -> None:
    said = says(*'Hm. {"name": "calculator", "arguments": {"expression": "25*47"}} {"name": "clock", "arguments": {}}')
    tools = [TOOL, {"type": "function", "function": {"name": "clock"}}]
    async with openai_upstream(said) as server:
        choice = UpstreamModel(server.url, "local-model", "upstream-key", LLAMA_CPP)
        async with core_with(choice, tmp_path) as (_, session):
            answer = await ask(session, "local-model", {**ASKED, "tools": tools, "stream": stream})
    if stream:
        deltas = [choice["delta"] for event in answer.chunks for choice in event["choices"]]
    else:
        deltas = [choice["message"] for choice in answer.json["choices"]]
    calls = [call for delta in deltas for call in delta.get("tool_calls") or ()]
    assert "".join(delta.get("content") or "" for delta in deltas) == "Hm. "
    assert [call.get("index") for call in calls] == ([0, 1] if stream else [None, None])
    found = [(call["function"]["name"], json.loads(call["function"]["arguments"])) for call in calls]
    assert found == [("calculator", {"expression": "25*47"}), ("clock", {})]
    assert server.requests[0].headers["authorization"] == "Bearer upstream-key"


@pytest.mark.parametrize(
    ("status", "seen", "wait"), [(429, 429, "7"), (503, 503, "7"), (502, 502, None), (504, 502, None)]
)
async def test_a_busy_upstreams_status_and_retry_after_are_passed_on(
    status: int, seen: int, wait: str | None, tmp_path: Path
) -> None:
    busy = {"error": {"message": "Rate limit reached", "code": "rate_limit_exceeded"}}
    async with upstream(answers(status, busy, Retry_After="7"), tmp_path) as (_, _, session):
        answer = await ask(session, "local-model")
    assert (answer.status, answer.headers.get("Retry-After")) == (seen, wait)
    assert (answer.json == busy) if wait else (answer.text == "No route")


async def test_the_demo_is_listed_as_what_it_is_and_streams_calls_and_answers(tmp_path: Path) -> None:
    async with core_with(demo(CALLING), tmp_path) as (core, session):
        assert (await listed(session))["scripted-demo"]["display_name"] == "Scripted demo (not a real model)"
        [question] = ASKED["messages"]
        asked = await ask(session, "scripted-demo", {**ASKED, "tools": [TOOL], "stream": True})
        events = asked.chunks
        assert asked.body.endswith(DONE)
        assert {event["model"] for event in events} == {"scripted-demo"}
        assert len({event["id"] for event in events}) == 1
        choices = [choice for event in events for choice in event["choices"]]
        (call,) = [call for choice in choices for call in choice["delta"].get("tool_calls", ())]
        assert (call.pop("index"), call["type"]) == (0, "function")
        assert json.loads(call["function"]["arguments"]) == {"expression": "25*47"}
        assert "Let me see. " in [choice["delta"].get("reasoning_content") for choice in choices]
        usage = {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}
        assert usage in [event.get("usage") for event in events]
        assert choices[-1]["finish_reason"] == "tool_calls"

        history: list[Any] = [{"role": "assistant", "content": "", "tool_calls": [call]}]
        result: Any = {"role": "tool", "tool_call_id": call["id"], "content": "1175"}
        async with dialling(core) as dial:
            text = ""
            stream = await dial.chat.completions.create(
                deployment_name="scripted-demo", messages=[question, *history, result], tools=[TOOL], stream=True
            )
            async for event in stream:
                text += "".join(choice.delta.content or "" for choice in event.choices)
        assert "1175" in text
