"""What the live conversation tells the gate: whose text is in it, what the model said, which URLs stand in it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from task.conversation.messages import Message, Role, ToolCall
from task.permissions.effects import Origin
from task.permissions.urls import is_dial_file, named_strings, stands_in, telling_part, urls_in

DEEPEST = 50  # results that are followed back from one to another until one stands in a message of the user


class ContextView:
    """A conversation as it stands now, read only as far as somebody asks.

    `origins` gives the origin of a tool's results by the tool's name; a tool that is not in it counts as made by code
    or a model.
    """

    def __init__(self, messages: Sequence[Message] = (), origins: Mapping[str, Origin] | None = None) -> None:
        self._messages = messages
        self._origins = origins or {}
        self._known: dict[tuple[str, int], bool] = {}

    @cached_property
    def tainted(self) -> bool:
        """Whether text that somebody else wrote is in the conversation: from the web, a file, a server, a picture."""
        return any(map(self._foreign, self._messages))

    def tainted_beyond(self, tool: str) -> bool:
        """Whether text that somebody else wrote is in the conversation, apart from what `tool` itself answered."""
        return any(self._foreign(message) for message in self._messages if message.name != tool)

    def knows(self, url: str) -> bool:
        """Whether the URL stands, whole, in a message of the user or in a result that only the outside can have made.

        A result that repeats what the model wrote into its call, or that was read from where only the model pointed
        to, would let the model vouch for its own URL.
        """
        return self._known_before(url, len(self._messages), DEEPEST)

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

    def _known_before(self, url: str, place: int, depth: int) -> bool:
        if (url, place) not in self._known:
            self._known[url, place] = self._found_before(url, place, depth)
        return self._known[url, place]

    def _found_before(self, url: str, before: int, depth: int) -> bool:
        part = telling_part(url)
        # A file counts only where the user has named it: another one may be the work of the model's own code.
        sources = (Role.USER,) if is_dial_file(url) else (Role.USER, Role.TOOL)
        for place in range(before - 1, -1, -1):
            message = self._messages[place]
            if message.role not in sources:
                continue
            text = message.text()
            if part in text and stands_in(url, text) and self._vouches(place, url, depth):
                return True
        return False

    def _vouches(self, place: int, url: str, depth: int) -> bool:
        message = self._messages[place]
        if message.role is Role.USER:
            return True
        if self._origin(message.name) is not Origin.OUTSIDE or not depth:
            return False
        asked = self._arguments(place)
        if any(part in text for part in (url, telling_part(url)) for _, text in named_strings(asked)):
            return False
        return all(self._known_before(named, place, depth - 1) for named in urls_in(asked))

    def _arguments(self, place: int) -> Any:
        """What the call was asked that the tool message at `place` answers."""
        answered = self._messages[place].tool_call_id
        for earlier in range(place - 1, -1, -1):
            for call in self._messages[earlier].tool_calls:
                if call.id == answered:
                    return _parsed(call)
        return ""


def _picture(part: dict[str, Any]) -> bool:
    return part.get("type") == "image_url"


def _parsed(call: ToolCall) -> Any:
    try:
        return json.loads(call.function.arguments)
    except ValueError:
        return call.function.arguments
