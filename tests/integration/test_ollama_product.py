"""The product and local Core with Ollama behind them: pictures, long conversations, warnings, keys, loading."""

import base64
import json
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from task.cli.core import core_settings
from task.cli.model_choice import choose_model
from task.conversation.inputs import without_time
from task.conversation.messages import user
from task.llm.base import ModelOptions
from task.llm.scripted import says
from task.llm.transport import new_session
from task.product.backends import ollama_server
from task.settings import Settings, load_settings
from tests.support.core import RunningCore, local_core
from tests.support.http_api import NOWHERE, Api, http_api, said
from tests.support.mcp_processes import ServerProcess
from tests.support.ollama import MODEL, OllamaPeer, ollama_process, scripted_peer

PICTURE = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{base64.b64encode(b'png').decode()}"}}


@pytest.fixture(scope="module")
def process() -> Generator[ServerProcess]:
    with ollama_process() as running:
        yield running


@asynccontextmanager
async def agent(process: ServerProcess, folder: Path, **settings: Any) -> AsyncGenerator[tuple[Api, OllamaPeer]]:
    async with (
        scripted_peer(process) as peer,
        http_api(tmp_path=folder, backend="ollama", ollama_local=peer.url, **settings) as api,
    ):
        yield api, peer


@pytest.mark.fault("ollama: a picture for a model that cannot see, or by its address")
async def test_a_model_that_cannot_see_is_sent_a_sentence(process: ServerProcess, tmp_path: Path) -> None:
    question = {"role": "user", "content": [{"type": "text", "text": "What is it?"}, PICTURE]}
    async with agent(process, tmp_path) as (api, peer):
        await peer.script(models={"eye:latest": {"capabilities": ["completion", "tools", "vision"]}})
        for model in (MODEL, "eye"):
            assert (await api.post("/v1/chat/completions", {"messages": [question], "model": model})).status == 200
        blind, sees = (body["messages"][-1] for body in (await peer.seen()).bodies)
    assert "cannot see pictures" in blind["content"]
    assert "images" not in blind
    assert (without_time(sees["content"]), len(sees["images"])) == ("What is it?", 1)


@pytest.mark.fault("ollama: a conversation that is too long for the context")
async def test_a_conversation_beyond_the_context_loses_its_oldest_turns(process: ServerProcess, tmp_path: Path) -> None:
    turns = [said(f"turn {n} " + "word " * 900, role) for n in range(20) for role in ("user", "assistant")]
    async with agent(process, tmp_path, ollama={"context_tokens": 8192}) as (api, peer):
        reply = await api.post("/v1/chat/completions", {"messages": [*turns, said("And now?")]})
        seen = await peer.seen()
    assert (reply.status, reply.json["choices"][0]["message"]["content"]) == (200, "Hello from the peer.")
    prompt, body = seen.prompts[-1], seen.bodies[-1]
    assert "You are a General Purpose Agent" in prompt
    assert all(tool["function"]["name"] in prompt for tool in body["tools"])
    assert [f"turn {n} " in prompt for n in (0, 1, 5, 19)] == [True, False, False, True], "the first question stays"
    assert {load[1] for load in seen.loads} == {8192}


@pytest.mark.fault("ollama: a model that is missing, or deleted between two turns")
async def test_a_missing_model_is_a_404_that_says_how_to_get_it(process: ServerProcess, tmp_path: Path) -> None:
    async with agent(process, tmp_path, deployment_name="llama9") as (api, _):
        reply = await api.complete("Hi")
    assert (reply.status, "ollama pull llama9" in reply.error["message"]) == (404, True)


@pytest.mark.parametrize(("host", "sent"), [("cloud", "Bearer secret"), ("elsewhere", None)])
async def test_the_key_of_the_cloud_goes_to_its_host_only(process: ServerProcess, host: str, sent: str | None) -> None:
    async with scripted_peer(process) as peer, new_session() as session:
        cloud = peer.url if host == "cloud" else NOWHERE
        settings = Settings.model_validate({"turbo_host": cloud, "ollama_local": peer.url, "ollama_api_key": "secret"})
        model = ollama_server(settings, session, settings.ollama_local).chat_model(MODEL)
        await peer.script(says("yes"))
        async for _ in model.stream([user("Hi")], (), ModelOptions()):
            pass
        assert (await peer.seen()).requests[0]["headers"].get("authorization") == sent


async def test_loading_a_model_is_a_stage_of_the_first_answer_only(process: ServerProcess, tmp_path: Path) -> None:
    stages: list[list[str]] = []
    async with agent(process, tmp_path) as (api, _):
        for _ in range(2):
            run_id = (await api.post("/runs", {"messages": [said("Hi")]})).json["run_id"]
            events = await api.events(run_id)
            stages.append([event["name"] for event in events if event["type"] == "stage_closed"])
    assert [name.partition(" [")[0] for name in stages[0]] == [f"Ollama is loading the model {MODEL}"]
    assert stages[1] == []


CONFIG = {"keys": {"k": {"project": "P", "role": "default"}}, "roles": {"default": {"limits": {}}}}
NAME = f"{MODEL}:latest"


@asynccontextmanager
async def core_before(peer: OllamaPeer, folder: Path) -> AsyncGenerator[RunningCore]:
    settings = load_settings(environ={"HOME": str(folder), "OLLAMA_LOCAL": peer.url}, directory=folder)
    chosen = core_settings(settings, await choose_model(settings, behind_core=True))
    async with local_core(CONFIG, folder, model=chosen.model) as core:
        yield core


async def events(core: RunningCore, **body: Any) -> list[dict[str, Any]]:
    """The chunks of one streamed answer."""
    url = f"{core.url}/openai/deployments/{NAME}/chat/completions"
    body = {"messages": [{"role": "user", "content": "Hi"}], "stream": True, **body}
    async with aiohttp.ClientSession() as session, session.post(url, json=body, headers=core.headers()) as received:
        assert received.status == 200, await received.text()
        return [json.loads(line[6:]) async for line in received.content if line.startswith(b"data: {")]


def deltas(chunks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [choice["delta"] for chunk in chunks for choice in chunk.get("choices", ())]


async def test_the_listing_has_the_models_context_and_abilities(process: ServerProcess, tmp_path: Path) -> None:
    eye = {"capabilities": ["completion", "vision"], "context": 9000}
    async with (
        scripted_peer(process, models={NAME: eye}) as peer,
        core_before(peer, tmp_path) as core,
        aiohttp.ClientSession(headers=core.headers()) as session,
        session.get(f"{core.url}/openai/models/{NAME}") as received,
    ):
        listed = await received.json()
    assert listed["limits"]["max_total_tokens"] <= 9000
    assert listed["input_attachment_types"] == ["image/*"]
    assert listed["features"]["tools"] is False


async def test_loading_is_a_stage_that_ends_before_the_text(process: ServerProcess, tmp_path: Path) -> None:
    async with scripted_peer(process, says("Hello.")) as peer, core_before(peer, tmp_path) as core:
        found = deltas(await events(core))
    stages = [stage for delta in found for stage in delta.get("custom_content", {}).get("stages", ())]
    assert stages == [
        {"index": 0, "name": f"Ollama is loading the model {NAME}", "status": None},
        {"index": 0, "status": "completed"},
    ]
    last = max(number for number, delta in enumerate(found) if "custom_content" in delta)
    assert last < next(number for number, delta in enumerate(found) if delta.get("content"))
