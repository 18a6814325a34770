"""Which model the console talks to: the one that is named, else a running product's, else what is connected."""

from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from aiohttp import web

from task.cli.chat import completed
from task.errors import SettingsError
from task.settings import Settings, load_settings
from tests.support.core import API_KEY, local_core, served
from tests.support.isolation import NO_OLLAMA
from tests.support.ollama import ollama_peer
from tests.support.ports import free_port

MODELS: dict[str, Any] = {
    "models": {name: {"type": "chat", "endpoint": "http://127.0.0.1:9"} for name in ("first", "second")}
}


async def chosen(folder: Path, config: str = "", **environ: str) -> Settings:
    """The completed settings; no Core and no Ollama answer unless the variables lead to one."""
    file = folder / "config.yaml"
    file.write_text(config)
    nowhere = {"HOME": str(folder), "OLLAMA_LOCAL": NO_OLLAMA, "AGENT_CORE_PORT": str(free_port())}
    settings = load_settings(file, environ={**nowhere, **environ}, directory=folder)
    return await completed(settings)


def core_at(url: str) -> dict[str, str]:
    return {"AGENT_CORE_PORT": str(urlsplit(url).port), "DIAL_API_KEY": API_KEY}


async def test_an_openai_key_or_a_running_ollama_is_used_without_a_product(tmp_path: Path) -> None:
    openai = await chosen(tmp_path, OPENAI_API_KEY="sk", DEPLOYMENT_NAME="gpt-5")
    assert (openai.backend, openai.deployment_name, openai.dial_api_key) == ("openai", "gpt-5", None)
    async with ollama_peer() as peer:
        ollama = await chosen(tmp_path, OLLAMA_LOCAL=peer.url)
        assert (ollama.backend, ollama.deployment_name) == ("ollama", "test-model:latest")


async def test_a_running_product_comes_first_with_the_model_that_is_named_or_its_own(tmp_path: Path) -> None:
    async with local_core(MODELS, tmp_path) as core:
        own = await chosen(tmp_path, OPENAI_API_KEY="sk", **core_at(core.url))
        named = await chosen(tmp_path, DEPLOYMENT_NAME="second", **core_at(core.url))
        local = await chosen(tmp_path, "llm: {provider: local}", **core_at(core.url))
        beside = await chosen(tmp_path, AGENT_BACKEND="openai", DEPLOYMENT_NAME="gpt-5", **core_at(core.url))
    assert (own.backend, own.deployment_name, own.dial_endpoint) == ("dial", "first", core.url)
    assert named.deployment_name == "second"
    assert (local.backend, local.core.model) == ("dial", "local")
    assert (beside.backend, beside.deployment_name, beside.dial_endpoint) == ("openai", "gpt-5", core.url)


async def test_the_servers_beside_a_running_product_are_used_where_they_answer(tmp_path: Path) -> None:
    async def healthy(_: web.Request) -> web.Response:
        return web.json_response({})

    app = web.Application()
    app.router.add_get("/health", healthy)
    async with local_core(MODELS, tmp_path) as core, served(app) as search:
        ports = {"AGENT_SEARCH_PORT": str(urlsplit(search).port), "AGENT_INTERPRETER__PORT": str(free_port())}
        settings = await chosen(tmp_path, AGENT_DATA_DIR=str(tmp_path / "data"), **core_at(core.url), **ports)
        named = await chosen(tmp_path, DDG_MCP_URL="http://search.example/mcp", **core_at(core.url), **ports)
    assert (settings.ddg_mcp_url, settings.pyinterpreter_mcp_url) == (f"{search}/mcp", None)
    assert settings.mcp_token is not None
    assert settings.mcp_token.get_secret_value() == (tmp_path / "data" / "mcp.key").read_text().strip()
    assert named.ddg_mcp_url == "http://search.example/mcp"


@pytest.mark.fault("console: no model, or no DIAL Core where one is configured")
@pytest.mark.parametrize(
    ("config", "environ", "words"),
    [
        ("", {}, "No model is connected"),
        ("llm: {provider: dial}", {}, "No DIAL Core answers at"),
        ("llm: {provider: local}", {}, "No DIAL Core answers at"),
        ("", {"DIAL_ENDPOINT": "http://core.example"}, "DIAL_API_KEY is not set"),
    ],
    ids=["nothing", "dial", "local", "key"],
)
async def test_what_is_missing_is_named_with_the_fix(
    tmp_path: Path, config: str, environ: dict[str, str], words: str
) -> None:
    with pytest.raises(SettingsError, match=words):
        await chosen(tmp_path, config, **environ)
