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
# The tags and attributes that a chat renders and that load nothing but a picture. `style`, `class`, `id` and `srcset`
# are not among them, nor is a tag whose text is not read as HTML: `pre`, `script`, `style`, `svg`, `textarea` …
_NAMES = (
    r"(?:a|abbr|b|blockquote|br|caption|cite|code|dd|del|details|dfn|div|dl|dt|em|figcaption|figure|h[1-6r]|i|img|ins|kbd"
    r"|li|mark|ol|p|q|ruby|rp|rt|s|samp|small|span|strong|sub|summary|sup|table|tbody|td|tfoot|th|thead|tr|u|ul|var|wbr)"
)
# No entity that becomes another character, and no backquote: it could be the end of code that begins before the tag.
_VALUES = "|".join(rf"{quote}(?>(?:[^{quote}&<>`\x00-\x1f]|&amp;|&[\w-]++=)*){quote}" for quote in "\"'")
_ATTRIBUTES = r"href|src|alt|title|align|dir|rel|target|colspan|rowspan|start|value|width|height"
_ATTRIBUTE = rf" ++(?:open|(?:{_ATTRIBUTES})=(?:{_VALUES}))"
_TAG = re.compile(rf"<(?:/{_NAMES} *+|{_NAMES}((?>(?:{_ATTRIBUTE})*)) *+/?)>", re.IGNORECASE)
_ADDRESSES = re.compile(r" (href|src)=(?:\"([^\"]*+)\"|'([^']*+)')", re.IGNORECASE)
_PICTURE = re.compile(r"data:image/(?:png|jpeg|gif|webp)[;,]", re.IGNORECASE)
_HARMLESS, _ACTIVE = frozenset({"mailto", "tel", "sms"}), frozenset({"javascript", "vbscript", "data"})

_ENTITY = re.compile(r"&(?=#|\w+;)")
_MARK = re.compile(r"\\?:\\?/\\?/")

Use = Literal["load", "follow"]
Tag = tuple[int, list[tuple[str, Use]]]
_USES: dict[str, Use] = {"href": "follow", "src": "load"}


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
            return _PICTURE.match(url) is None
        host: str | None = None
        with suppress(ValueError):  # no host can be read from it
            host = urlsplit(url.replace("\\", "/")).hostname or ""
        trusted = host is not None and any(fnmatchcase(host, pattern) for pattern in self.hosts)
        suspect = scheme not in _HARMLESS and not trusted and (use == "load" or self.tainted())
        return suspect and not self.knows(url)


def tag_at(text: str, start: int, end: int) -> Tag | None:
    """The length of the HTML tag that begins at `start`, and the URLs in its attributes with their uses.

    None: it is not a tag that may be shown, or does not end before `end`.
    """
    tag = _TAG.match(text, start, end)
    if tag is None:
        return None
    found = _ADDRESSES.findall(tag[1] or "")
    urls: list[tuple[str, Use]] = [
        (_as_browsers_read(html.unescape(a or b)), _USES[name.lower()]) for name, a, b in found
    ]
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
    return _ENTITY.sub("&amp;", _MARK.sub("[://]", address)).replace(".", "[.]").replace("`", "%60").replace("<", "%3C")
