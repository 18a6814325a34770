"""Decide which URLs in Markdown and HTML may be loaded or followed, and show the others as inert text."""

import html
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal
from urllib.parse import urlsplit

SHOWN = 160  # characters of a URL that are shown instead of a link
_ESCAPED = re.compile(r"\\([!-/:-@\[-`{-~])")
_IGNORED_IN_URL = re.compile(r"[\t\r\n]")
_AROUND_URL = "".join(map(chr, range(0x21)))  # browsers remove these before they parse a URL
_ABSOLUTE = re.compile(r"(?:([a-z][a-z0-9+.-]*+):|[/\\]{2})", re.IGNORECASE)
# As browsers read a tag: `>` ends it, except in quotes. Source: WHATWG HTML, 13.2.5 Tokenization
_NAME, _SPACE = r"[^\t\n\f\r />][^\t\n\f\r />=]*+", r"[\t\n\f\r ]*+"
_VALUE = r"\"([^\"]*+)\"|'([^']*+)'|([^\t\n\f\r >\"'][^\t\n\f\r >]*+)"
_ATTRIBUTE = rf"[\t\n\f\r /]*+({_NAME})(?:{_SPACE}={_SPACE}(?:{_VALUE}|%s)|(?!{_SPACE}=))"
# What a tag's attributes are is known already here, so a value that is missing or not closed counts as empty:
# where an attribute does not match, each character of its name would be tried as the beginning of another.
_ATTRIBUTES = re.compile(rf"(?<![\t\n\f\r /]){_ATTRIBUTE % ''}")
# Python 3.11 fails over groups inside possessive quantifiers, so there are none in this one.
_UNGROUPED = re.sub(r"[(](?![?])", "(?:", _ATTRIBUTE % "(?=>)")
_TAG = re.compile(rf"<([a-zA-Z][^\t\n\f\r />]*+)((?:{_UNGROUPED})*+)[\t\n\f\r /]*+>")
_IS_URL = re.compile(r"(?:[a-z][a-z0-9+.-]*+:)?+[/\\]{2}|(?:https?|wss?|ftp|file|javascript|vbscript):", re.IGNORECASE)
_IN_VALUE = re.compile(r"(?:(?<![a-z0-9+.-])[a-z][a-z0-9+.-]*+:)?+[/\\]{2}[^\s\"'<>)]*+", re.IGNORECASE)
_HARMLESS = frozenset({"data", "mailto", "tel", "sms"})
_FOLLOWED = frozenset({"a", "area"})
_ACTIVE = frozenset({"javascript", "vbscript"})

_ENTITY = re.compile(r"&(?=#|\w+;)")
_MARK = re.compile(r"\\?:\\?/\\?/")

Use = Literal["load", "follow"]


@dataclass(frozen=True, slots=True)
class Suspicion:
    """Which URLs may be shown unchanged.

    `knows`: whether a URL occurs in the user's messages or in a result copied from outside; `tainted`: whether text
    from outside is in the conversation. `hosts` are globs of hosts to which any URL may point.
    """

    knows: Callable[[str], bool]
    tainted: Callable[[], bool]
    hosts: Sequence[str] = ()

    def harmful(self, url: str, use: Use) -> bool:
        """Whether loading or following the URL could leak data.

        What loads by itself must be known; what a user follows only if text from outside could have caused it.
        """
        absolute = _ABSOLUTE.match(url)
        if absolute is None and "://" not in url:
            return False
        scheme = (absolute[1] or "").lower() if absolute else ""
        if scheme in _ACTIVE:
            return True
        host: str | None = None
        with suppress(ValueError):  # no host can be read from it
            host = urlsplit(url.replace("\\", "/")).hostname or ""
        trusted = host is not None and any(fnmatchcase(host, pattern) for pattern in self.hosts)
        if scheme in _HARMLESS or trusted:
            return False
        return (use == "load" or self.tainted()) and not self.knows(url)


def tag_at(text: str, start: int, end: int) -> tuple[int, list[tuple[str, Use]]] | None:
    """The length of the HTML tag that begins at `start`, and the absolute URLs in its attributes with their uses.

    None: the tag does not end before `end`.
    """
    tag = _TAG.match(text, start, end)
    if tag is None:
        return None
    urls: list[tuple[str, Use]] = []
    for found in _ATTRIBUTES.finditer(tag[2]):
        value = found[2] or found[3] or found[4] or found[1]
        use: Use = "follow" if found[1].lower() == "href" and tag[1].lower() in _FOLLOWED else "load"
        url = _as_browsers_read(html.unescape(value))
        parts: list[str] = [url] if _IS_URL.match(url) else _IN_VALUE.findall(url)
        urls.extend((part, use) for part in parts)
    return tag.end() - start, urls


def decoded(destination: str) -> str:
    """The URL that a Markdown renderer takes from a link's destination."""
    inner = destination[1:-1] if destination.startswith("<") else destination
    return _as_browsers_read(html.unescape(_ESCAPED.sub(r"\1", inner)))


def _as_browsers_read(url: str) -> str:
    return _IGNORED_IN_URL.sub("", url).strip(_AROUND_URL)


def inert(url: str) -> str:
    """The URL as code, which is not rendered as a link."""
    short = url if len(url) <= SHOWN else f"{url[:SHOWN]}…"
    return f"`{defused(short)}`"


def defused(address: str) -> str:
    """The address defanged, as is customary for malicious ones: `https[://]host[.]example`."""
    return _ENTITY.sub("&amp;", _MARK.sub("[://]", address)).replace(".", "[.]").replace("`", "%60")
