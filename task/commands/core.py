"""Run local Core with the model that the settings lead to."""

from __future__ import annotations

import asyncio

from task.commands import ports
from task.commands.addresses import local_core_key
from task.commands.core_config import config_files
from task.commands.model_choice import choose_model
from task.settings import PREFIX, Settings


def run(settings: Settings) -> None:
    """Serve until a signal ends it."""
    ports.require_free(settings.core.host, settings.core_port, "--port", f"{PREFIX}CORE_PORT")
    chosen = asyncio.run(choose_model(settings, behind_core=True))
    print(chosen, local_core_key(settings), config_files(settings))
