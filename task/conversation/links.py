"""Decide which URLs in Markdown and HTML may be loaded or followed, and show the others as inert text."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal
from urllib.parse import urlsplit

SHOWN = 160  # characters of a URL that are shown instead of a link
_ESCAPED = re.compile(r"\\([!-/:-@\[-`{-~])")
_IGNORED_IN_URL = re.compile(r"[\t\r\n]")
_IGNORED = re.compile(r"[\x00-\x20]+")  # browsers remove these before they parse a URL
_ABSOLUTE = re.compile(r"(?:([a-z][a-z0-9+.-]*):|[/\\]{2})", re.IGNORECASE)
_IN_TAG = re.compile(r"(?:[a-z][a-z0-9+.-]*:)?[/\\]{2}[^\s\"'<>)]*", re.IGNORECASE)
_HARMLESS = frozenset({"data", "mailto", "tel", "sms"})
_ACTIVE = frozenset({"javascript", "vbscript"})

_ENTITY = re.compile(r"&(?=#|\w+;)")
_MARK = re.compile(r"\\?:\\?/\\?/")

Use = Literal["load", "follow"]


@dataclass(frozen=True, slots=True)
class Suspicion:
    """Which URLs may be shown as they are.

    `knows`: whether a URL occurs in the user's messages or in a result copied from outside; `tainted`: whether text
    from outside is in the conversation. `hosts` are globs of hosts to which any URL may point.
    """

    knows: Callable[[str], bool]
    tainted: Callable[[], bool]
    hosts: Sequence[str] = ()

    def harmful(self, url: str, use: Use) -> bool:
        """Whether loading or following the URL could leak data.

        What loads by itself must be known; what a person follows only if text from outside could have caused it.
        """
        absolute = _ABSOLUTE.match(url)
        if absolute is None and "://" not in url:
            return False
        scheme = (absolute[1] or "").lower() if absolute else ""
        if scheme in _ACTIVE:
            return True
        if scheme in _HARMLESS or self._trusted(url):
            return False
        return (use == "load" or self.tainted()) and not self.knows(url)

    def harmful_bare(self, scheme: str, rest: str) -> bool:
        """The same for an address in plain text, whose scheme may have been shown before."""
        schemes = (scheme,) if scheme else ("https", "http")
        return self.tainted() and all(self.harmful(f"{name}://{rest}", "follow") for name in schemes)

    def _trusted(self, url: str) -> bool:
        if not self.hosts:
            return False
        try:
            host = urlsplit(url.replace("\\", "/")).hostname or ""
        except ValueError:
            return False
        return any(fnmatchcase(host, pattern) for pattern in self.hosts)


def decoded(destination: str) -> str:
    """The URL that a Markdown renderer takes from a link's destination."""
    inner = destination[1:-1] if destination.startswith("<") else destination
    return _IGNORED.sub("", html.unescape(_ESCAPED.sub(r"\1", inner)))


def urls_of_tag(tag: str) -> Iterator[str]:
    """The absolute URLs in an HTML tag."""
    yield from (found[0] for found in _IN_TAG.finditer(_IGNORED_IN_URL.sub("", html.unescape(tag))))


def inert(url: str) -> str:
    """The URL as code, which is not rendered as a link."""
    short = url if len(url) <= SHOWN else f"{url[:SHOWN]}…"
    return f"`{defused(short)}`"


def defused(address: str) -> str:
    """The address defanged, as is customary for malicious ones: `https[://]host[.]example`."""
    return _ENTITY.sub("&amp;", _MARK.sub("[://]", address)).replace(".", "[.]").replace("`", "%60")
