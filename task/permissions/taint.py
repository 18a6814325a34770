"""The conversation as the gate sees it: its text from outside, its addresses, and the URLs it vouches for."""

import html
import json
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from functools import cached_property
from typing import Any, cast
from urllib.parse import unquote, urlsplit

from task.conversation.messages import CUT, SHOWN_AGAIN, Message, Role, ToolCall
from task.permissions.names import names_of, own_name

# Browsers and HTTP libraries treat a backslash as a slash, and one slash as two.
_IN_TEXT = re.compile(r"(?<![a-z0-9+.-])[a-z][a-z0-9+.-]*+:[/\\]{1,3}\S*+", re.IGNORECASE)
# Fetchers drop blanks, control and invisible characters in front; browsers need no slash after their own schemes.
_BEGINS = re.compile(
    r"[\s\x00-\x20\x7f-\xa0\xad\u200b-\u200f\u2028-\u202f\u2060-\u206f\ufeff]*+"
    r"(?:[a-z][a-z0-9+.-]*+:[/\\]|(?:https?|wss?|ftp|file):\S|[/\\]{2}[^\s/\\.]*+\.\w)",
    re.IGNORECASE,
)
_PLAIN = re.compile(
    r"(?:[a-z][a-z0-9+.-]*+://|//)?"
    r"(?:[a-z0-9_-]++(?:\.[a-z0-9_-]++)*+\.?+|\[[0-9a-f:.]++\])(?::[0-9]{1,5}+)?+"
    r"(?:[/?#](?:[\w.~!$&()*+,;=:@/?#-]|%[0-9a-f]{2})*+)?+",
    re.IGNORECASE,
)
_AUTHORITY = re.compile(r"(?:[a-z][a-z0-9+.-]*+:)?+(?://)?+[^/?#]*+", re.IGNORECASE)
_DIAL_FILE = re.compile(r"(?:v1/)?(?:files|metadata)/\S+")
_DIAL_FILE_IN_TEXT = re.compile(r"(?<![\w/.-])(?:v1/)?(?:files|metadata)/[^\s<>\"'`]+")
_FILES_BEGIN = ("files/", "metadata/", "v1/")
_BETWEEN_FILES = re.compile(r"\s++|,(?=(?:files/|https?://))")
_NAMES = re.compile(r"ur[il]|link|href|endpoint|host|domain|site|webhook|callback", re.IGNORECASE)
_FORMATS = frozenset({"uri", "uri-reference", "iri", "iri-reference", "url", "hostname", "idn-hostname"})
_SCHEME = re.compile(r"https?://", re.IGNORECASE)
_TRAILING = ".,:;!?)]}*_|\"'`>"
_CLOSING = {'"': '"', "'": "'", "`": "`", "<": ">", "“": "”", "«": "»"}
_PUNYCODE = re.compile(r"xn--([a-z0-9-]{1,59})")
_FILLERS = "\u034f\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u180f\u2800\u3164\uffa0"
# What may follow a whole URL: nothing, a blank, a bracket or quotation mark, or the end of a sentence.
_ENDS = re.compile(r"\Z|[\s#<>\"'`|)\]}*]|[.,:;!?](?:\Z|[\s\"')\]}*])")
_ROUNDS = 5  # of percent-encoding and entities inside each other


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


def declared_urls(schema: Any) -> frozenset[str]:
    """The names of the members that a JSON Schema declares to be URLs or hosts, itself or by reference."""
    found = list(_formats(schema, ""))
    urls = {name for name, kind in found if kind in _FORMATS}
    return frozenset(urls | {name for name, kind in found if kind.rpartition("/")[2] in urls})


def _formats(schema: Any, name: str) -> Iterator[tuple[str, str]]:
    # The formats and references of all members and definitions, by their names.
    if isinstance(schema, Mapping):
        for key, part in cast("Mapping[str, Any]", schema).items():
            if key in ("format", "$ref") and isinstance(part, str):
                yield name, part
            elif key in ("properties", "$defs", "definitions") and isinstance(part, Mapping):
                for member, definition in cast("Mapping[str, Any]", part).items():
                    yield from _formats(definition, member)
            else:
                yield from _formats(part, name)
    elif isinstance(schema, list):
        for part in cast("list[Any]", schema):
            yield from _formats(part, name)


def urls_in(arguments: Any, declared: frozenset[str] = frozenset(), *, fetched: bool = True) -> Iterator[str]:
    """The URLs in a call's arguments.

    A text that begins with a scheme, or whose name or schema (`declared`) says that it is a URL, is one URL to its
    end. In other texts a URL ends at a blank; also at a closing quotation mark if the tool fetches nothing.
    """
    for name, text in named_values(arguments):
        marked = ":" in text or "/" in text or "\\" in text  # most texts are not
        files = [part for part in _BETWEEN_FILES.split(text) if part] if text.startswith(_FILES_BEGIN) else []
        if files and all(is_dial_file(part) or _BEGINS.match(part) for part in files):
            yield from files  # of a text that consists of DIAL files and URLs only
        elif (marked and _BEGINS.match(text)) or (name and (name in declared or _NAMES.search(name)) and text.strip()):
            yield text
        elif marked:
            yield from urls_of_text(text, quoted=not fetched)


