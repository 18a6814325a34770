"""Local Core in front of Ollama: its own API, the model's abilities in the listing, pictures, loading as a stage."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from task.cli.core import core_settings
from task.cli.model_choice import choose_model
from task.llm.scripted import says
from task.settings import load_settings
from tests.support.core import RunningCore, local_core
from tests.support.mcp_processes import ServerProcess
from tests.support.ollama import MODEL, OllamaPeer, ollama_process, scripted_peer

CONFIG = {"keys": {"k": {"project": "P", "role": "default"}}, "roles": {"default": {"limits": {}}}}
NAME = f"{MODEL}:latest"


@pytest.fixture(scope="module")
def process() -> Generator[ServerProcess]:
    with ollama_process() as running:
        yield running


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


async def test_a_model_that_is_deleted_between_two_turns_is_an_error_with_the_command_that_gets_it(
    process: ServerProcess,
    tmp_path: Path,
) -> None:
    async with scripted_peer(process, says("Hello.")) as peer, core_before(peer, tmp_path) as core:
        await events(core)
        await peer.script(models={NAME: None})
        errors = [chunk["error"] for chunk in await events(core) if "error" in chunk]
    assert f"ollama pull {NAME}" in errors[0]["display_message"]
