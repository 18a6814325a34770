"""Which model the local product uses: the first rule that applies, and which model of Ollama, Dapr or this machine."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import aiohttp

from task.cli.addresses import core_is_ours, is_local
from task.errors import ProviderError, SettingsError
from task.llm import openai
from task.llm.ollama import OllamaServer, machine_memory
from task.llm.ollama_request import OllamaModel
from task.llm.transport import listed, listing, new_session
from task.local.model.process import EmbeddedModel
from task.local.model.weights import CODER, WeightStore
from task.product.backends import BACKENDS, dapr_server, ollama_server
from task.settings import Settings

OPENAI = "https://api.openai.com/v1"
DEMO_MODEL = "scripted-demo"
DESCRIBING_SECONDS = 5.0
PULL = "ollama pull qwen3:4b"
WEIGHTS_SHARE = 0.8  # of the memory, so that the context has room beside them
SHOWN = 5

Rule = Literal["dial", "config", "upstream", "ollama", "dapr", "local", "demo"]


@dataclass(frozen=True, slots=True)
class ChosenModel:
    """The model in use, the rule that chose it, and why.

    `base_url` and `api_key` lead to an upstream; `ollama` is what Ollama reports of its model, None where it has none
    that can chat; `described` is what Ollama or Dapr's sidecar reports of itself, `fault` what is wrong with Dapr.
    """

    rule: Rule
    name: str
    reason: str
    base_url: str | None = None
    api_key: str = ""
    ollama: OllamaModel | None = None
    described: str = ""
    fault: str = ""

    @property
    def backend(self) -> str | None:
        """The backend that leads to it without a Core; None where only a Core has it."""
        return {"ollama": "ollama", "upstream": "openai", "dapr": "dapr"}.get(self.rule)


async def choose_model(settings: Settings, *, behind_core: bool = False) -> ChosenModel:
    """The model of the local product; `behind_core` asks for local Core itself, which never uses another Core.

    Raises:
        SettingsError: the user's own model file is not a GGUF file, or Dapr cannot be used.
    """
    if not behind_core and not core_is_ours(settings):
        return ChosenModel("dial", settings.deployment_name, f"DIAL_ENDPOINT is set: {settings.dial_endpoint}")
    wanted = settings.core.model
    if wanted == "demo":
        return ChosenModel("demo", DEMO_MODEL, "AGENT_CORE__MODEL asks for it")
    if wanted == "config":
        return ChosenModel("config", settings.deployment_name, "AGENT_CORE__MODEL takes Core's configuration")
    if wanted == "local":
        own_file(settings)
        return ChosenModel("local", local_name(settings), "AGENT_CORE__MODEL asks for it")
    if BACKENDS[settings.backend].sidecar and wanted == "auto":
        return await chosen_of_dapr(settings)
    if wanted == "upstream" or settings.openai_api_key or settings.openai_base_url:
        base_url, name = settings.openai_base_url or OPENAI, settings.deployment_name
        api_key = settings.openai_api_key.get_secret_value() if settings.openai_api_key else ""
        reason = f"OPENAI_BASE_URL is set: {base_url}" if settings.openai_base_url else "OPENAI_API_KEY is set"
        if settings.openai_base_url and "deployment_name" not in settings.model_fields_set:
            names, _ = await upstream_models(base_url, api_key)
            name = name if not names or name in names else names[0]
        return ChosenModel("upstream", name, reason, base_url, api_key)
    ollama = await chosen_of_ollama(settings)
    if ollama is not None and ollama.ollama is not None:
        return ollama
    lacking = ollama.reason if ollama is not None else "no running Ollama"
    if wanted == "ollama":
        return ChosenModel("ollama", settings.deployment_name, f"AGENT_CORE__MODEL asks for Ollama, but: {lacking}")
    if own_file(settings) is not None or embedded_model(settings).found() is not None:
        return ChosenModel("local", local_name(settings), "it is on this machine, and no other model is connected")
    reason = f"no DIAL_ENDPOINT, no OPENAI_API_KEY or OPENAI_BASE_URL, {lacking}, no local model"
    return ChosenModel("demo", DEMO_MODEL, reason)


async def upstream_models(base_url: str, api_key: str) -> tuple[list[str], int | None]:
    """The ids that an OpenAI-compatible upstream lists, and its HTTP status; None when it does not answer in time."""
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    async with new_session() as session:
        if names := await openai.listed_models(session, base_url, api_key):
            return names, 200
        try:
            async with asyncio.timeout(2), session.get(f"{base_url}/models", headers=headers) as response:
                return [], response.status
        except (aiohttp.ClientError, TimeoutError):
            return [], None


def weight_store(settings: Settings) -> WeightStore:
    """Where downloaded models lie."""
    return WeightStore(settings.local_model.folder or settings.cache_dir / "models")


def own_file(settings: Settings) -> Path | None:
    """The user's own GGUF file.

    Raises:
        SettingsError: it is not one.
    """
    file = settings.local_model.file
    if file is not None:
        try:
            with file.open("rb") as opened:
                begins = opened.read(4)
        except OSError as error:
            raise SettingsError(f"AGENT_LOCAL_MODEL__FILE: {file} cannot be read ({error.strerror}).") from error
        if begins != b"GGUF":
            raise SettingsError(f"AGENT_LOCAL_MODEL__FILE: {file} is not a GGUF file.")
    return file


def local_name(settings: Settings) -> str:
    """What the model on this machine is called everywhere: the known weights' name, or that of the user's file."""
    return settings.local_model.file.stem if settings.local_model.file else CODER.name


def embedded_model(settings: Settings) -> EmbeddedModel:
    """The model on this machine as local Core runs it."""
    local, own = settings.local_model, settings.local_model.file
    return EmbeddedModel(
        name=local_name(settings),
        title=f"{own.stem} (on this machine)" if own else CODER.title,
        store=weight_store(settings),
        weights=None if own else CODER,
        file=own,
        context=local.context_tokens,
        answer_tokens=local.answer_tokens,
        threads=local.threads,
        queue=local.queue,
    )


async def chosen_of_ollama(settings: Settings) -> ChosenModel | None:
    """The model of the running Ollama: the one of `DEPLOYMENT_NAME`, else the best; None where no Ollama answers.

    One with tools comes first, then one that is loaded, then the largest that fits the memory.
    """
    url = settings.ollama_local
    async with new_session() as session:
        tags = await _items(session, f"{url}/api/tags")
        if tags is None:
            return None
        running = await _items(session, f"{url}/api/ps") or {}
        about = await listing(session, f"{url}/api/version", {})
        models = await _described(ollama_server(settings, session, url), tags)
    server = f"version {about.get('version') if isinstance(about, dict) else 'unknown'} at {url}"
    contexts = {name: item.get("context_length") for name, item in running.items()}
    if not models:
        lacking = f"Ollama runs at {url} without a model; `{PULL}` gets one"
        return ChosenModel("ollama", "", lacking, described=f"{server}, without a model")
    memory = machine_memory() if is_local(url) else 0

    def rank(model: OllamaModel) -> tuple[bool, bool, bool, bool, int]:
        size = int(tags[model.name].get("size") or 0)
        fits = not memory or size <= WEIGHTS_SHARE * memory
        return model.can("tools"), not model.remote, model.name in contexts, fits, size if fits else -size

    asked = [model for model in models if model.is_named(settings.deployment_name)]
    best = max(asked or models, key=rank)
    others = [model.name for model in models if model is not best][:SHOWN]
    another = f"; DEPLOYMENT_NAME chooses another: {', '.join(others)}" if others else ""
    wanted = not asked and "deployment_name" in settings.model_fields_set
    without = f" without {settings.deployment_name}" if wanted else ""
    unasked = "it is loaded" if best.name in contexts else "of its models it suits best"
    why = "DEPLOYMENT_NAME asks for it" if asked else unasked
    weak = "" if best.can("tools") else f", but it cannot use tools (`{PULL}` gets one that can)"
    reason = f"Ollama runs at {url}{without}, and {why}{weak}{another}"
    can = ", ".join(sorted(best.capabilities or ())) or "capabilities unknown"
    loaded = contexts.get(best.name)
    force = f"{loaded:,} tokens in force" if loaded else "not loaded"
    described = f"{server}; {best.name}: {can}; context {best.context:,} tokens ({force})"
    return ChosenModel("ollama", best.name, reason, ollama=best, described=described)


async def _described(server: OllamaServer, tags: Mapping[str, Mapping[str, Any]]) -> list[OllamaModel]:
    # Those that can chat.
    async def described(name: str) -> OllamaModel:
        try:
            async with asyncio.timeout(DESCRIBING_SECONDS):
                return await server.model(name)
        except (ProviderError, TimeoutError):
            return OllamaModel(name, 0, remote=bool(tags[name].get("remote_host")))

    return [model for model in await asyncio.gather(*map(described, tags)) if model.can("completion")]


async def _items(session: aiohttp.ClientSession, url: str) -> dict[str, dict[str, Any]] | None:
    found = await listed(session, url, {}, "models")
    return {item["name"]: item for item in found if "name" in item} if found is not None else None


async def chosen_of_dapr(settings: Settings) -> ChosenModel:
    """The component of the settings' sidecar.

    Raises:
        SettingsError: Dapr's client is not installed, or the sidecar's address is none.
    """
    once = settings.llm.model_copy(update={"attempts": 1})
    server = dapr_server(settings.model_copy(update={"llm": once}))
    name, reason = settings.dapr.component or settings.deployment_name, f"AGENT_BACKEND asks for Dapr at {server.place}"
    try:
        sidecar = await server.sidecar()
        name = await server.component(settings.deployment_name)
        kind = sidecar.kind(name, server.place)
    except ProviderError as error:
        return ChosenModel("dapr", name, reason, fault=error.display_message or str(error))
    finally:
        await server.close()
    described = f"version {sidecar.version or 'unknown'} at {server.place}; {name}: {kind}"
    return ChosenModel("dapr", name, reason, described=described)
