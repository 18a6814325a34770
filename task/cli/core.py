"""Run local Core with the model that the settings lead to."""

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Annotated

import typer

from task.cli.addresses import local_core_key, usable_port
from task.cli.core_config import OWN_CONFIG, dotenv_environment
from task.cli.model_choice import ChosenModel, choose_model, embedded_model
from task.cli.options import Config, read_settings
from task.closing import close_all
from task.core_client.models import Caller, nobody
from task.llm.base import ChatModel
from task.llm.chat_request import PROFILES
from task.llm.dial import ModelListings
from task.llm.transport import new_session
from task.local.core.app import serve
from task.local.core.core import NEWEST, CoreSettings
from task.local.core.models import ConnectedModel, ModelChoice, UpstreamModel, scripted_demo
from task.local.model.process import EmbeddedModel, ModelProcess
from task.product.backends import BACKENDS
from task.settings import PREFIX, Settings

logger = logging.getLogger(__name__)
app = typer.Typer(add_completion=False)

SMALL_TEXT = "A small model that runs on this machine: good for trying the product, not for judging answers."


@app.command()
def core(
    config: Config = None,
    port: Annotated[
        int | None, typer.Option("--port", "--core-port", min=0, max=65535, help="Port of local Core.")
    ] = None,
) -> None:
    """Serve until a signal ends it."""
    settings = read_settings(config, foreign=False, core_port=port)
    usable_port(settings.core.host, settings.core_port, "--port", f"{PREFIX}CORE_PORT")
    serve(core_settings(settings, asyncio.run(choose_model(settings, behind_core=True))))


def core_settings(settings: Settings, chosen: ChosenModel) -> CoreSettings:
    """Local Core as the settings want it, with the chosen model."""
    core = settings.core
    return CoreSettings(
        data_folder=core.data_dir or settings.data_dir / "core",
        config_files=tuple(core.config_files) or (OWN_CONFIG,),
        host=core.host,
        port=settings.core_port,
        allow_public=core.allow_public,
        api_key=local_core_key(settings),
        model=_model_choice(settings, chosen),
        image_model=None if settings.deployments.image == "off" else settings.deployments.image,
        host_map=core.host_map,
        allowed_hosts=frozenset(core.allowed_hosts),
        allowed_origins=frozenset(core.allowed_origins),
        environment=dotenv_environment(),
        version=25 if core.core025 else NEWEST,
        keep_alive_seconds=settings.keep_alive_seconds,
    )


def _model_choice(settings: Settings, chosen: ChosenModel) -> ModelChoice | None:
    if chosen.rule == "local":
        return embedded_source(embedded_model(settings))
    if chosen.rule == "demo":
        return scripted_demo(chosen.name)
    if chosen.rule in ("ollama", "dapr"):
        return _model_of_backend(settings, chosen)
    if chosen.base_url is None:
        return None
    profile = PROFILES[settings.profile] if settings.profile else None
    return UpstreamModel(chosen.base_url, chosen.name, chosen.api_key or None, profile)


def embedded_source(model: EmbeddedModel) -> ConnectedModel:
    """The packaged model, whose process lives as long as local Core."""

    @asynccontextmanager
    async def connect() -> AsyncGenerator[ChatModel]:
        async with ModelProcess(model, logger.warning) as process:
            yield process.chat

    return ConnectedModel(
        model.name, model.title, connect, SMALL_TEXT, model.context, model.answer_tokens, reads_attachments=True
    )


def _model_of_backend(settings: Settings, chosen: ChosenModel) -> ConnectedModel:
    # As the agent itself would call it.

    @asynccontextmanager
    async def connect() -> AsyncGenerator[ChatModel]:
        async with new_session() as session:
            backend = BACKENDS[chosen.rule].open(settings, session, ModelListings(session, settings.dial_endpoint))
            try:
                yield backend.chat_model(chosen.name, Caller("", nobody))
            finally:
                await close_all(*backend.closes)

    model = chosen.ollama
    return ConnectedModel(
        chosen.name,
        f"{chosen.name} ({chosen.rule.title()})",
        connect,
        context=model.context if model and model.context else None,
        tools=model is None or model.can("tools"),
        vision=bool(model and model.capabilities and "vision" in model.capabilities),
    )
