"""The product as people meet it: a model's upstream, local Core, the agent, and a person's chat, all on loopback."""

import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from task.cli.core_config import OWN_CONFIG, TEMPLATE_AGENT
from task.settings import Settings
from tests.support.agent import running_agent
from tests.support.chat_reader import ChatReader, chat_reader
from tests.support.core import RunningCore, local_core
from tests.support.ports import free_port
from tests.support.upstream import Item, Upstream, openai_upstream

MODEL = "test-model"
DEPLOYMENT = "general-purpose-agent"
TYPE = "https://mydial.epam.com/custom_application_schemas/general-purpose-agent"


@dataclass(frozen=True, slots=True)
class Product:
    upstream: Upstream
    core: RunningCore
    agent_url: str
    reader: ChatReader
    other: ChatReader  # somebody of another project


@asynccontextmanager
async def product(
    *items: Item,
    tmp_path: Path,
    then: Item | None = None,
    sees: bool = False,
    models: Mapping[str, Any] | None = None,
    toolsets: Mapping[str, Any] | None = None,
    keys: Mapping[str, Any] | None = None,
    applications: Mapping[str, Any] | None = None,
    core_version: int = 49,
    **settings: Any,
) -> AsyncGenerator[Product]:
    """Everything started; `items` are the model's answers, `sees` whether its listing takes pictures, `models`,
    `toolsets`, `keys` and `applications` further entries of Core's configuration, which is 0.{core_version}'s,
    `settings` the agent's."""
    port = free_port()
    async with (
        openai_upstream(*items, then=then) as upstream,
        local_core(
            {**core_config(port, upstream.endpoint, sees, models, keys, applications), "toolsets": toolsets or {}},
            tmp_path,
            version=core_version,
        ) as core,
        running_agent(settings_of(core, upstream, tmp_path, settings), port=port) as agent_url,
        chat_reader(core.url, "key-one") as reader,
        chat_reader(core.url, "key-two") as other,
    ):
        yield Product(upstream, core, agent_url, reader, other)


def settings_of(core: RunningCore, upstream: Upstream, tmp_path: Path, more: Mapping[str, Any]) -> Settings:
    """The agent's settings for this Core and this model's upstream."""
    values = {
        "dial_endpoint": core.url,
        "deployment_name": MODEL,
        "data_dir": tmp_path / "agent",
        "openai_base_url": upstream.url,
        "openai_api_key": "sk-test",
        "embedding_model": "/no/embedding",  # an attached document would load the model in every test
    }
    http = {"titles": "off", **more.get("http", {})}  # a title would take one of the model's scripted answers
    return Settings.model_validate({**values, **more, "http": http})


def declared_types() -> list[str]:
    """The types of files that the product's own configuration of DIAL Core lets people attach."""
    config = json.loads(OWN_CONFIG.read_text("utf-8"))
    return config["applications"][DEPLOYMENT]["inputAttachmentTypes"]


def core_config(
    port: int,
    upstream: str,
    sees: bool = False,
    models: Mapping[str, Any] | None = None,
    keys: Mapping[str, Any] | None = None,
    applications: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Core's configuration with the agent at this port and the model at the upstream's address."""
    agent = f"http://127.0.0.1:{port}/openai/deployments/{DEPLOYMENT}"
    model = {
        "type": "chat",
        "endpoint": f"{upstream}/openai/deployments/{MODEL}/chat/completions",
        **({"inputAttachmentTypes": ["image/png"]} if sees else {}),
    }
    own = OWN_CONFIG.read_text("utf-8").replace(TEMPLATE_AGENT, f"http://127.0.0.1:{port}")
    return {
        "applicationTypeSchemas": json.loads(own)["applicationTypeSchemas"],
        "models": {MODEL: model, **(models or {})},
        "applications": {
            DEPLOYMENT: {
                "endpoint": f"{agent}/chat/completions",
                "displayName": "General Purpose Agent",
                "inputAttachmentTypes": declared_types(),
                "maxInputAttachments": 10,
                "features": {"configurationEndpoint": f"{agent}/configuration", "rateEndpoint": f"{agent}/rate"},
            },
            **(applications or {}),
        },
        "keys": {
            "key-one": {"project": "ONE", "role": "default"},
            "key-two": {"project": "TWO", "role": "default"},
            **(keys or {}),
        },
        "roles": {"default": {"limits": {}}},
    }
