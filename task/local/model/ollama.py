"""A model of an Ollama server as its size requires: small ones get the small models' profile, others everything."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from task.conversation.messages import Message, Role
from task.llm.base import ChatModel, Delta, ModelOptions, ModelWarning, ToolSchema, Waiting
from task.llm.ollama import OllamaServer
from task.llm.ollama_request import OllamaModel
from task.local.model.small_model import SmallModel
from task.local.model.weights import CODER

SMALL_PARAMETERS = 4_000_000_000  # fewer make a small model: it does not follow long prompts and full tool schemas
SMALL_CONTEXT = 8192  # what it reads at most: more would take a machine without a GPU minutes
NO_TOOLS = "the tools had no effect: {model} cannot call tools"


def is_small(model: OllamaModel) -> bool:
    """Whether it gets the small models' profile; Ollama's cloud does not constrain answers, as the profile requires."""
    return not model.remote and model.parameters is not None and model.parameters < SMALL_PARAMETERS


def readable_tokens(model: OllamaModel) -> int:
    """How many tokens the model reads and writes at a time."""
    return min(model.context, SMALL_CONTEXT) if is_small(model) else model.context


@dataclass(frozen=True, slots=True)
class SizedOllamaModel:
    """The model `name` of a server."""

    server: OllamaServer
    name: str

    async def stream(
        self, messages: Sequence[Message], tools: Sequence[ToolSchema], options: ModelOptions
    ) -> AsyncGenerator[Delta]:
        model, chat = await self.server.model(self.name), self.server.chat_model(self.name)
        parts = (part for message in messages if isinstance(message.content, list) for part in message.content)
        if is_small(model) and all(part.get("type") != "image_url" for part in parts):  # the profile is for text

            async def engine() -> AsyncGenerator[Waiting | ChatModel]:
                yield self.server.chat_model(self.name)

            # Ollama moves all system messages to the beginning, where they would change what it has in its cache.
            bias, role = CODER.reply_bias, Role.USER
            chat = SmallModel(engine, self.name, readable_tokens(model), reply_bias=bias, tail_role=role)
            if tools and not model.can("tools"):
                yield ModelWarning(NO_TOOLS.format(model=self.name))
                tools = ()
        async with aclosing(chat.stream(messages, tools, options)) as deltas:
            async for delta in deltas:
                yield delta
