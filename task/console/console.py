"""The running console as its commands and its completion see it."""

from __future__ import annotations

from typing import Protocol

from task.console.slash.attaching import AttachedFile
from task.console.ui_manager import UserInterfaceManager
from task.conversation.message_manager import MessageManager
from task.conversation.messages import Message
from task.product.framework import ConsoleProduct
from task.runs.request import RunCaller


class Console(Protocol):
    """One conversation at a terminal.

    `session_id` is None before the first message; `persona` and `model` are those of the next turn, the persona empty
    where the settings choose it; `attached` go with the next message.
    """

    attached: list[AttachedFile]

    @property
    def session_id(self) -> str | None: ...
    @session_id.setter
    def session_id(self, session_id: str | None) -> None: ...
    @property
    def model(self) -> str: ...
    @model.setter
    def model(self, model: str) -> None: ...
    @property
    def persona(self) -> str: ...
    @persona.setter
    def persona(self, persona: str) -> None: ...
    @property
    def ui(self) -> UserInterfaceManager: ...
    @property
    def history(self) -> MessageManager: ...
    @property
    def product(self) -> ConsoleProduct: ...
    @property
    def caller(self) -> RunCaller: ...
    @property
    def answering(self) -> bool:
        """Whether a turn is running."""
        ...

    def send(self, message: Message) -> None:
        """Take a turn with this message of the user, which comes after the history; returns when it is answered."""
        ...

    def resume(self, session_id: str) -> None:
        """Continue that session: its messages are the history and are shown, its open questions are asked.

        Raises:
            NotFound: there is no such session.
        """
        ...

    def reload(self) -> str:
        """Read configuration and context again; what is in use now, for people.

        Raises:
            AgentError: they cannot be used; what was there stays.
        """
        ...

    def quit(self) -> None:
        """End the program after this command, and with it a turn that runs."""
        ...
