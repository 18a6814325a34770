"""Which model the local product uses: the first rule that applies, and which model of Ollama, Dapr or this machine."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import aiohttp
from pydantic import BaseModel, ValidationError

from task.cli.addresses import core_is_ours, is_loopback
from task.errors import ProviderError, SettingsError
from task.llm import openai
from task.llm.ollama import OllamaServer, machine_memory
from task.llm.ollama_request import OllamaModel
from task.llm.transport import new_session
from task.local.model.process import EmbeddedModel
from task.local.model.weights import CODER, WeightStore, gguf_fault
from task.product.backends import BACKENDS, dapr_server, ollama_server
from task.settings import Settings

OPENAI = "https://api.openai.com/v1"
DEMO_MODEL = "scripted-demo"
OLLAMA_TIMEOUT = aiohttp.ClientTimeout(total=3, sock_connect=0.5)  # a start without Ollama does not wait
DESCRIBING_SECONDS = 5.0
EMBEDDERS = ("bert", "nomic-bert")  # families that cannot chat, for servers that list no capabilities
PULL = "ollama pull qwen3:4b"
WEIGHTS_SHARE = 0.8  # of the memory, so that the context has room beside them
SHOWN = 5
OLDEST = "0.12.6"  # the first that knows `truncate`
_NUMBER = re.compile(r"\d+")

Rule = Literal["dial", "config", "upstream", "ollama", "dapr", "local", "demo"]


@dataclass(frozen=True, slots=True)
class ChosenModel:
    """The model in use, the rule that chose it, and why.

    `base_url` and `api_key` lead to an upstream, `ollama` is what Ollama reports of its model.
    """

    rule: Rule
    name: str
    reason: str
    base_url: str | None = None
    api_key: str = ""
    ollama: OllamaModel | None = None

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
    if settings.core.model == "demo":
        return ChosenModel("demo", DEMO_MODEL, "AGENT_CORE__MODEL asks for it")
    if settings.core.model == "config":
        return ChosenModel("config", settings.deployment_name, "AGENT_CORE__MODEL takes Core's configuration")
    if settings.core.model == "local":
        own_file(settings)
        return ChosenModel("local", local_name(settings), "AGENT_CORE__MODEL asks for it")
    if BACKENDS[settings.backend].sidecar and settings.core.model == "auto":
        dapr = await chosen_of_dapr(settings)
        return ChosenModel("dapr", dapr.name, dapr.reason)
    if settings.core.model == "upstream" or settings.openai_api_key or settings.openai_base_url:
        base_url, name = settings.openai_base_url or OPENAI, settings.deployment_name
        api_key = settings.openai_api_key.get_secret_value() if settings.openai_api_key else ""
        reason = f"OPENAI_BASE_URL is set: {base_url}" if settings.openai_base_url else "OPENAI_API_KEY is set"
        if settings.openai_base_url and "deployment_name" not in settings.model_fields_set:
            names, _ = await upstream_models(base_url, api_key)
            name = name if not names or name in names else names[0]
        return ChosenModel("upstream", name, reason, base_url, api_key)
    ollama = await chosen_of_ollama(settings)
    if ollama is not None and ollama.chosen is not None:
        return ollama.chosen
    lacking = ollama.reason if ollama is not None else "no running Ollama"
    if settings.core.model == "ollama":
        return ChosenModel("ollama", settings.deployment_name, f"AGENT_CORE__MODEL asks for Ollama, but: {lacking}")
    if own_file(settings) is not None or embedded_model(settings).found() is not None:
        reason = "it is on this machine, and no other model is connected"
        return ChosenModel("local", local_name(settings), reason)
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
    if file is not None and (fault := gguf_fault(file)):
        raise SettingsError(f"AGENT_LOCAL_MODEL__FILE: {fault}.")
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


class _OllamaItem(BaseModel):
    name: str
    size: int = 0
    remote_host: str = ""
    context_length: int | None = None
    details: dict[str, Any] = {}


class _ListedModels(BaseModel):
    models: list[_OllamaItem] | None = None
    version: str = ""


@dataclass(frozen=True, slots=True)
class OllamaChoice:
    """The model to use and why; None where the server has none that can chat. `loaded` is its context in force."""

    version: str
    model: OllamaModel | None
    reason: str
    loaded: int | None = None

    @property
    def chosen(self) -> ChosenModel | None:
        return ChosenModel("ollama", self.model.name, self.reason, ollama=self.model) if self.model else None

    @property
    def outdated(self) -> bool:
        """Whether the server is older than what the agent needs of its API (one built from source: 0.0.0)."""
        numbers = [int(part) for part in _NUMBER.findall(self.version)[:3]]
        return any(numbers) and numbers < [int(part) for part in OLDEST.split(".")]


@dataclass(frozen=True, slots=True)
class _Candidate:
    size: int
    model: OllamaModel
    loaded: bool
    fits: bool

    @property
    def rank(self) -> tuple[bool, bool, bool, bool, int]:
        size = self.size if self.fits else -self.size
        return self.model.can("tools"), not self.model.remote, self.loaded, self.fits, size


async def chosen_of_ollama(settings: Settings) -> OllamaChoice | None:
    """The model of the running Ollama: the one of `DEPLOYMENT_NAME`, else the best; None where no Ollama answers.

    One with tools comes first, then one that is loaded, then the largest that fits the memory.
    """
    url = settings.ollama_local
    async with new_session() as session:
        tags = (await _fetched(session, f"{url}/api/tags")).models
        if tags is None:
            return None
        running = (await _fetched(session, f"{url}/api/ps")).models or []
        version = (await _fetched(session, f"{url}/api/version")).version
        contexts = {item.name: item.context_length for item in running}
        candidates = await _candidates(ollama_server(settings, session, url), tags, contexts.keys())
    if not candidates:
        return OllamaChoice(version, None, f"Ollama runs at {url} without a model; `{PULL}` gets one")
    asked = [item for item in candidates if item.model.is_named(settings.deployment_name)]
    best = max(asked or candidates, key=lambda item: item.rank)
    others = [item.model.name for item in candidates if item is not best][:SHOWN]
    another = f"; DEPLOYMENT_NAME chooses another: {', '.join(others)}" if others else ""
    lacking = not asked and "deployment_name" in settings.model_fields_set
    without = f" without {settings.deployment_name}" if lacking else ""
    why = "DEPLOYMENT_NAME asks for it" if asked else "it is loaded" if best.loaded else "of its models it suits best"
    weak = "" if best.model.can("tools") else f", but it cannot use tools (`{PULL}` gets one that can)"
    reason = f"Ollama runs at {url}{without}, and {why}{weak}{another}"
    return OllamaChoice(version, best.model, reason, contexts.get(best.model.name))


async def _candidates(server: OllamaServer, tags: Sequence[_OllamaItem], loaded: Collection[str]) -> list[_Candidate]:
    memory = machine_memory() if is_loopback(server.url) else 0

    async def described(tag: _OllamaItem) -> OllamaModel:
        try:
            async with asyncio.timeout(DESCRIBING_SECONDS):
                return await server.model(tag.name)
        except (ProviderError, TimeoutError):
            return OllamaModel(tag.name, 0, remote=bool(tag.remote_host))

    models = await asyncio.gather(*map(described, tags))
    return [
        _Candidate(tag.size, model, tag.name in loaded, not memory or tag.size <= WEIGHTS_SHARE * memory)
        for tag, model in zip(tags, models, strict=True)
        if model.can("completion") and (model.capabilities is not None or tag.details.get("family") not in EMBEDDERS)
    ]


async def _fetched(session: aiohttp.ClientSession, url: str) -> _ListedModels:
    # Whatever answers there is not ours: anything but the expected shape counts as no answer.
    try:
        async with session.get(url, timeout=OLLAMA_TIMEOUT) as response:
            if response.status == 200:
                return _ListedModels.model_validate_json(await response.read())
    except (aiohttp.ClientError, TimeoutError, ValidationError):
        pass
    return _ListedModels()


@dataclass(frozen=True, slots=True)
class DaprChoice:
    """The component and why it is used; `described` is what the sidecar reports, `fault` what is wrong with it."""

    name: str
    reason: str
    described: str = ""
    fault: str = ""


async def chosen_of_dapr(settings: Settings) -> DaprChoice:
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
        return DaprChoice(name, reason, fault=error.display_message or str(error))
    finally:
        await server.close()
    return DaprChoice(name, reason, f"version {sidecar.version or 'unknown'} at {server.place}; {name}: {kind}")
