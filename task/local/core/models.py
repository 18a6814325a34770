"""Which model local Core serves itself, and how it is listed."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass

from task.llm.base import DEMO_NAME, ChatModel
from task.llm.chat_request import ProviderProfile
from task.llm.demo import demo
from task.local.core.config import CoreConfig, Features, Model

DEMO_TITLE = "Scripted demo (not a real model)"
PICTURE_TEXT = "Makes a picture of a description."
PLACEHOLDER_TITLE = "Placeholder pictures (no image model is connected)"
PLACEHOLDER_TEXT = "This is a placeholder, not a generated picture: no image model is connected to local Core."


@dataclass(frozen=True, slots=True)
class UpstreamModel:
    """A model of an OpenAI-compatible server at `base_url` (which ends in `/v1` or the like), listed as `name`.

    Without `profile` the address and the name determine it.
    """

    base_url: str
    name: str
    api_key: str | None = None
    profile: ProviderProfile | None = None


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


ModelChoice = UpstreamModel | ConnectedModel


def scripted_demo(name: str = DEMO_NAME) -> ConnectedModel:
    """The demo that answers where no model is connected, and says so."""

    return ConnectedModel(name, DEMO_TITLE, lambda: nullcontext(demo()), reads_attachments=True)


def with_choice(config: CoreConfig, choice: ModelChoice, image_model: str | None = None) -> CoreConfig:
    """The configuration whose chat models are replaced by the chosen one and the image model.

    No model is ever listed under another's name: an entry of the file is kept only where it describes an upstream's.
    """
    is_upstream = isinstance(choice, UpstreamModel)
    served = [_listed(choice)]
    if image_model:
        title, text = (image_model, PICTURE_TEXT) if is_upstream else (PLACEHOLDER_TITLE, PLACEHOLDER_TEXT)
        served.append(Model(name=image_model, display_name=title, description=text))
    models = {name: model for name, model in config.models.items() if not model.is_chat}
    for model in served:
        described = config.models.get(model.name, model) if is_upstream else model
        models[model.name] = described.model_copy(update={"endpoint": None, "upstreams": []})  # they are not used
    return config.model_copy(update={"models": models})


def _listed(choice: ModelChoice) -> Model:
    calls = isinstance(choice, UpstreamModel) or choice.tools
    features = Features(tools_supported=calls, parallel_tool_calls_supported=calls, temperature_supported=True)
    if isinstance(choice, UpstreamModel):
        return Model(name=choice.name, display_name=choice.name, features=features)
    tokens, answer = choice.context, choice.answer or (choice.context or 0) // 4
    return Model(
        name=choice.name,
        display_name=choice.title,
        description=choice.description,
        features=features,
        limits={"max_total_tokens": tokens, "max_completion_tokens": answer} if tokens else None,
        input_attachment_types=["image/*"] if choice.vision else None,
    )
