"""Which model the local product uses: the first rule that applies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeVar

import aiohttp
from pydantic import BaseModel, Field, ValidationError

from task.commands.local_model import is_here, name_of, own_file
from task.settings import Settings

OPENAI = "https://api.openai.com/v1"
DEMO_MODEL = "scripted-demo"
OLLAMA_TIMEOUT = aiohttp.ClientTimeout(total=0.5)
LISTING_TIMEOUT = aiohttp.ClientTimeout(total=2)
EMBEDDERS = ("bert", "nomic-bert")  # families that cannot chat

Rule = Literal["dial", "config", "upstream", "ollama", "local", "demo"]
Shape = TypeVar("Shape", bound=BaseModel)


class _Model(BaseModel):
    id: str


class _Listing(BaseModel):
    data: list[_Model] = Field(default_factory=list[_Model])


class _Details(BaseModel):
    family: str = ""


class _Tag(BaseModel):
    name: str
    details: _Details = _Details()


class _Tags(BaseModel):
    models: list[_Tag] = Field(default_factory=list[_Tag])


@dataclass(frozen=True, slots=True)
class ChosenModel:
    """The model in use, the rule that chose it, and why; `base_url` and `api_key` lead to an upstream."""

    rule: Rule
    name: str
    reason: str
    base_url: str | None = None
    api_key: str = ""


async def choose_model(settings: Settings, *, behind_core: bool = False) -> ChosenModel:
    """The model of the local product; `behind_core` asks for local Core itself, which never uses another Core."""
    if not behind_core and "dial_endpoint" in settings.model_fields_set:
        return ChosenModel("dial", settings.deployment_name, f"DIAL_ENDPOINT is set: {settings.dial_endpoint}")
    if settings.core.model == "demo":
        return _demo("AGENT_CORE__MODEL asks for it")
    if settings.core.model == "config":
        return ChosenModel("config", settings.deployment_name, "AGENT_CORE__MODEL takes Core's configuration")
    if settings.core.model == "local":
        return _local(settings, "AGENT_CORE__MODEL asks for it")
    if settings.core.model == "upstream" or settings.openai_api_key or settings.openai_base_url:
        return await _upstream(settings)
    if found := await _ollama(settings):
        return found
    if is_here(settings):
        return _local(settings, "it is on this machine, and no other model is connected")
    return _demo("no DIAL_ENDPOINT, no OPENAI_API_KEY or OPENAI_BASE_URL, no running Ollama, no local model")


def _demo(reason: str) -> ChosenModel:
    return ChosenModel("demo", DEMO_MODEL, reason)


def _local(settings: Settings, reason: str) -> ChosenModel:
    own_file(settings)
    return ChosenModel("local", name_of(settings), reason)


async def _upstream(settings: Settings) -> ChosenModel:
    base_url = settings.openai_base_url or OPENAI
    api_key = settings.openai_api_key.get_secret_value() if settings.openai_api_key else ""
    reason = f"OPENAI_BASE_URL is set: {base_url}" if settings.openai_base_url else "OPENAI_API_KEY is set"
    name = settings.deployment_name
    if settings.openai_base_url and "deployment_name" not in settings.model_fields_set:
        names = await listed_models(base_url, api_key)
        name = name if not names or name in names else names[0]
    return ChosenModel("upstream", name, reason, base_url, api_key)


async def listed_models(base_url: str, api_key: str) -> list[str]:
    """The ids an OpenAI-compatible upstream lists; none when it does not answer the question in time."""
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    listing = await _fetched(f"{base_url}/models", _Listing, LISTING_TIMEOUT, headers)
    return [model.id for model in listing.data]


async def _ollama(settings: Settings) -> ChosenModel | None:
    tags = await _fetched(f"{settings.ollama_local}/api/tags", _Tags, OLLAMA_TIMEOUT, {})
    names = [model.name for model in tags.models if model.details.family not in EMBEDDERS]
    if not names:
        return None
    wanted = settings.deployment_name
    name = wanted if wanted in names else names[0]
    return ChosenModel("ollama", name, f"Ollama runs at {settings.ollama_local}", f"{settings.ollama_local}/v1")


async def _fetched(url: str, shape: type[Shape], limit: aiohttp.ClientTimeout, headers: dict[str, str]) -> Shape:
    # Whatever answers there is not ours: anything but the expected shape counts as no answer.
    try:
        async with aiohttp.ClientSession(timeout=limit) as session, session.get(url, headers=headers) as response:
            return shape.model_validate_json(await response.read()) if response.status == 200 else shape()
    except (aiohttp.ClientError, TimeoutError, ValidationError):
        return shape()
