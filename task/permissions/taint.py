"""What the live conversation tells the gate: whose text is in it, what the model said, which URLs stand in it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, cast
from urllib.parse import urlsplit

from task.conversation.messages import Message, Role, ToolCall
from task.permissions.effects import Origin

# Browsers and HTTP libraries take a backslash for a slash, and one slash for two.
_ABSOLUTE = re.compile(r"(?<![a-z0-9+.-])[a-z][a-z0-9+.-]*:[/\\]{1,3}[^\s<>\"'`]*", re.IGNORECASE)
_DIAL_FILE = re.compile(r"(?<![\w/.-])(?:v1/)?(?:files|metadata)/[^\s<>\"'`]+")
_NAMES = re.compile(r"ur[il]|link|href|endpoint|host|domain|site|webhook|callback", re.IGNORECASE)
_SCHEME = re.compile(r"https?://", re.IGNORECASE)
_TRAILING = ".,:;!?)]}*_|"


def named_strings(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Every text in JSON data with the name of the member it stands under; odd names are texts too."""
    if isinstance(value, str):
        yield name, value
    elif isinstance(value, Mapping):
        for key, item in cast("Mapping[Any, Any]", value).items():
            if not str(key).isidentifier():
                yield "", str(key)
            yield from named_strings(item, str(key))
    elif isinstance(value, Sequence):
        for item in cast("Sequence[Any]", value):
            yield from named_strings(item, name)


def urls_in(arguments: Any) -> Iterator[str]:
    """The URLs that a call's arguments name: absolute ones, DIAL files, and hosts where the name says URL."""
    for name, text in named_strings(arguments):
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
    """The host a URL leads to, in lower case; empty where it has none."""
    text = url.replace("\\", "/")
    try:
        return urlsplit(text if "://" in text else f"//{text.lstrip('/')}").hostname or ""
    except ValueError:
        return text


def telling_part(url: str) -> str:
    """The part that every text has in which the URL stands."""
    scheme = _SCHEME.match(url)
    return url[scheme.end() if scheme else 0 :].rstrip("/")


def stands_in(url: str, text: str) -> bool:
    """Whether the text has this URL as a whole: not as a part of a longer one; `http://` may be left out in it."""
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
