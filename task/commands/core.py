"""Run local Core with the model that the settings lead to."""

from __future__ import annotations

import asyncio
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from task.commands import ports
from task.commands.addresses import local_core_key
from task.commands.core_config import config_files
from task.commands.local_model import embedded
from task.commands.model_choice import ChosenModel, choose_model
from task.settings import PREFIX, Settings, process_environment
from task.settings.sources import read_dotenv

if TYPE_CHECKING:
    from task.local_core.app import CoreSettings
    from task.local_core.models import ModelChoice


def run(settings: Settings) -> None:
    """Serve until a signal ends it.

    Raises:
        SettingsError: the port is taken, or Core's configuration is wrong.
    """
    from task.local_core.app import serve

    ports.require_free(settings.core.host, settings.core_port, "--port", f"{PREFIX}CORE_PORT")
    chosen = asyncio.run(choose_model(settings, behind_core=True))
    serve(core_settings(settings, chosen))


def core_settings(settings: Settings, chosen: ChosenModel) -> CoreSettings:
    """What `task.local_core` needs to know, from the settings and the model chosen for it."""
    from task.local_core.app import CoreSettings

    core = settings.core
    folder = core.data_dir or settings.data_dir / "core"
    return CoreSettings(
        data_folder=folder,
        config_files=tuple(config_files(settings)),
        host=core.host,
        port=settings.core_port,
        allow_public=core.allow_public,
        api_key=local_core_key(settings),
        model=_model_choice(settings, chosen),
        image_model=None if settings.deployments.image == "off" else settings.deployments.image,
        host_map=core.host_map,
        allowed_hosts=frozenset(core.allowed_hosts),
        allowed_origins=frozenset(core.allowed_origins),
        environment={**read_dotenv(Path(".env")), **process_environment()},
        core025=core.core025,
    )


def _model_choice(settings: Settings, chosen: ChosenModel) -> ModelChoice | None:
    from task.local_core.models import ScriptedDemo, UpstreamModel

    if chosen.rule == "local":
        return embedded(settings)
    if chosen.rule == "demo":
        return ScriptedDemo(Path(str(files("task.llm") / "demo.yaml")), chosen.name)
    if chosen.base_url is None:
        return None
    return UpstreamModel(chosen.base_url, chosen.name, chosen.api_key or None)
