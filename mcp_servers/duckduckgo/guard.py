"""Lets requests out to public addresses only: checked after the name is resolved, and pinned to what was checked."""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from urllib.parse import urlsplit

import httpx2

from mcp_servers.addresses import is_public

PORTS = {80, 443, 8080, 8443}
Resolve = Callable[[str, int], Awaitable[list[str]]]
Dial = Callable[[str, int], tuple[str, int]]


class Forbidden(Exception):
    """A request that must not be sent; the text explains why to the model."""


async def resolve(host: str, port: int) -> list[str]:
    """All addresses of the name, as the system resolves it.

    Raises:
        Forbidden: there are none.
    """
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise Forbidden("there is no such host") from error
    return [str(entry[4][0]) for entry in found]


class GuardedTransport(httpx2.AsyncBaseTransport):
    """Checks every request, thus also every step of a redirect, before a byte leaves.

    `resolve_name` and `dial` (where a checked address is really reached) exist for tests.
    """

    def __init__(
        self, *, resolve_name: Resolve = resolve, dial: Dial = lambda address, port: (address, port)
    ) -> None:  # fmt: skip
        self._resolve = resolve_name
        self._dial = dial
        # A kept connection belongs to an address, and another name there must not travel over its TLS.
        self._inner = httpx2.AsyncHTTPTransport(
            trust_env=False, limits=httpx2.Limits(max_connections=40, max_keepalive_connections=0)
        )

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        url = request.url
        port = checked_port(url)
        name = url.raw_host.decode("ascii")
        address = await self._address(name, port)
        host, real_port = self._dial(address, port)
        pinned = httpx2.Request(
            request.method,
            url.copy_with(host=host, port=real_port),
            headers=request.headers,  # they name the host that was asked for
            stream=request.stream,
            extensions={**request.extensions, "sni_hostname": name},
        )
        return await self._inner.handle_async_request(pinned)

    async def aclose(self) -> None:
        await self._inner.aclose()

    async def _address(self, host: str, port: int) -> str:
        addresses = await self._resolve(host, port)
        if not addresses:
            raise Forbidden("there is no such host")
        for address in addresses:  # one bad address among good ones is how a name is rebound
            if not is_public(address):
                raise Forbidden("its host is not on the public internet")
        return addresses[0]


def checked_url(address: str) -> httpx2.URL:
    """The address, parsed.

    Raises:
        Forbidden: it is not a URL, or other parsers would find another host in it.
    """
    url = httpx2.URL(address)
    unfit = not address.isprintable() or any(mark in address for mark in ' \\"`<>')
    if unfit or urlsplit(address).hostname != url.host:
        raise Forbidden("the address has characters that a URL must write in another way")
    return url


def checked_port(url: httpx2.URL) -> int:
    """The port of a URL that may be fetched.

    Raises:
        Forbidden: scheme, port or user name are not those of a public page.
    """
    if url.scheme not in ("http", "https"):
        raise Forbidden("only http:// and https:// addresses can be fetched")
    if not url.host:
        raise Forbidden("the address names no host")
    if url.userinfo:
        raise Forbidden("addresses with a user name cannot be fetched")
    port = url.port or (443 if url.scheme == "https" else 80)
    if port not in PORTS:
        raise Forbidden(f"port {port} cannot be fetched, only {', '.join(map(str, sorted(PORTS)))}")
    return port
