"""Which models plan and carry out a coding run: those that are named, else Ollama's, else the local product's."""

from __future__ import annotations

from dataclasses import replace
from urllib.parse import urlsplit

from task.cli.addresses import core_address, is_loopback, key_for
from task.cli.model_choice import choose_model, running_ollama
from task.coding.run import ModelAccess
from task.coding.settings import DEFAULT_BACKEND, backend_and_model, coder_tree, documented, planner_tree
from task.errors import SettingsError
from task.product import opened
from task.product.backends import dapr_address
from task.settings import Settings
from task.tools.models import Caller

NO_MODEL = (
    "No model is connected that could plan and write code: set CODER_MODEL and PLANNER_MODEL (such as openai:gpt-4o "
    "with OPENAI_API_KEY), run Ollama, or start the product with `make run`."
)
NO_KEY = (
    "OLLAMA_API_KEY is not set, and the planner {model} is at {host}. Set the key, set TURBO_HOST to an Ollama without "
    "one, or name a model of another backend as PLANNER_MODEL, such as openai:gpt-4o."
)


async def coding_models(settings: Settings, owner: str) -> tuple[ModelAccess, ModelAccess]:
    """The planner's and the coder's model.

    Raises:
        SettingsError: there is no model, or a key is missing; one line with the fix.
    """
    default = await _default_coder(settings)
    given = documented(settings)
    coder_model = default or given.coder_model
    planner_model = given.planner_model
    if backend_and_model(planner_model)[0] == DEFAULT_BACKEND and not _has_planner(settings):
        if "planner_model" in settings.model_fields_set:
            raise SettingsError(NO_KEY.format(model=planner_model, host=settings.turbo_host))
        # Nothing is set up for planning: the coder's model plans too.
        planner_model, given = coder_model, replace(given, turbo_host=given.local_host)
    given = replace(given, planner_model=planner_model, coder_model=coder_model)
    planner = _access(planner_tree(given, settings), settings, owner)
    return planner, _access(coder_tree(given, settings), settings, owner)


def _has_planner(settings: Settings) -> bool:
    chosen = "turbo_host" in settings.model_fields_set
    return chosen or settings.ollama_api_key is not None or is_loopback(settings.turbo_host)


async def _default_coder(settings: Settings) -> str | None:
    """`backend:model` where no coder is set and Ollama does not have the documented one."""
    if "coder_model" in settings.model_fields_set:
        return None
    as_asked = settings.model_copy(update={"deployment_name": settings.coder_model})
    chosen = await running_ollama(as_asked) or await choose_model(settings)
    if chosen.rule == "demo":
        raise SettingsError(NO_MODEL)
    backend = {"ollama": "ollama", "upstream": "openai", "dapr": "dapr"}.get(chosen.rule, "dial")
    return f"{backend}:{chosen.name}"


def _access(tree: Settings, settings: Settings, owner: str) -> ModelAccess:
    async def principal() -> str:
        return owner

    key, place = "", {"ollama": tree.ollama_local, "openai": tree.openai_base_url or "https://api.openai.com"}
    if tree.backend == "dial":
        address = core_address(settings)
        key, tree = key_for(settings, address), tree.model_copy(update={"dial_endpoint": address})
        place["dial"] = address
    host = urlsplit(place[tree.backend]).netloc if tree.backend != "dapr" else dapr_address(tree)
    label = f"{tree.deployment_name} ({_NAMES[tree.backend]} at {host})"
    services, profile = opened(tree, tools=(), read_seconds=settings.request_timeout_s)
    return ModelAccess(services, profile, Caller(key, principal), label)


_NAMES = {"ollama": "Ollama", "openai": "OpenAI API", "dial": "DIAL Core", "dapr": "Dapr"}
