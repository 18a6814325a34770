"""URLs in arguments and texts: which ones a call names, and whether one stands in a text as a whole."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast
from urllib.parse import urlsplit

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
