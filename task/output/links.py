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
_TEXT = r"[^%s<>`\x00-\x1f]*+"  # a backquote could be the end of code that begins before the tag
_URL = r"(?:[^%s&<>`\x00-\x1f]|&amp;|&[\w-]++=)*+"  # no entity that becomes another character
_ATTRIBUTE = "|".join(
    rf"(?:href|src)={quote}{_URL % quote}{quote}|(?:alt|title)={quote}{_TEXT % quote}{quote}"
    rf"|(?:align|dir|rel|target)={quote}[a-z_ ]*+{quote}"
    rf"|(?:colspan|height|rowspan|start|value|width)={quote}\d{{1,3}}%?{quote}"
    for quote in "\"'"
)
_TAG = re.compile(rf"<(?:/{_NAMES} *+|{_NAMES}((?: ++(?:open|{_ATTRIBUTE}))*+) *+/?)>", re.IGNORECASE)
TAG_SO_FAR = re.compile(rf"</?(?:[a-z]*+|{_NAMES}(?: [^<>`\x00-\x1f]*+)?/?)\Z", re.IGNORECASE)
_ADDRESSES = re.compile(r" (href|src)=(?:\"([^\"]*+)\"|'([^']*+)')", re.IGNORECASE)
_PICTURE = re.compile(r"data:image/(?:png|jpeg|gif|webp)[;,]", re.IGNORECASE)
_HARMLESS = frozenset({"mailto", "tel", "sms"})
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
        if scheme in _ACTIVE or scheme == "data":
            return _PICTURE.match(url) is None
        host: str | None = None
        with suppress(ValueError):  # no host can be read from it
            host = urlsplit(url.replace("\\", "/")).hostname or ""
        trusted = host is not None and any(fnmatchcase(host, pattern) for pattern in self.hosts)
        if scheme in _HARMLESS or trusted:
            return False
        return (use == "load" or self.tainted()) and not self.knows(url)


def tag_at(text: str, start: int, end: int) -> tuple[int, list[tuple[str, Use]]] | None:
    """The length of the HTML tag that begins at `start`, and the URLs in its attributes with their uses.

    None: it is not a tag that may be shown, or does not end before `end`.
    """
    tag = _TAG.match(text, start, end)
    if tag is None:
        return None
    urls: list[tuple[str, Use]] = []
    for name, *values in _ADDRESSES.findall(tag[1] or ""):
        use: Use = "follow" if name.lower() == "href" else "load"
        urls.append((_as_browsers_read(html.unescape("".join(values))), use))
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
