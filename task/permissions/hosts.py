"""Hosts as browsers read them, and the words that name a machine."""

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cache, lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from unicodedata import normalize
from urllib.parse import unquote, urlsplit

_NUMBER = re.compile(r"(?:0x[0-9a-f]*|[0-9]+)(?:\.(?:0x[0-9a-f]*|[0-9]+)){0,3}")
_LABEL = re.compile(r"[\w-]++")
_WORD = re.compile(r"(?:[\w-]++=)?([^\s,;|\"'`<>(){}]++)")
# Ports below 80 are left out: there `name:number` is a verse, a version or the number of a record.
_FORM = re.compile(r"//[\w\[]|[^/?#]*@[^/?#@]*:|[a-z][\w.-]*:(?:[89][0-9]|[1-9][0-9]{2,4})(?![\w:])", re.IGNORECASE)
_LONE = 2**24  # a number without dots below it is a year, a page or an amount
_DATE = re.compile(r"(?:19|20)[0-9]{2}(?:0[1-9]|1[0-2])(?:0[1-9]|[12][0-9]|3[01])")
# Reserved, or usual in private networks. Source: RFC 2606, RFC 6762, RFC 7686, RFC 9476
_PRIVATE = frozenset({"alt", "corp", "example", "home", "internal", "intranet", "invalid", "lan", "local", "localhost"})
_RESERVED = _PRIVATE | {"onion", "test"}
_UNICAST = ip_network("2000::/3")
_AZURE = ip_address("168.63.129.16")  # serves the machine that asks, though it counts as public


@lru_cache(maxsize=4_096)
def normalised(host: str) -> str:
    """The host as browsers reach it: decoded, in lower case and ASCII, a number as an IP address, no dot at its end.

    Source: WHATWG URL, 3.5 Host parsing
    """
    name = unquote(host)
    if not name.isascii() and len(name) < 256:
        with suppress(UnicodeError):
            name = normalize("NFKC", name).encode("idna").decode()
    name = name.lower().rstrip(".")
    with suppress(ValueError):
        if _NUMBER.fullmatch(name):
            return str(_v4(name.split(".")))
        address = IPv6Address(name.strip("[]").partition("%")[0])
        return str(address.ipv4_mapped or address)
    return name


def _v4(parts: Sequence[str]) -> IPv4Address:
    # Each part may be decimal, octal or hexadecimal; the last one fills the bytes that are left.
    bases = (16 if part[:2] == "0x" else 8 if part[:1] == "0" else 10 for part in parts)
    *first, last = (int(part.removeprefix("0x") or "0", base) for part, base in zip(parts, bases, strict=True))
    if max(first, default=0) > 255 or last >= 256 ** (4 - len(first)):
        raise ValueError("too large")
    return IPv4Address(sum(byte << 8 * (3 - place) for place, byte in enumerate(first)) + last)


def _is_number(host: str) -> bool:
    with suppress(ValueError):
        return bool(ip_address(host))
    return False


def is_internal(host: str) -> bool:
    """Whether it is an address that is not of the public internet, or `localhost`; no name is looked up."""
    name = normalised(host)
    try:
        address = ip_address(name)
    except ValueError:
        return name.rpartition(".")[2] == "localhost"
    # Of IPv6 what a user can reach directly is public; translated and tunnelled addresses may lead inside.
    tunnelled = isinstance(address, IPv6Address) and (address not in _UNICAST or address.sixtofour is not None)
    return tunnelled or not address.is_global or address.is_multicast or address == _AZURE


def host_of(url: str) -> str:
    """The host of a URL or of a word that names a machine, normalised; empty if it has none."""
    return normalised(written_host(url))


@lru_cache(maxsize=64)  # asked for several times in a row
def written_host(url: str) -> str:
    """The host as it is written there."""
    text = url.replace("\\", "/")
    if ":" in text and _is_number(text):
        return text
    try:
        return urlsplit(text if "://" in text else f"//{text.lstrip('/')}").hostname or ""
    except ValueError:
        return text


def is_usual(url: str) -> bool:
    """Whether the host is written as browsers show it: no other spelling of a number, no dot at its end."""
    return host_of(url) == written_host(url).lower()


def words_of(text: str) -> Iterator[str]:
    """The words of a text that may be addresses, without the marks around them."""
    for found in _WORD.findall(text):
        word = found.strip("*_").rstrip(".!?" if "@" in found else ".!?:")
        if word := word if word.count(":") > 1 else word.strip("[]"):
            yield word


def is_address(word: str) -> bool:
    """Whether a word names a machine, whatever the argument is called.

    So do `//host`, `user@host:`, `host:port`, an IP address, and a name under a top-level domain. Numbers of two or
    three parts do not: versions, amounts, dates and places look the same.
    """
    text = unquote(normalize("NFKC", word)).replace("\\", "/")
    place = re.split(r"[/?#]", text, maxsplit=1)[0].rpartition("@")[2]
    if _FORM.match(text) or any(map(_is_name, place.split(":"))):
        return True
    number = place.partition("]")[0] if place.count(":") > 1 else place.partition(":")[0]
    if not _is_number(normalised(number)):
        return False
    if number.isalnum():
        return int(ip_address(normalised(number))) >= _LONE and _DATE.fullmatch(number) is None
    return number.count(".") > 2 or ":" in place or "x" in number


def _is_name(name: str) -> bool:
    labels = normalised(name).split(".")
    is_dotted = len(labels) > 1 or labels == ["localhost"]
    return is_dotted and labels[-1] in _top_level() and all(map(_LABEL.fullmatch, labels))


@cache
def _top_level() -> frozenset[str]:
    from linkify_it.tlds import TLDS  # pyright: ignore[reportMissingTypeStubs]

    return _RESERVED | {name.lower() for name in TLDS}