def urls_of_text(text: str, *, quoted: bool = True) -> Iterator[str]:
    """The absolute URLs and DIAL files in prose; `quoted`: a quotation mark before a URL ends it where it closes."""
    if ":" in text:
        for found in _IN_TEXT.finditer(text):
            url = found[0]
            closing = _CLOSING.get(text[found.start() - 1 : found.start()], "") if quoted else ""
            yield (url.partition(closing)[0] if closing else url).rstrip(_TRAILING)
    if "files/" in text or "metadata/" in text:
        yield from (found[0] for found in _DIAL_FILE_IN_TEXT.finditer(text))


def is_dial_file(url: str) -> bool:
    return _DIAL_FILE.fullmatch(url) is not None


def is_plain(url: str) -> bool:
    """Whether all parsers find the same scheme, host and path in the URL.

    Not in one with blanks, quotes, backslashes, invisible characters or a user name, nor with a host beyond ASCII.
    """
    if _PLAIN.fullmatch(url) is None:
        return False
    if url.isascii():
        return True
    found = _AUTHORITY.match(url)
    return found is not None and found[0].isascii() and unicodedata.is_normalized("NFKC", url)


def host_of(url: str) -> str:
    """The URL's host in lower case; empty if it has none."""
    text = url.replace("\\", "/")
    try:
        return urlsplit(text if "://" in text else f"//{text.lstrip('/')}").hostname or ""
    except ValueError:
        return text


def hosts_of(url: str) -> tuple[str, ...]:
    """The hosts that readers may find in the URL; of one that is not plain also the whole, which no host allows."""
    if is_plain(url):
        return (host_of(url),)
    return tuple(dict.fromkeys((host_of(url.strip()), host_of(url.replace("\\", "%5c").strip()), url)))


def without_scheme(url: str) -> str:
    scheme = _SCHEME.match(url)
    return url[scheme.end() if scheme else 0 :].rstrip("/")


class _Dropped(dict[int, str | int | None]):
    # A table for `str.translate` that looks at a character when it first meets it.
    def __missing__(self, code: int) -> int | None:
        mark = chr(code)
        selects = 0xFE00 <= code <= 0xFE0F or 0xE0100 <= code <= 0xE01EF
        dropped = unicodedata.category(mark)[0] in "CZ" or selects or mark in _FILLERS
        self[code] = None if dropped else code
        return None if dropped else code


_DROPPED = _Dropped({0x5C: "/"})


def folded(text: str) -> str:
    """The text as its addresses are compared: no case, blanks, invisible characters or other spellings."""
    if text.isascii() and not ("%" in text or "&" in text or "\\" in text or "xn--" in text):
        compact = "".join(text.split())
        if compact.isprintable():
            return compact.lower()
    for _ in range(_ROUNDS):
        plainer = html.unescape(unquote(unicodedata.normalize("NFKC", text).translate(_DROPPED)))
        if plainer == text:
            break
        text = plainer
    return _PUNYCODE.sub(_unpunycoded, text.casefold())


def _unpunycoded(label: re.Match[str]) -> str:
    try:
        return label[1].encode().decode("punycode")
    except UnicodeError:
        return label[0]


def stands_in(url: str, text: str) -> bool:
    """Whether the text contains this whole URL, not only as a part of a longer one; it may omit `http://`."""
    if _occurs(url, text, "") or (url.endswith("/") and _occurs(url[:-1], text, "")):
        return True
    bare = without_scheme(url) if _SCHEME.match(url) else ""
    return bool(bare) and _occurs(bare, text, "/@")


def _occurs(url: str, text: str, not_before: str) -> bool:
    position = text.find(url)
    while position >= 0:
        before, after = text[position - 1 : position], text[position + len(url) : position + len(url) + 2]
        begins = not (before.isalnum() or (before and before in f"+.-_%{not_before}"))
        if begins and _ENDS.match(after.removeprefix("/")):
            return True
        position = text.find(url, position + 1)
    return False


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

    @cached_property
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

            def names(message: Message) -> bool:
                text = message.text() if message.role is Role.TOOL else message.text().partition(SHOWN_AGAIN)[0]
                return part in text and stands_in(url, text)

            self._known[url, place] = any(
                self._messages[earlier].role in sources
                and names(self._messages[earlier])
                and self._vouches(earlier, url, depth)
                for earlier in range(place - 1, -1, -1)
            )
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
        made = (call for message in reversed(self._messages[:place]) for call in message.tool_calls)
        text = next((call.function.arguments for call in made if call.id == answered), '""')
        try:
            return json.loads(text)
        except ValueError:
            return text
