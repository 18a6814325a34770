"""Which model the local product uses: the first rule that applies, and the model on this machine behind one of them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import aiohttp

from task.cli.addresses import core_is_ours
from task.cli.dapr_choice import chosen_of_dapr
from task.cli.ollama_choice import chosen_of_ollama
from task.errors import SettingsError
from task.llm import openai
from task.llm.ollama_request import OllamaModel
from task.llm.transport import new_session
from task.local.model.weights import CODER, EmbeddedModel, WeightStore, gguf_fault
from task.settings import Settings

OPENAI = "https://api.openai.com/v1"
DEMO_MODEL = "scripted-demo"
LISTING_SECONDS = 2

Rule = Literal["dial", "config", "upstream", "ollama", "dapr", "local", "demo"]


@dataclass(frozen=True, slots=True)
class ChosenModel:
    """The model in use, the rule that chose it, and why.

    `base_url` and `api_key` lead to an upstream, `ollama` is what
    Ollama reports of its model."""

    rule: Rule
    name: str
    reason: str
    base_url: str | None = None
    api_key: str = ""
    ollama: OllamaModel | None = None


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
    if settings.backend == "dapr" and settings.core.model == "auto":
        dapr = await chosen_of_dapr(settings)
        return ChosenModel("dapr", dapr.name, dapr.reason)
    if settings.core.model == "upstream" or settings.openai_api_key or settings.openai_base_url:
        return await _upstream(settings)
    ollama = await chosen_of_ollama(settings)
    if ollama is not None and ollama.model is not None:
        return ChosenModel("ollama", ollama.model.name, ollama.reason, ollama=ollama.model)
    lacking = "no running Ollama" if ollama is None else ollama.reason
    if settings.core.model == "ollama":
        return ChosenModel("ollama", settings.deployment_name, f"AGENT_CORE__MODEL asks for Ollama, but: {lacking}")
    if own_file(settings) is not None or embedded_model(settings).found() is not None:
        reason = "it is on this machine, and no other model is connected"
        return ChosenModel("local", local_name(settings), reason)
    reason = f"no DIAL_ENDPOINT, no OPENAI_API_KEY or OPENAI_BASE_URL, {lacking}, no local model"
    return ChosenModel("demo", DEMO_MODEL, reason)


async def listed_models(base_url: str, api_key: str) -> list[str]:
    """The ids that an OpenAI-compatible upstream lists; none when it does not answer in time."""
    async with new_session() as session:
        return await openai.listed_models(session, base_url, api_key)


async def listing_status(base_url: str, api_key: str) -> int | None:
    """The HTTP status of an upstream's list of models; None when it does not answer in time."""
    try:
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(LISTING_SECONDS)) as session,
            session.get(
                f"{base_url}/models", headers={"Authorization": f"Bearer {api_key}"} if api_key else {}
            ) as response,
        ):
            return response.status
    except (aiohttp.ClientError, TimeoutError):
        return None


async def running_ollama(settings: Settings) -> ChosenModel | None:
    """The model of a running Ollama: the one of the settings where it has that one; None where it has none at all."""
    found = await chosen_of_ollama(settings)
    if found is None or found.model is None:
        return None
    return ChosenModel("ollama", found.model.name, found.reason, ollama=found.model)


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


async def _upstream(settings: Settings) -> ChosenModel:
    base_url = settings.openai_base_url or OPENAI
    api_key = settings.openai_api_key.get_secret_value() if settings.openai_api_key else ""
    reason = f"OPENAI_BASE_URL is set: {base_url}" if settings.openai_base_url else "OPENAI_API_KEY is set"
    name = settings.deployment_name
    if settings.openai_base_url and "deployment_name" not in settings.model_fields_set:
        names = await listed_models(base_url, api_key)
        name = name if not names or name in names else names[0]
    return ChosenModel("upstream", name, reason, base_url, api_key)
