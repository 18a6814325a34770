"""Which model the local product uses: the first rule that applies, and never one under another's name."""

from collections.abc import AsyncGenerator, Generator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from task.cli.model_choice import ChosenModel, choose_model
from task.settings import load_settings
from tests.support.core import served
from tests.support.mcp_processes import ServerProcess
from tests.support.ollama import ollama_process, scripted_peer
from tests.support.ports import free_port

NOWHERE = f"http://127.0.0.1:{free_port()}"


@pytest.fixture(scope="module")
def process() -> Generator[ServerProcess]:
    with ollama_process() as running:
        yield running


@asynccontextmanager
async def answering(path: str, body: Any, status: int = 200) -> AsyncGenerator[str]:
    async def answer(_: web.Request) -> web.Response:
        return web.json_response(body, status=status)

    app = web.Application()
    app.router.add_get(path, answer)
    async with served(app) as url:
        yield url


async def chosen(folder: Path, environ: Mapping[str, str]) -> ChosenModel:
    settings = load_settings(environ={"HOME": str(folder), "OLLAMA_LOCAL": NOWHERE, **environ}, directory=folder)
    return await choose_model(settings)


KEY, CORE = {"OPENAI_API_KEY": "k"}, {"DIAL_ENDPOINT": "http://core:8080"}
RULES: dict[str, tuple[dict[str, str], tuple[str, str, str | None]]] = {
    "a real Core comes first": ({**CORE, **KEY, "DEPLOYMENT_NAME": "claude"}, ("dial", "claude", None)),
    "a key alone means OpenAI": (KEY, ("upstream", "gpt-4o", "https://api.openai.com/v1")),
    "nothing means the demo under its own name": ({"DEPLOYMENT_NAME": "gpt-4o"}, ("demo", "scripted-demo", None)),
    "the setting asks for the demo": ({**KEY, "AGENT_CORE__MODEL": "demo"}, ("demo", "scripted-demo", None)),
    "the setting asks for Core's own": ({**KEY, "AGENT_CORE__MODEL": "config"}, ("config", "gpt-4o", None)),
    "the setting asks for an upstream": (
        {**KEY, "AGENT_CORE__MODEL": "upstream"}, ("upstream", "gpt-4o", "https://api.openai.com/v1"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("rule", RULES)
async def test_the_first_rule_that_applies_chooses(rule: str, tmp_path: Path) -> None:
    environ, expected = RULES[rule]
    model = await chosen(tmp_path, environ)
    assert (model.rule, model.name, model.base_url) == expected
    assert model.api_key == ("k" if model.rule == "upstream" else "")
    assert model.rule != "demo" or "AGENT_CORE__MODEL" in model.reason or "no running Ollama" in model.reason


async def test_an_upstream_that_does_not_have_the_default_model_is_asked_for_its_own(tmp_path: Path) -> None:
    async with answering("/v1/models", {"data": [{"id": "qwen3"}, {"id": "phi"}]}) as url:
        model = await chosen(tmp_path, {"OPENAI_BASE_URL": f"{url}/v1/"})
        named = await chosen(tmp_path, {"OPENAI_BASE_URL": f"{url}/v1", "DEPLOYMENT_NAME": "hidden"})
    assert (model.rule, model.name, model.base_url) == ("upstream", "qwen3", f"{url}/v1")
    assert named.name == "hidden"


def sized(gib: float, *capabilities: str, **more: Any) -> dict[str, Any]:
    """A model whose weights have this size."""
    return {"parameters": int(gib * 2**31), "capabilities": ["completion", *capabilities], **more}


OLLAMAS: list[tuple[str, dict[str, Any], str, str]] = [
    ("its only model", {"one": sized(1, "tools")}, "one", "suits best"),
    (
        "the largest with tools",
        {"a": sized(0.01, "tools"), "b": sized(0.02, "tools"), "c": sized(0.03)},
        "b",
        "suits best",
    ),
    ("one that fits", {"a": sized(0.01, "tools"), "b": sized(2**20, "tools")}, "a", "suits best"),
    ("no embedding model", {"a": sized(0.01, "tools"), "e": {"capabilities": ["embedding"]}}, "a", "suits best"),
    ("its own before the cloud's", {"a": sized(0.01, "tools"), "b": sized(0.02, "tools", remote_host="https://ollama.com")},
     "a", "suits best"),
    ("none with tools", {"a": sized(0.01), "b": sized(0.02)}, "b", "cannot use tools (`ollama pull"),
]  # fmt: skip


@pytest.mark.parametrize(("models", "name", "why"), [case[1:] for case in OLLAMAS], ids=[case[0] for case in OLLAMAS])
async def test_a_running_ollama_serves(
    process: ServerProcess, tmp_path: Path, models: dict[str, Any], name: str, why: str
) -> None:
    only = {"test-model:latest": None, **{f"{key}:latest": model for key, model in models.items()}}
    async with scripted_peer(process, models=only) as peer:
        model = await chosen(tmp_path, {"OLLAMA_LOCAL": peer.url})
    assert (model.rule, model.name, model.base_url) == ("ollama", f"{name}:latest", None)
    assert why in model.reason


async def test_a_loaded_model_with_tools_comes_before_a_larger_one(process: ServerProcess, tmp_path: Path) -> None:
    models = {"test-model:latest": None, "small:latest": sized(0.01, "tools"), "large:latest": sized(0.02, "tools")}
    async with scripted_peer(process, models=models) as peer:
        await peer.load(8192, "small")
        model = await chosen(tmp_path, {"OLLAMA_LOCAL": peer.url})
    assert (model.name, "it is loaded" in model.reason) == ("small:latest", True)
    assert "DEPLOYMENT_NAME chooses another: large:latest" in model.reason


async def test_an_ollama_without_any_model_is_named_with_the_command_that_gets_one(
    process: ServerProcess, tmp_path: Path
) -> None:
    async with scripted_peer(process, models={"test-model:latest": None}) as peer:
        model = await chosen(tmp_path, {"OLLAMA_LOCAL": peer.url})
        forced = await chosen(tmp_path, {"OLLAMA_LOCAL": peer.url, "AGENT_CORE__MODEL": "ollama"})
    assert (model.rule, forced.rule) == ("demo", "ollama")
    assert "`ollama pull qwen3:4b` gets one" in model.reason
    assert "`ollama pull qwen3:4b` gets one" in forced.reason


@pytest.mark.parametrize(("body", "status"), [({"models": []}, 200), (["?"], 200), ({"models": [1]}, 200), ({}, 500)])
async def test_an_ollama_without_models_or_something_else_on_its_port_is_not_a_model(
    tmp_path: Path, body: Any, status: int
) -> None:
    async with answering("/api/tags", body, status) as url:
        assert (await chosen(tmp_path, {"OLLAMA_LOCAL": url})).rule == "demo"
