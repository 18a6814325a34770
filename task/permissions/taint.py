"""The conversation as the gate sees it: whether it contains text from outside, and which URLs it vouches for."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from functools import cached_property
from typing import Any, cast
from urllib.parse import urlsplit

from task.conversation.messages import Message, Role, ToolCall

# Browsers and HTTP libraries treat a backslash as a slash, and one slash as two.
_ABSOLUTE = re.compile(r"(?<![a-z0-9+.-])[a-z][a-z0-9+.-]*:[/\\]{1,3}[^\s<>\"'`]*", re.IGNORECASE)
_DIAL_FILE = re.compile(r"(?<![\w/.-])(?:v1/)?(?:files|metadata)/[^\s<>\"'`]+")
_NAMES = re.compile(r"ur[il]|link|href|endpoint|host|domain|site|webhook|callback", re.IGNORECASE)
_SCHEME = re.compile(r"https?://", re.IGNORECASE)
_TRAILING = ".,:;!?)]}*_|"


class Origin(StrEnum):
    """Who wrote a tool's result: computed by us, made by code or a model, or copied from outside."""

    OWN = "own"
    MADE = "made"
    OUTSIDE = "outside"


def named_values(value: Any, name: str = "", kinds: type | tuple[type, ...] = str) -> Iterator[tuple[str, Any]]:
    """Every string in JSON data with the name of its member; member names that are not identifiers count as strings.

    `kinds` adds other types to the strings.
    """
    if isinstance(value, kinds):
        yield name, value
    elif isinstance(value, Mapping):
        for key, item in cast("Mapping[Any, Any]", value).items():
            if not str(key).isidentifier():
                yield "", str(key)
            yield from named_values(item, str(key), kinds)
    elif isinstance(value, Sequence):
        for item in cast("Sequence[Any]", value):
            yield from named_values(item, name, kinds)


def urls_in(arguments: Any) -> Iterator[str]:
    """The URLs in a call's arguments: absolute ones, DIAL files, and any text in a member named like a URL."""
    for name, text in named_values(arguments):
        yield from urls_of_text(text)
        bare = text.strip()
        if bare and _NAMES.search(name) and not any(mark.isspace() for mark in bare) and not _ABSOLUTE.match(bare):
            yield bare


def urls_of_text(text: str) -> Iterator[str]:
    if ":" in text:
        yield from (found[0].rstrip(_TRAILING) for found in _ABSOLUTE.finditer(text))
    if "files/" in text or "metadata/" in text:
        yield from (found[0] for found in _DIAL_FILE.finditer(text))


def is_dial_file(url: str) -> bool:
    return _DIAL_FILE.match(url) is not None


def host_of(url: str) -> str:
    """The URL's host in lower case; empty if it has none."""
    text = url.replace("\\", "/")
    try:
        return urlsplit(text if "://" in text else f"//{text.lstrip('/')}").hostname or ""
    except ValueError:
        return text


def _without_scheme(url: str) -> str:
    scheme = _SCHEME.match(url)
    return url[scheme.end() if scheme else 0 :].rstrip("/")


def stands_in(url: str, text: str) -> bool:
    """Whether the text contains this whole URL, not only as a part of a longer one; it may omit `http://`."""
    if _occurs(url, text, "") or (url.endswith("/") and _occurs(url[:-1], text, "")):
        return True
    scheme = _SCHEME.match(url)
    bare = url[scheme.end() :].rstrip("/") if scheme else ""
    return bool(bare) and _occurs(bare, text, "/@")


def _occurs(url: str, text: str, not_before: str) -> bool:
    position = text.find(url)
    while position >= 0:
        before, after = text[position - 1 : position], text[position + len(url) : position + len(url) + 2]
        if not (before.isalnum() or (before and before in f"+.-_%{not_before}")) and _ends(after):
            return True
        position = text.find(url, position + 1)
    return False


def _ends(after: str) -> bool:
    if after.startswith("/"):
        after = after[1:]
    return not after or after[0].isspace() or after[0] in "#<>\"'`|)]}*" or (after[0] in ".,:;!?" and _space(after[1:]))


def _space(text: str) -> bool:
    return not text or text[0].isspace() or text[0] in "\"')]}*"


DEEPEST = 50  # results that are traced back, one to another, until a URL is found in a message of the user


class ContextView:
    """A conversation as it is now, searched on demand.

    `origins` maps tool names to the origin of their results; results of other tools count as made by code or a model.
    """

    def __init__(self, messages: Sequence[Message] = (), origins: Mapping[str, Origin] | None = None) -> None:
        self._messages = messages
        self._origins = origins or {}
        self._known: dict[tuple[str, int], bool] = {}

    @cached_property
    def tainted(self) -> bool:
        """Whether text from outside is in the conversation: from the web, a file, a server, a picture."""
        return any(map(self._foreign, self._messages))

    def tainted_beyond(self, tool: str) -> bool:
        """Whether text from outside is in the conversation, apart from the results of `tool`."""
        return any(self._foreign(message) for message in self._messages if message.name != tool)

    def knows(self, url: str) -> bool:
        """Whether the whole URL occurs in a message of the user or in a result that only the outside can have made.

        A result that repeats the arguments of its call, or was read from an address that only the model named, would
        let the model vouch for its own URL.
        """
        return self._known_before(url, len(self._messages), DEEPEST)

    def text_beside(self, call: ToolCall) -> str:
        """The text of the model's message that contains the call."""
        for message in reversed(self._messages):
            if any(call.id == made.id for made in message.tool_calls):
                return message.text()
        return ""

    def _origin(self, name: str | None) -> Origin:
        return self._origins.get(name or "", Origin.MADE)

    def _foreign(self, message: Message) -> bool:
        if message.role is Role.TOOL:
            return self._origin(message.name) is not Origin.OWN
        if message.role is not Role.USER or not isinstance(message.content, list):
            return False
        return any(part.get("type") == "image_url" for part in message.content)

    def _known_before(self, url: str, place: int, depth: int) -> bool:
        if (url, place) not in self._known:
            self._known[url, place] = self._found_before(url, place, depth)
        return self._known[url, place]

    def _found_before(self, url: str, before: int, depth: int) -> bool:
        part = _without_scheme(url)
        # A file counts only if the user has named it: the model's own code may have made any other.
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
        if any(part in text for part in (url, _without_scheme(url)) for _, text in named_values(asked)):
            return False
        return all(self._known_before(named, place, depth - 1) for named in urls_in(asked))

    def _arguments(self, place: int) -> Any:
        # Those of the call that the tool message at `place` answers.
        answered = self._messages[place].tool_call_id
        for earlier in range(place - 1, -1, -1):
            for call in self._messages[earlier].tool_calls:
                if call.id == answered:
                    return _parsed(call)
        return ""


def _parsed(call: ToolCall) -> Any:
    try:
        return json.loads(call.function.arguments)
    except ValueError:
        return call.function.arguments
