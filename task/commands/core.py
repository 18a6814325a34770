"""Run local Core with the model that the settings lead to, or print Core's configuration for a real DIAL Core."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from task.commands.addresses import base_url, core_is_ours, local_core_key, usable_port
from task.errors import SettingsError
from task.settings import PREFIX, Settings, process_environment
from task.settings.sources import read_dotenv

if TYPE_CHECKING:
    from aiohttp import ClientSession

    from task.commands.model_choice import ChosenModel
    from task.llm.base import ChatModel
    from task.local_core.app import CoreSettings
    from task.local_core.models import ConnectedModel, ModelChoice

OWN_CONFIG = Path(__file__).resolve().parents[2] / "core_config" / "config.json"
LATER_FEATURE = "assistantAttachmentsInRequestSupported"  # newer than Core 0.25
TEMPLATE_AGENT = "http://agent:5030"  # the service of docker-compose.yml
_VARIABLE = re.compile(r"\$\{env:([A-Za-z_][A-Za-z0-9_]*)\}")


def run(settings: Settings) -> None:
    """Serve until a signal ends it.

    Raises:
        SettingsError: the port is taken, or Core's configuration is wrong.
    """
    from task.commands.model_choice import choose_model
    from task.local_core.app import serve

    usable_port(settings.core.host, settings.core_port, "--port", f"{PREFIX}CORE_PORT")
    serve(core_settings(settings, asyncio.run(choose_model(settings, behind_core=True))))


def print_config(template: Path | None, output: Path | None, mode: int) -> None:
    """Print the filled-in configuration, or write it to `output` with the file mode `mode`."""
    text = render_config(template or OWN_CONFIG, _environment())
    if output is None:
        print(text)
    else:
        replace_file(output, text, mode)


def print_fragment(settings: Settings, template: Path | None, agent: str | None, output: Path | None) -> None:
    """Print what an existing Core needs in its configuration, or write it to `output`."""
    path, address = template or OWN_CONFIG, agent or base_url(settings.host, settings.port)
    text = config_fragment(_read(path), address.rstrip("/"), path, core025=settings.errors_in_stream)
    if output is None:
        print(text)
    else:
        replace_file(output, text, 0o644)
    if agent is None and not core_is_ours(settings):
        print(
            f"{settings.dial_endpoint} must reach this agent at {address}; --agent names another address.",
            file=sys.stderr,
        )


def config_fragment(template: str, agent: str, path: Path = OWN_CONFIG, *, core025: bool = False) -> str:
    """The applications of a configuration, and what its roles may do with them, for the agent at this address.

    With `core025` it has no feature that Core 0.25 does not know: a single one makes that Core refuse everything.

    Raises:
        SettingsError: the template is not a configuration.
    """
    try:
        config = json.loads(template.replace(TEMPLATE_AGENT, json.dumps(agent)[1:-1]))
        applications: dict[str, Any] = config["applications"]
        roles = {
            role: {"limits": {name: limit for name, limit in entry["limits"].items() if name in applications}}
            for role, entry in config["roles"].items()
        }
        for application in applications.values():
            application.pop("iconUrl", None)  # it is on the theme server of docker-compose.yml
            if core025:
                application.get("features", {}).pop(LATER_FEATURE, None)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise SettingsError(f"{path} is not a configuration with applications and roles. Correct it.") from error
    return json.dumps({"applications": applications, "roles": roles}, indent=2)


def render_config(path: Path, environment: Mapping[str, str]) -> str:
    """The file's text with every `${env:NAME}` replaced.

    Raises:
        SettingsError: the file cannot be read, a variable is not set, or the result is not JSON.
    """
    text = _read(path)
    missing = sorted({name for name in _VARIABLE.findall(text) if not environment.get(name)})
    if missing:
        raise SettingsError(f"{', '.join(missing)}: not set, but {path.name} needs it. Set it and try again.")
    filled = _VARIABLE.sub(lambda found: json.dumps(environment[found[1]])[1:-1], text)
    try:
        json.loads(filled)
    except json.JSONDecodeError as error:
        raise SettingsError(f"{path} is not valid JSON: {error}. Correct it.") from error
    return filled


def replace_file(path: Path, text: str, mode: int = 0o600, *, option: str = "--output") -> None:
    """Replace `path`, which `option` names, at once; without another `mode` only its owner may read it.

    Raises:
        SettingsError: the folder cannot be written.
    """
    unfinished = path.with_name(f".{path.name}.part")
    try:
        unfinished.unlink(missing_ok=True)
        descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            os.fchmod(file.fileno(), mode)
            file.write(text)
        os.replace(unfinished, path)
    except OSError as error:
        raise SettingsError(f"{option}: {path} cannot be written: {error.strerror}. Choose another file.") from error


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise SettingsError(f"{path} cannot be read: {error.strerror}. Name an existing file.") from error


def core_settings(settings: Settings, chosen: ChosenModel) -> CoreSettings:
    """Local Core as the settings want it, with the chosen model."""
    from task.local_core.app import CoreSettings

    core = settings.core
    return CoreSettings(
        data_folder=core.data_dir or settings.data_dir / "core",
        config_files=_config_files(settings),
        host=core.host,
        port=settings.core_port,
        allow_public=core.allow_public,
        api_key=local_core_key(settings),
        model=_model_choice(settings, chosen),
        image_model=None if settings.deployments.image == "off" else settings.deployments.image,
        host_map=core.host_map,
        allowed_hosts=frozenset(core.allowed_hosts),
        allowed_origins=frozenset(core.allowed_origins),
        environment=_environment(),
        core025=core.core025,
        keep_alive_seconds=settings.keep_alive_seconds,
    )


def _config_files(settings: Settings) -> tuple[Path, ...]:
    files = tuple(settings.core.config_files) or (OWN_CONFIG,)
    for path in files:
        if not path.is_file():
            raise SettingsError(f"AGENT_CORE__CONFIG_FILES: there is no file {path}. Name an existing one.")
    return files


def _model_choice(settings: Settings, chosen: ChosenModel) -> ModelChoice | None:
    from task.commands.model_choice import embedded_model
    from task.llm.chat_request import PROFILES
    from task.local_core.models import ScriptedDemo, UpstreamModel

    if chosen.rule == "local":
        return embedded_model(settings)
    if chosen.rule == "demo":
        return ScriptedDemo(Path(str(files("task.local_core") / "demo.yaml")), chosen.name)
    if chosen.rule == "ollama":
        return _ollama_source(settings, chosen)
    if chosen.rule == "dapr":
        return _dapr_source(settings, chosen)
    if chosen.base_url is None:
        return None
    profile = PROFILES[settings.profile] if settings.profile else None
    return UpstreamModel(chosen.base_url, chosen.name, chosen.api_key or None, profile)


def _dapr_source(settings: Settings, chosen: ChosenModel) -> ConnectedModel:
    from task.local_core.models import ConnectedModel
    from task.product.backends import dapr_server

    server = dapr_server(settings)
    return ConnectedModel(
        chosen.name, f"{chosen.name} (Dapr)", lambda _: server.chat_model(chosen.name), close=server.close
    )


def _ollama_source(settings: Settings, chosen: ChosenModel) -> ConnectedModel:
    from task.local_core.models import ConnectedModel
    from task.local_model.ollama import SizedOllamaModel, readable_tokens
    from task.product.backends import ollama_server

    def connect(session: ClientSession) -> ChatModel:
        return SizedOllamaModel(ollama_server(settings, session, settings.ollama_local), chosen.name)

    model = chosen.ollama
    context = readable_tokens(model) if model and model.context else None
    vision = bool(model and model.capabilities and "vision" in model.capabilities)
    title = f"{chosen.name} (Ollama)"
    return ConnectedModel(chosen.name, title, connect, context, model is None or model.can("tools"), vision)


def _environment() -> dict[str, str]:
    return {**read_dotenv(Path(".env")), **process_environment()}
