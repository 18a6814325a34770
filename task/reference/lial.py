"""LIAL: how the console reaches a model, whichever provider it has."""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from task.closing import run_blocking
from task.console.configuration import model_tree
from task.context.dcm_manager import DCMManager
from task.conversation.messages import Message, message_from, system
from task.errors import AgentError, ComponentInitError, LIALError, LIALInitError, SettingsError
from task.llm.base import Accumulator, ModelOptions
from task.permissions.icerc import ICERC
from task.product import Profile, Services, opened
from task.tools.models import Caller, nobody


class LLMAdapterInterface(ABC):
    """What answers messages. Source: framework reference, Core Interfaces."""

    @abstractmethod
    def send_messages(self, messages: list[dict[str, Any]], options: dict[str, Any] | None = None) -> dict[str, Any]:
        """The documented response: `conversation` is the text, `tool_request` what is to be decided, or None."""


class LIALManager:
    """Manages the LLM Interaction Abstraction Layer. Source: framework reference, LIAL Manager.

    Without an `adapter` it asks the provider's model, one request per call; the initial prompt of the context comes
    first where the messages have no system message.
    """

    def __init__(
        self,
        llm_provider: str,
        llm_settings: dict[str, Any],
        dcm_manager: DCMManager | None = None,
        *,
        adapter: LLMAdapterInterface | None = None,
    ) -> None:
        self._provider, self._given, self._context = llm_provider, llm_settings, dcm_manager
        self._adapter = adapter
        self._open: Callable[[], tuple[Services, Profile]] | None = None

    def initialize(self) -> None:
        """Prepare the adapter of the provider.

        Raises:
            LIALInitError: there is no such provider, or one of its settings cannot be used.
        """
        if self._adapter is not None:
            return
        try:
            settings = model_tree(self._provider, self._given)
        except SettingsError as error:
            raise LIALInitError(str(error)) from error
        self._open = partial(opened, settings, tools=())

    def send_messages(self, messages: list[dict[str, Any]]) -> dict[str, Any]:
        """The response of the model.

        Raises:
            LIALError: it did not answer.
            ComponentInitError: `initialize` was not called.
        """
        if self._adapter is None and self._open is None:
            raise ComponentInitError("LIALManager.initialize() comes first.")
        prompt = self._context.get_initial_prompt() if self._context is not None else None
        try:
            if prompt and not any(message["role"] == "system" for message in messages):
                messages = [system(prompt).as_dict(), *messages]
            if self._adapter is not None:
                return self._adapter.send_messages(messages)
            return run_blocking(self._answered, [message_from(message) for message in messages])
        except LIALError:
            raise
        except (AgentError, KeyError, TypeError, ValueError) as error:
            raise LIALError(str(error)) from error

    async def _answered(self, messages: Sequence[Message]) -> dict[str, Any]:
        # Once, without tools of ours, over a connection of its own.
        assert self._open is not None
        (services, profile), received = self._open(), Accumulator()
        try:
            model = profile.backend.chat_model(profile.model, Caller(services.core_key, nobody))
            async for delta in model.stream(messages, [], profile.options_for(ModelOptions())):
                received.add(delta)
        finally:
            await services.close()
        answer, request = received.message(), None
        if answer.tool_calls:
            call = answer.tool_calls[0]
            card = ICERC(answer.text(), f"{call.name} {call.function.arguments}", "").as_dict()
            parameters = json.loads(call.function.arguments or "{}")
            request = {"request_id": call.id, "tool_name": call.name, "parameters": parameters, "icerc": card}
        return {"conversation": answer.text(), "tool_request": request}
