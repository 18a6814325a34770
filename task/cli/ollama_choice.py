"""Which model of a running Ollama to use, and why."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TypeVar

import aiohttp
from pydantic import BaseModel, ValidationError

from task.cli.addresses import is_loopback
from task.errors import ProviderError
from task.llm.ollama import OllamaServer, machine_memory
from task.llm.ollama_request import OllamaModel
from task.llm.transport import new_session
from task.product.backends import ollama_server
from task.settings import Settings

TIMEOUT = aiohttp.ClientTimeout(total=3, sock_connect=0.5)  # a start without Ollama does not wait
DESCRIBING_SECONDS = 5.0
EMBEDDERS = ("bert", "nomic-bert")  # families that cannot chat, for servers that list no capabilities
PULL = "ollama pull qwen3:4b"
WEIGHTS_SHARE = 0.8  # of the memory, so that the context has room beside them
SHOWN = 5
OLDEST = "0.12.6"  # the first that knows `truncate`
_NUMBER = re.compile(r"\d+")
Shape = TypeVar("Shape", bound=BaseModel)


class _Details(BaseModel):
    family: str = ""


class _Tag(BaseModel):
    name: str
    size: int = 0
    remote_host: str = ""
    details: _Details = _Details()


class _Tags(BaseModel):
    models: list[_Tag]


class _Running(BaseModel):
    name: str
    context_length: int | None = None


class _Loaded(BaseModel):
    models: list[_Running] = []


class _Version(BaseModel):
    version: str = ""


@dataclass(frozen=True, slots=True)
class OllamaChoice:
    """The model to use and why; None where the server has none that can chat. `loaded` is its context in force."""

    version: str
    model: OllamaModel | None
    reason: str
    loaded: int | None = None

    @property
    def outdated(self) -> bool:
        """Whether the server is older than what the agent needs of its API (one built from source: 0.0.0)."""
        numbers = [int(part) for part in _NUMBER.findall(self.version)[:3]]
        return any(numbers) and numbers < [int(part) for part in OLDEST.split(".")]


@dataclass(frozen=True, slots=True)
class _Candidate:
    tag: _Tag
    model: OllamaModel
    loaded: bool
    fits: bool

    @property
    def tools(self) -> bool:
        return self.model.can("tools")

    @property
    def rank(self) -> tuple[bool, bool, bool, bool, int]:
        size = self.tag.size if self.fits else -self.tag.size
        return self.tools, not self.model.remote, self.loaded, self.fits, size


async def chosen_of_ollama(settings: Settings) -> OllamaChoice | None:
    """The model of the running Ollama: the one of `DEPLOYMENT_NAME`, else the best; None where no Ollama answers.

    One with tools comes first, then one that is loaded, then the largest that fits the memory.
    """
    url = settings.ollama_local
    async with new_session() as session:
        tags = await _fetched(session, f"{url}/api/tags", _Tags)
        if tags is None:
            return None
        loaded = await _fetched(session, f"{url}/api/ps", _Loaded) or _Loaded()
        version = await _fetched(session, f"{url}/api/version", _Version) or _Version()
        contexts = {running.name: running.context_length for running in loaded.models}
        candidates = await _candidates(ollama_server(settings, session, url), tags.models, contexts.keys())
    asked = [item for item in candidates if item.model.is_named(settings.deployment_name)]
    if not candidates:
        return OllamaChoice(version.version, None, f"Ollama runs at {url} without a model; `{PULL}` gets one")
    best = max(asked or candidates, key=lambda item: item.rank)
    others = [item.tag.name for item in candidates if item is not best][:SHOWN]
    another = f"; DEPLOYMENT_NAME chooses another: {', '.join(others)}" if others else ""
    lacking = not asked and "deployment_name" in settings.model_fields_set
    without = f" without {settings.deployment_name}" if lacking else ""
    reason = f"Ollama runs at {url}{without}, and {_why(best, bool(asked), candidates)}{another}"
    return OllamaChoice(version.version, best.model, reason, contexts.get(best.tag.name))


async def _candidates(server: OllamaServer, tags: Sequence[_Tag], loaded: Collection[str]) -> list[_Candidate]:
    memory = machine_memory() if is_loopback(server.url) else 0
    models = await asyncio.gather(*(_described(server, tag) for tag in tags))
    return [
        _Candidate(tag, model, tag.name in loaded, not memory or tag.size <= WEIGHTS_SHARE * memory)
        for tag, model in zip(tags, models, strict=True)
        if model.can("completion") and (model.capabilities is not None or tag.details.family not in EMBEDDERS)
    ]


async def _described(server: OllamaServer, tag: _Tag) -> OllamaModel:
    try:
        async with asyncio.timeout(DESCRIBING_SECONDS):
            return await server.model(tag.name)
    except (ProviderError, TimeoutError):
        return OllamaModel(tag.name, 0, remote=bool(tag.remote_host))


def _why(best: _Candidate, asked: bool, candidates: Sequence[_Candidate]) -> str:
    if asked:
        why = "DEPLOYMENT_NAME asks for it"
    elif not best.tools:
        return f"none of its models can use tools, so this one answers without them (`{PULL}` gets one that can)"
    elif best.loaded:
        why = "it is loaded"
    elif len(candidates) == 1:
        why = "it is its only model"
    else:
        why = "it is the largest with tools that fits the memory" if best.fits else "no model with tools is smaller"
    return why if best.tools else f"{why}, without tools: it cannot use them"


async def _fetched(session: aiohttp.ClientSession, url: str, shape: type[Shape]) -> Shape | None:
    # Whatever answers there is not ours: anything but the expected shape counts as no answer.
    try:
        async with session.get(url, timeout=TIMEOUT) as response:
            return shape.model_validate_json(await response.read()) if response.status == 200 else None
    except (aiohttp.ClientError, TimeoutError, ValidationError):
        return None
