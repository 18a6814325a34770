"""What the live conversation tells the gate: whose text is in it, what the model said, which URLs stand in it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from task.conversation.messages import Message, Role, ToolCall
from task.permissions.effects import Origin
from task.permissions.urls import named_strings, stands_in, urls_in


class ContextView:
    """A conversation as it stands now, read only as far as somebody asks.

    `origins` gives the origin of a tool's results by the tool's name; a tool that is not in it counts as made by code
    or a model.
    """

    def __init__(self, messages: Sequence[Message] = (), origins: Mapping[str, Origin] | None = None) -> None:
        self._messages = messages
        self._origins = origins or {}

    @cached_property
    def tainted(self) -> bool:
        """Whether text that somebody else wrote is in the conversation: from the web, a file, a server, a picture."""
        return any(map(self._foreign, self._messages))

    def knows(self, url: str) -> bool:
        """Whether the URL stands, whole, in a message of the user or in a result copied from outside."""
        return any(stands_in(url, text) and url not in asked for text, asked in self._sources)

    def said(self, call: ToolCall) -> str:
        """What the model said beside the call."""
        for message in reversed(self._messages):
            if any(call.id == made.id for made in message.tool_calls):
                return message.text()
        return ""

    def _origin(self, name: str | None) -> Origin:
        return self._origins.get(name or "", Origin.MADE)

    def _foreign(self, message: Message) -> bool:
        if message.role is Role.TOOL:
            return self._origin(message.name) is not Origin.OWN
        return message.role is Role.USER and isinstance(message.content, list) and any(map(_picture, message.content))

    @cached_property
    def _sources(self) -> list[tuple[str, str]]:
        """The user's texts, and results that nothing but the outside can have written, with what they were asked for.

        A result that repeats what the model wrote into its call, or that was read from where only the model pointed
        to, would let the model vouch for its own URL.
        """
        found: list[tuple[str, str]] = []
        arguments: dict[str | None, Any] = {}
        for message in self._messages:
            if message.role is Role.USER:
                found.append((message.text(), ""))
            for call in message.tool_calls:
                arguments[call.id] = _parsed(call)
            if message.role is Role.TOOL and self._origin(message.name) is Origin.OUTSIDE:
                asked = arguments.get(message.tool_call_id)
                if all(any(stands_in(url, text) for text, _ in found) for url in urls_in(asked)):
                    found.append((message.text(), "\n".join(text for _, text in named_strings(asked))))
        return found


def _picture(part: dict[str, Any]) -> bool:
    return part.get("type") == "image_url"


def _parsed(call: ToolCall) -> Any:
    try:
        return json.loads(call.function.arguments)
    except ValueError:
        return call.function.arguments
