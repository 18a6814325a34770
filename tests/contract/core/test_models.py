"""The model that local Core serves itself: an OpenAI-compatible upstream, or the scripted demo."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from task.llm.chat_request import LLAMA_CPP
from task.llm.scripted import says
from task.local.core.models import ScriptedDemo, UpstreamModel
from tests.support.core import local_core
from tests.support.core_files import CoreFiles
from tests.support.core_peers import DONE, answers, ask, calling, chunk, config, dialling, peer, streams
from tests.support.upstream import openai_upstream

MODELS: dict[str, Any] = {
    "gpt-4o": {"endpoint": "http://adapter/", "displayName": "GPT 4o", "limits": {"maxTotalTokens": 128000}},
    "vectors": {"type": "embedding", "endpoint": "http://adapter/"},
}
SCRIPT = """
name: the script
rules:
  - when: {last: user, tool: calculator}
    reasoning: "Let me see. "
    call:
      - tool: calculator
        arguments: {expression: "25*47"}
    usage: [3, 4]
  - text: "Found: $results"
    by_word: true
"""
TOOL: Any = {
    "type": "function",
    "function": {"name": "calculator", "description": "", "parameters": {"type": "object"}},
}
ASKED: Any = {"messages": [{"role": "user", "content": "25*47?"}]}
PNG = b"\x89PNG\r\n\x1a\nrest"

pytestmark = pytest.mark.local_core


def demo(folder: Path, script: str = SCRIPT) -> ScriptedDemo:
    (folder / "script.yaml").write_text(script)
    return ScriptedDemo(folder / "script.yaml")


def event_data(body: bytes) -> list[dict[str, Any]]:
    lines = [line.removeprefix("data: ") for line in body.decode().splitlines() if line.startswith("data: {")]
    return [json.loads(line) for line in lines]


async def test_an_upstream_gets_its_own_key_and_name_and_no_dial_fields(tmp_path: Path) -> None:
    async with peer(streams(chunk({"content": "Hi"}), DONE)) as upstream:
        choice = UpstreamModel(f"{upstream.url}/v1/", "local-model", "upstream-key")
        async with local_core(config(models=MODELS), tmp_path, model=choice) as core, calling(core) as session:
            body = {
                "model": "gpt-4o",
                "stream": True,
                "messages": [
                    {"role": "user", "content": "Hello", "custom_content": {"state": {}}},
                    {"role": "assistant", "content": None, "tool_calls": [], "custom_fields": {"cache_breakpoint": {}}},
                ],
                "custom_fields": {"configuration": {}},
                "addons": [],
                "tools": [TOOL | {"custom_fields": {"cache_breakpoint": {}}}],
                "seed": 7,
            }
            answer = await ask(session, "local-model", body, query="api-version=1", X_CONVERSATION_ID="mine")
    assert answer.body == chunk({"content": "Hi"}) + DONE
    seen = upstream.last
    assert seen.url == "/v1/chat/completions"
    assert seen.headers["Authorization"] == "Bearer upstream-key"
    assert "Api-Key" not in seen.headers
    assert "X-CONVERSATION-ID" not in seen.headers
    assert seen.json == {
        "model": "local-model",
        "stream": True,
        "messages": [
            {"role": "user", "content": "Hello"},
            {"role": "assistant", "content": None, "tool_calls": []},
        ],
        "tools": [TOOL],
        "seed": 7,
    }


async def test_images_of_core_reach_the_upstream_as_data_urls(tmp_path: Path) -> None:
    data_url = "data:image/png;base64," + base64.b64encode(PNG).decode()
    async with peer(answers()) as upstream:
        choice = UpstreamModel(upstream.url, "local-model")
        async with (
            local_core(config(), tmp_path, model=choice) as core,
            calling(core) as session,
            CoreFiles.of(core.url, "key-one") as files,
        ):
            await files.put("a b.png".replace(" ", "%20"), PNG, type="image/png")
            url = files.url("a%20b.png")
            part = {"type": "image_url", "image_url": {"url": url, "detail": "low"}}
            attachments = [{"type": "image/png", "url": url}, {"type": "image/gif", "data": "R0lG"}, {"url": url}]
            messages = [
                {"role": "user", "content": [part, {"type": "text", "text": "What is it?"}]},
                {"role": "user", "content": "And this?", "custom_content": {"attachments": attachments}},
            ]
            assert (await ask(session, "local-model", {"messages": messages})).status == 200
            gone = {"type": "image_url", "image_url": {"url": files.url("gone.png")}}
            missing = await ask(session, "local-model", {"messages": [{"role": "user", "content": [gone]}]})
            assert (missing.status, missing.json["error"]["code"]) == (400, "400")
    first, second = upstream.last.json["messages"]
    assert first["content"][0]["image_url"] == {"url": data_url, "detail": "low"}
    assert second["content"] == [
        {"type": "text", "text": "And this?"},
        {"type": "image_url", "image_url": {"url": data_url}},
        {"type": "image_url", "image_url": {"url": "data:image/gif;base64,R0lG"}},
    ]


async def test_an_image_that_the_caller_may_not_read_does_not_leave_core(tmp_path: Path) -> None:
    async with peer(answers()) as upstream:
        choice = UpstreamModel(upstream.url, "local-model")
        async with (
            local_core(config(), tmp_path, model=choice) as core,
            calling(core) as session,
            CoreFiles.of(core.url, "key-two") as theirs,
        ):
            await theirs.put("a.png", PNG)
            part = {"type": "image_url", "image_url": {"url": theirs.url("a.png")}}
            answer = await ask(session, "local-model", {"messages": [{"role": "user", "content": [part]}]})
    assert answer.status == 403
    assert upstream.requests == []


async def test_the_chosen_model_is_listed_alone_under_its_own_name(tmp_path: Path) -> None:
    choice = UpstreamModel("http://127.0.0.1:9/v1", "local-model")
    async with local_core(config(models=MODELS), tmp_path, model=choice) as core, calling(core) as session:
        async with session.get("/openai/models") as answer:
            models = {model["id"]: model for model in (await answer.json())["data"]}
        assert set(models) == {"vectors", "local-model"}
        assert models["local-model"]["display_name"] == "local-model"
        assert models["local-model"]["features"]["tools"] is True
        assert "input_attachment_types" not in models["local-model"]
        assert (await ask(session, "gpt-4o")).status == 404
        async with session.post("/openai/deployments/local-model/embeddings", json={}) as answer:
            assert answer.status == 404
        assert (await ask(session, "local-model")).status == 502


@pytest.mark.parametrize("stream", [False, True])
async def test_calls_in_the_text_of_an_open_models_server_are_calls_for_the_callers_of_core(
    stream: bool, tmp_path: Path
) -> None:
    said = says(*'Hm. {"name": "calculator", "arguments": {"expression": "25*47"}} {"name": "clock", "arguments": {}}')
    tools = [TOOL, {"type": "function", "function": {"name": "clock"}}]
    async with openai_upstream(said) as upstream:
        choice = UpstreamModel(upstream.url, "local-model", "upstream-key", LLAMA_CPP)
        async with local_core(config(), tmp_path, model=choice) as core, calling(core) as session:
            answer = await ask(session, "local-model", {**ASKED, "tools": tools, "stream": stream})
    if stream:
        deltas = [choice["delta"] for event in event_data(answer.body) for choice in event["choices"]]
        text = "".join(delta.get("content") or "" for delta in deltas)
        calls = [call for delta in deltas for call in delta.get("tool_calls") or ()]
        assert [call["index"] for call in calls] == [0, 1]
    else:
        text, calls = (
            answer.json["choices"][0]["message"]["content"],
            answer.json["choices"][0]["message"]["tool_calls"],
        )
    assert text == "Hm. "
    assert [(call["function"]["name"], json.loads(call["function"]["arguments"])) for call in calls] == [
        ("calculator", {"expression": "25*47"}), ("clock", {})
    ]  # fmt: skip
    assert upstream.requests[0].headers["authorization"] == "Bearer upstream-key"


@pytest.mark.parametrize("core025", [False, True])
@pytest.mark.parametrize(
    ("status", "seen", "wait"), [(429, 429, "7"), (503, 503, "7"), (502, 502, None), (504, 502, None)]
)
async def test_a_busy_upstreams_status_and_retry_after_are_passed_on(
    status: int, seen: int, wait: str | None, core025: bool, tmp_path: Path
) -> None:
    busy = {"error": {"message": "Rate limit reached", "code": "rate_limit_exceeded"}}
    async with peer(answers(status, busy, Retry_After="7")) as upstream:
        choice = UpstreamModel(upstream.url, "local-model")
        async with local_core(config(), tmp_path, model=choice, core025=core025) as core, calling(core) as session:
            answer = await ask(session, "local-model")
    assert (answer.status, answer.headers.get("Retry-After")) == (seen, wait)
    assert (answer.json == busy) if wait else (answer.text == "No route")


async def test_an_entry_of_the_file_describes_the_model_only_under_the_same_name(tmp_path: Path) -> None:
    async with peer(answers()) as upstream:
        choice = UpstreamModel(upstream.url, "gpt-4o")
        async with local_core(config(models=MODELS), tmp_path, model=choice) as core, calling(core) as session:
            async with session.get("/openai/models/gpt-4o") as answer:
                model = await answer.json()
            assert (await ask(session, "gpt-4o")).status == 200
    assert model["display_name"] == "GPT 4o"
    assert model["limits"] == {"max_total_tokens": 128000}
    assert upstream.last.url == "/chat/completions"


async def test_the_demo_is_listed_as_what_it_is(tmp_path: Path) -> None:
    async with (
        local_core(config(models=MODELS), tmp_path, model=demo(tmp_path)) as core,
        calling(core) as session,
        session.get("/openai/models") as answer,
    ):
        models = {model["id"]: model["display_name"] for model in (await answer.json())["data"] if "m" in model["id"]}
    assert models == {"scripted-demo": "Scripted demo (not a real model)"}


async def test_the_demo_streams_calls_text_and_usage_in_openais_shape(tmp_path: Path) -> None:
    async with local_core(config(), tmp_path, model=demo(tmp_path)) as core, calling(core) as session:
        question: Any = {"role": "user", "content": "25*47?"}
        body = {"messages": [question], "tools": [TOOL], "stream": True}
        asked = await ask(session, "scripted-demo", body)
        events = event_data(asked.body)
        assert asked.body.endswith(DONE)
        assert {event["model"] for event in events} == {"scripted-demo"}
        assert len({event["id"] for event in events}) == 1
        deltas = [choice["delta"] for event in events for choice in event["choices"]]
        (call,) = [call for delta in deltas for call in delta.get("tool_calls", ())]
        assert call["index"] == 0
        assert call["type"] == "function"
        assert json.loads(call["function"]["arguments"]) == {"expression": "25*47"}
        assert "Let me see. " in [delta.get("reasoning_content") for delta in deltas]
        assert {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7} in [
            event.get("usage") for event in events
        ]
        reasons = [choice["finish_reason"] for event in events for choice in event["choices"]]
        assert reasons[-1] == "tool_calls"

        call.pop("index")
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


async def test_the_demo_also_answers_without_streaming(tmp_path: Path) -> None:
    async with local_core(config(), tmp_path, model=demo(tmp_path)) as core, calling(core) as session:
        asked = await ask(session, "scripted-demo", {"messages": [{"role": "user", "content": "?"}], "tools": [TOOL]})
        (choice,) = asked.json["choices"]
        assert choice["finish_reason"] == "tool_calls"
        assert choice["message"]["tool_calls"][0]["function"]["name"] == "calculator"
        assert "index" not in choice["message"]["tool_calls"][0]
        assert asked.json["usage"]["total_tokens"] == 7
        spoken = await ask(session, "scripted-demo", {"messages": [{"role": "user", "content": "?"}]})
        assert spoken.json["choices"][0]["message"]["content"].startswith("Found: ")
        assert spoken.json["choices"][0]["finish_reason"] == "stop"


@pytest.mark.parametrize("messages", [[{"role": "nobody"}], ["text"], [{"role": "assistant", "tool_calls": [{}]}]])
async def test_the_demo_refuses_malformed_messages(tmp_path: Path, messages: list[Any]) -> None:
    async with local_core(config(), tmp_path, model=demo(tmp_path)) as core, calling(core) as session:
        answer = await ask(session, "scripted-demo", {"messages": messages})
        assert (answer.status, answer.json["error"]["type"]) == (400, "invalid_request_error")


async def test_a_script_without_an_answer_is_an_error_in_the_stream_and_without_streaming(tmp_path: Path) -> None:
    async with local_core(config(), tmp_path, model=demo(tmp_path, "name: empty\n")) as core, calling(core) as session:
        block = await ask(session, "scripted-demo", {"messages": []})
        assert (block.status, block.json["error"]["code"]) == (500, "script_exhausted")
        stream = await ask(session, "scripted-demo")
        assert event_data(stream.body)[-1]["error"]["code"] == "script_exhausted"
