"""The conversation as the gate sees it: whether it contains text from outside, and which URLs it vouches for."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Any, Generic, TypeVar, overload

from task.conversation.messages import CUT, SHOWN_AGAIN, Message, Role, ToolCall
from task.permissions.addresses import (
    folded,
    is_dial_file,
    is_plain,
    named_values,
    stands_in,
    urls_in,
    without_scheme,
)
from task.permissions.names import names_of, own_name

T = TypeVar("T")


class lazy(Generic[T]):  # noqa: N801 - a decorator
    """An attribute that is computed at its first use.

    As `functools.cached_property`, without the lock that Python takes before 3.12: a third of a call's decision.
    """

    def __init__(self, compute: Callable[[Any], T]) -> None:
        self._compute = compute
        self.__doc__ = compute.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, instance: None, owner: type) -> lazy[T]: ...

    @overload
    def __get__(self, instance: object, owner: type) -> T: ...

    def __get__(self, instance: object | None, owner: type) -> lazy[T] | T:
        if instance is None:
            return self
        value = instance.__dict__[self._name] = self._compute(instance)
        return value


class Origin(StrEnum):
    """Who wrote a tool's result: computed by us, made by code or a model, or copied from outside."""

    OWN = "own"
    MADE = "made"
    OUTSIDE = "outside"


DEEPEST = 50  # results that are traced back, one to another, until a URL is found in a message of the user


class ContextView:
    """A conversation as it is now, searched on demand.

    `origins` maps tool names to the origin of their results; results of other tools count as made by code or a model.
    """

    def __init__(self, messages: Sequence[Message] = (), origins: Mapping[str, Origin] | None = None) -> None:
        self._messages = messages
        self._origins = origins or {}
        self._known: dict[tuple[str, int], bool] = {}

    @lazy
    def tainted(self) -> bool:
        """Whether text from outside is in the conversation: from the web, a file, a server, a picture.

        An answer whose tool results are unknown may contain any of it.
        """
        return any(map(self._foreign, self._messages))

    def tainted_beyond(self, tool: str) -> bool:
        """Whether text from outside is in the conversation, apart from the results of `tool`."""
        names = names_of(tool)
        return any(self._foreign(message) for message in self._messages if message.name not in names)

    def knows(self, url: str) -> bool:
        """Whether the whole URL occurs in a message of the user or in a result that only the outside can have made.

        A result that repeats the arguments of its call, or was read from an address that only the model named, would
        let the model vouch for its own URL; so would one whose call's arguments are not there in full.
        """
        return self._known_before(url, len(self._messages), DEEPEST)

    def text_beside(self, call: ToolCall) -> str:
        """The text of the model's message that contains the call."""
        for message in reversed(self._messages):
            if any(call.id == made.id for made in message.tool_calls):
                return message.text()
        return ""

    def _origin(self, name: str | None) -> Origin:
        name = name or ""  # a tool that has the name of an alias is itself
        return self._origins.get(name if name in self._origins else own_name(name), Origin.MADE)

    def _foreign(self, message: Message) -> bool:
        if message.role is Role.TOOL:
            return self._origin(message.name) is not Origin.OWN
        if message.unsourced:
            return True
        if message.role is not Role.USER or not isinstance(message.content, list):
            return False
        return any(part.get("type") == "image_url" for part in message.content)

    def _known_before(self, url: str, place: int, depth: int) -> bool:
        if (url, place) not in self._known:
            part = without_scheme(url)
            # A file counts only if the user has named it: the model's own code may have made any other.
            sources = (Role.USER,) if is_dial_file(url) else (Role.USER, Role.TOOL)
            known = False
            for earlier in range(place - 1, -1, -1):
                message = self._messages[earlier]
                if message.role not in sources:
                    continue
                text = message.text() if message.role is Role.TOOL else message.text().partition(SHOWN_AGAIN)[0]
                if part in text and stands_in(url, text) and self._vouches(earlier, url, depth):
                    known = True
                    break
            self._known[url, place] = known
        return self._known[url, place]

    def _vouches(self, place: int, url: str, depth: int) -> bool:
        message = self._messages[place]
        if message.role is Role.USER:
            return True
        if self._origin(message.name) is not Origin.OUTSIDE or not depth:
            return False
        asked = self._arguments(place)
        sought = folded(without_scheme(url))
        if any(sought in folded(text) or CUT in text for _, text in named_values(asked)):
            return False
        return all(
            (is_dial_file(named) or is_plain(named)) and self._known_before(named, place, depth - 1)
            for named in urls_in(asked)
        )

    def _arguments(self, place: int) -> Any:
        # Those of the call that the tool message at `place` answers.
        answered = self._messages[place].tool_call_id
        for earlier in range(place - 1, -1, -1):
            for call in self._messages[earlier].tool_calls:
                if call.id == answered:
                    try:
                        return json.loads(call.function.arguments)
                    except ValueError:
                        return call.function.arguments
        return ""
