"""The documented settings of planning and executing, as a view of the one settings tree."""

import json
from dataclasses import dataclass

from pydantic import SecretStr

from task.product.backends import BACKENDS
from task.settings import Settings as Tree
from task.settings import load_settings as load_tree

DEFAULT_BACKEND = "ollama"


@dataclass(frozen=True)
class Settings:
    """What planning and executing need. Source: planner and executor reference, Settings.

    A model is one of Ollama, or `backend:model`; `api_key` is for `turbo_host` only.
    """

    turbo_host: str
    local_host: str
    planner_model: str
    coder_model: str
    api_key: str
    max_steps: int
    request_timeout_s: int
    dry_run: bool


def load_settings() -> Settings:
    """The settings from the environment, `.env` and the settings file, with the documented defaults.

    Raises:
        SettingsError: a value is malformed; one line with the fix.
    """
    return documented(load_tree())


def documented(settings: Tree) -> Settings:
    """The documented view of a settings tree."""
    key, models = settings.ollama_api_key, (settings.planner_model, settings.coder_model)
    limits = (settings.max_steps, settings.request_timeout_s, settings.dry_run)
    secret = key.get_secret_value() if key is not None else ""
    return Settings(settings.turbo_host, settings.ollama_local, *models, secret, *limits)


def compact_json(obj: object) -> str:
    """Compact JSON for logs: no spaces, non-ASCII characters unescaped."""
    return json.dumps(obj, ensure_ascii=False, separators=(",", ":"))


def backend_and_model(text: str) -> tuple[str, str]:
    """Split `backend:model`; what does not begin with a row of the table of backends is a name of Ollama's."""
    backend, colon, model = text.partition(":")
    return (backend, model) if colon and model and backend in BACKENDS else (DEFAULT_BACKEND, text)


def model_tree(s: Settings, text: str, host: str, tree: Tree | None = None) -> Tree:
    """The settings of a product that asks the planner's or the coder's model, at `host` where it is one of Ollama's."""
    tree, (backend, model) = tree or load_tree(), backend_and_model(text)
    changes = {
        "backend": backend,
        "deployment_name": model,
        "dapr": tree.dapr.model_copy(update={"component": model}),
        "profile": None,  # the operator's is for another model
        "ollama_local": host,
        "turbo_host": s.turbo_host,  # the only host that gets the key
        "ollama_api_key": SecretStr(s.api_key) if s.api_key else None,
    }
    return tree.model_copy(update=changes)
