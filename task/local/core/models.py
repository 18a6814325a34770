"""Which model local Core serves itself, and how it is listed."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path

from aiohttp import ClientSession

from task.llm.base import DEMO_NAME, ChatModel
from task.llm.chat_request import ProviderProfile, profile_for
from task.llm.openai import OpenAIChatModel
from task.local.core.config import CoreConfig, Features, Model

DEMO_TITLE = "Scripted demo (not a real model)"


@dataclass(frozen=True, slots=True)
class UpstreamModel:
    """A model of an OpenAI-compatible server at `base_url` (which ends in `/v1` or the like), listed as `name`.

    Without `profile` the address and the name determine it.
    """

    base_url: str
    name: str
    api_key: str | None = None
    profile: ProviderProfile | None = None

    @property
    def writes_calls(self) -> bool:
        """Whether calls must be looked for in its text."""
        return (self.profile or profile_for(self.name, self.base_url)).text_calls

    def chat_model(self, session: ClientSession) -> ChatModel:
        return OpenAIChatModel(session, self.base_url, self.api_key or "", self.name, self.profile)


@dataclass(frozen=True, slots=True)
class ScriptedDemo:
    """The demo that answers from a file and says so; listed under its own name only."""

    path: Path
    name: str = DEMO_NAME


@dataclass(frozen=True, slots=True)
class ConnectedModel:
    """A chat model of ours, listed as `title`; `connect` gives its client while local Core serves.

    `context` and `answer` are tokens. With `reads_attachments` the model gets DIAL's attachments, else what they are in
    OpenAI's messages.
    """

    name: str
    title: str
    connect: Callable[[], AbstractAsyncContextManager[ChatModel]]
    description: str | None = None
    context: int | None = None
    answer: int | None = None
    tools: bool = True
    vision: bool = False
    reads_attachments: bool = False


ModelChoice = UpstreamModel | ScriptedDemo | ConnectedModel


def with_choice(config: CoreConfig, choice: ModelChoice) -> CoreConfig:
    """The configuration whose chat models are replaced by the chosen one.

    No model is ever listed under another's name: an entry of the file is kept only where it describes the chosen one.
    """
    others = {name: model for name, model in config.models.items() if not model.is_chat}
    return config.model_copy(update={"models": others | {choice.name: _listed(config, choice)}})


def _listed(config: CoreConfig, choice: ModelChoice) -> Model:
    features = Features(tools_supported=True, parallel_tool_calls_supported=True)
    if isinstance(choice, ScriptedDemo):
        return Model(name=choice.name, display_name=DEMO_TITLE, features=features)
    if isinstance(choice, UpstreamModel):
        plain = Model(name=choice.name, display_name=choice.name, features=features)
        return described_by(config, choice.name) or plain
    tokens = choice.context
    limits = {"max_total_tokens": tokens, "max_completion_tokens": choice.answer or tokens // 4} if tokens else None
    return Model(
        name=choice.name,
        display_name=choice.title,
        description=choice.description,
        features=Features(tools_supported=choice.tools, parallel_tool_calls_supported=choice.tools),
        limits=limits,
        input_attachment_types=["image/*"] if choice.vision else None,
    )


def described_by(config: CoreConfig, name: str) -> Model | None:
    """The model's entry in the configuration, without the addresses that are not used."""
    described = config.models.get(name)
    return described and described.model_copy(update={"endpoint": None, "upstreams": [], "override_name": None})
