"""The model that local Core runs itself, in a process that may die or hang and is restarted."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import pytest

from task.cli.core import embedded_source
from task.local.model.process import EmbeddedModel
from task.local.model.prompt import predicted_prefix
from task.local.model.weights import WeightStore
from task.processes import Restarts
from tests.support.core import RunningCore, local_core
from tests.support.llama_peer import PROGRAM
from tests.support.package_index import tiny_weights
from tests.support.waiting import runs, until

CONFIG = {"keys": {"k": {"project": "P", "role": "default"}}, "roles": {"default": {"limits": {}}}}


def content_of(script: dict[str, Any]) -> bytes:
    """The weights that make the peer play `script`."""
    return b"GGUF" + json.dumps(script).encode()


def embedded(folder: Path, script: dict[str, Any] | None = None, **options: Any) -> EmbeddedModel:
    """A model whose file is in `folder`; without a `script` there is none yet."""
    store = WeightStore(folder / "models")
    store.runtime.mkdir(parents=True, exist_ok=True)
    file = folder / "small-model.gguf"
    if script is not None:
        file.write_bytes(content_of(script))
    quick = {"load_seconds": 10, "appear_seconds": 0.2, "restarts": Restarts(0.05)}
    return replace(EmbeddedModel("small-model", "Small model", store, file=file, program=PROGRAM), **quick | options)


@asynccontextmanager
async def core_with(model: EmbeddedModel, folder: Path) -> AsyncGenerator[RunningCore]:
    async with asyncio.timeout(30), local_core(CONFIG, folder, model=embedded_source(model)) as core:
        yield core


async def events(core: RunningCore, **body: Any) -> AsyncGenerator[dict[str, Any]]:
    """The chunks of one streamed answer."""
    url = f"{core.url}/openai/deployments/small-model/chat/completions"
    body = {"messages": [{"role": "user", "content": "Hi"}], "stream": True, **body}
    async with aiohttp.ClientSession() as session, session.post(url, json=body, headers=core.headers()) as answer:
        assert answer.status == 200
        async for line in answer.content:
            if line.startswith(b"data: {"):
                yield json.loads(line[6:])


async def answer_of(core: RunningCore, **body: Any) -> tuple[str, str, dict[str, Any] | None]:
    """Text, what was waited for, and error of one answer."""
    text, waited, error = "", "", None
    async for event in events(core, **body):
        error = event.get("error") or error
        for choice in event.get("choices", ()):
            text += choice["delta"].get("content") or ""
            waited += _stages(choice["delta"])
    return text, waited, error


def _stages(delta: dict[str, Any]) -> str:
    stages = delta.get("custom_content", {}).get("stages", ())
    return "".join(f"{stage['name']}\n" for stage in stages if "name" in stage)


def peers() -> list[psutil.Process]:
    return [child for child in psutil.Process().children() if _is_peer(child)]


def _is_peer(process: psutil.Process) -> bool:
    try:
        return "llama_peer" in " ".join(process.cmdline())
    except psutil.NoSuchProcess:  # it ends just now
        return False


async def ended(process: psutil.Process) -> None:
    await until(lambda: not runs(process))


async def test_it_is_listed_under_its_own_name_and_answers(tmp_path: Path) -> None:
    async with core_with(embedded(tmp_path, {"prose": ["Good day."]}), tmp_path) as core:
        async with aiohttp.ClientSession(headers=core.headers()) as session:
            listing = await (await session.get(f"{core.url}/openai/models")).json()
        answer, _, error = await answer_of(core)
    [listed] = [model for model in listing["data"] if model["id"] == "small-model"]
    assert (listed["display_name"], listed["limits"]["max_total_tokens"]) == ("Small model", 8192)
    assert "not for judging" in listed["description"]
    assert (answer, error) == ("Good day.", None)


async def test_it_ends_with_core(tmp_path: Path) -> None:
    async with core_with(embedded(tmp_path, {}), tmp_path) as core:
        await answer_of(core)
        [peer] = peers()
    await ended(peer)


@pytest.mark.fault("local model: a process killed in an answer")
async def test_a_process_killed_during_an_answer_is_an_error_and_the_next_request_is_answered(tmp_path: Path) -> None:
    script = {"prose": ["one two three four"], "dies_after": 2}
    async with core_with(embedded(tmp_path, script), tmp_path) as core:
        text, _, error = await answer_of(core)
        again, _, fine = await answer_of(core)
    assert text == "one two"
    assert error
    assert error["code"] == "interrupted"
    assert (again, fine) == ("one two three four", None)


@pytest.mark.fault("local model: a process that hangs or cannot start")
@pytest.mark.system
async def test_a_process_that_does_not_answer_is_killed_and_replaced(tmp_path: Path) -> None:
    async with core_with(embedded(tmp_path, {}, probe_seconds=0.5), tmp_path) as core:
        await answer_of(core)
        [deaf] = peers()
        os.kill(deaf.pid, signal.SIGSTOP)
        await ended(deaf)
        assert (await answer_of(core))[0] == "Hello from the peer."


@pytest.mark.fault("local model: a cancel in the middle")
async def test_a_client_that_disconnects_stops_the_generation(tmp_path: Path) -> None:
    script = {"prose": ["word " * 500], "pause": 0.05}
    mark = tmp_path / "small-model.gguf.gone"
    async with core_with(embedded(tmp_path, script), tmp_path) as core:
        answer = events(core)
        while not (await anext(answer)).get("choices", [{}])[0].get("delta", {}).get("content"):
            pass
        await answer.aclose()
        await until(mark.exists)


@pytest.mark.fault("local model: weights that are not there")
async def test_without_its_weights_the_error_names_the_download_command(tmp_path: Path) -> None:
    weights, _ = tiny_weights(content_of({}))
    async with core_with(embedded(tmp_path, weights=weights), tmp_path) as core:
        _, _, error = await answer_of(core)
    assert error
    assert "dial-agent model pull" in error["display_message"]


async def test_during_the_download_answers_wait_and_report_the_progress(tmp_path: Path) -> None:
    content = content_of({"prose": ["Here I am."]})
    weights, _ = tiny_weights(content)
    model = embedded(tmp_path, weights=weights)
    async with core_with(model, tmp_path) as core:
        with model.store.lock(weights.name):
            part = model.store.path(weights, ".part")
            part.write_bytes(content[: len(content) * 55 // 100])
            answer = events(core)
            waited = ""
            while "downloaded" not in waited:
                for choice in (await anext(answer))["choices"]:
                    waited += _stages(choice["delta"])
            part.write_bytes(content)
            part.replace(model.store.path(weights))
        text = "".join(
            [event["choices"][0]["delta"].get("content") or "" async for event in answer if event["choices"]]
        )
    assert "The local model is being downloaded: 50 %" in waited
    assert text == "Here I am."


@pytest.mark.fault("local model: a process that hangs or cannot start")
async def test_a_process_that_cannot_start_is_reported_after_a_time(tmp_path: Path) -> None:
    async with core_with(embedded(tmp_path, {"fails": "out of memory"}, load_seconds=0.5), tmp_path) as core:
        _, _, error = await answer_of(core)
    assert error
    assert "does not start" in error["display_message"]


async def test_each_process_reads_the_common_beginning_of_conversations_before_the_first_question(
    tmp_path: Path,
) -> None:
    requests = tmp_path / "small-model.gguf.requests"
    async with core_with(embedded(tmp_path, {}), tmp_path):
        await until(requests.is_file)
        await until(lambda: requests.read_bytes().endswith(b"\n"))
    [warm_up] = map(json.loads, requests.read_text().splitlines())
    assert warm_up["messages"] == [{"role": "system", "content": predicted_prefix().text()}]
