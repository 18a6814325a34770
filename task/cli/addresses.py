"""Addresses, ports and keys of the product's parts, as seen from this machine, and requests to a Core as a program."""

import errno
import socket
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlsplit

import aiohttp
import orjson
from yarl import URL

from task.errors import AgentError, SettingsError
from task.llm.chat_chunks import SseReader
from task.llm.failures import http_failure
from task.llm.transport import is_loopback
from task.settings import Settings
from task.settings.installation import installation_secret

ANY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104  where a server on every address is reached
# An answer may take long and be quiet between heartbeats, so that only silence is bounded.
TIMEOUT = aiohttp.ClientTimeout(total=None, sock_connect=5, sock_read=300)


def core_is_ours(settings: Settings) -> bool:
    """Whether Core is the local one: it is unless `DIAL_ENDPOINT` names another."""
    return "dial_endpoint" not in settings.model_fields_set


def core_address(settings: Settings) -> str:
    """`DIAL_ENDPOINT` where it is set, else local Core's address."""
    return base_url(settings.core.host, settings.core_port) if core_is_ours(settings) else settings.dial_endpoint


def base_url(host: str, port: int) -> str:
    """The address at which a server that listens on `host` is reached from this machine."""
    reached = ANY_ADDRESS.get(host, host)
    return f"http://[{reached}]:{port}" if ":" in reached else f"http://{reached}:{port}"


def local_core_key(settings: Settings) -> str:
    """`DIAL_API_KEY` where it is set, else this installation's random key.

    Raises:
        SettingsError: the data folder cannot be used.
    """
    if settings.dial_api_key is not None:
        return settings.dial_api_key.get_secret_value()
    return installation_secret(settings.data_dir / "core.key")


def key_for(settings: Settings, address: str) -> str:
    """The key for the Core at `address`; this installation's own is for this machine's Core only.

    Raises:
        SettingsError: another machine's Core and no key for it, or the data folder cannot be used.
    """
    if settings.dial_api_key is None and not is_local(address):
        raise SettingsError(f"DIAL_API_KEY is not set, and {address} is not this machine; set the key it gave you.")
    return local_core_key(settings)


def is_local(address: str) -> bool:
    """Whether the address is one of this machine."""
    return is_loopback(urlsplit(address).hostname or "")


def free_port(host: str) -> int:
    """A port that is free at this moment."""
    with socket.create_server((host, 0), family=family(host)) as probe:
        return int(probe.getsockname()[1])


def usable_port(host: str, port: int, *names: str) -> int:
    """The port to listen on: `port` once it is known to be free, or any free one for 0; `names` set another.

    Raises:
        SettingsError: the port is taken, needs rights, or the host is not this machine's.
    """
    if port == 0:
        return free_port(host)
    if fault := port_fault(host, port):
        raise SettingsError(f"{fault}; choose another with {' or '.join(names)}.")
    return port


def port_fault(host: str, port: int) -> str | None:
    """Why nothing can listen on `host:port`, as a clause; None when it can."""
    try:
        with socket.socket(family(host)) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
            return None
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return f"Port {port} is in use by another process"
        return f"Nothing can listen on {host} port {port}: {error.strerror}"


def family(host: str) -> socket.AddressFamily:
    """The kind of address that `host` is."""
    return socket.AF_INET6 if ":" in host else socket.AF_INET


class CoreError(AgentError):
    """Core refused the request with this HTTP status; 0: nothing answers at its address, or the connection broke."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class CoreClient:
    """Requests to one Core with one key, each over a connection of its own.

    Raises:
        CoreError: by every method.
    """

    endpoint: str
    api_key: str
    timeout: aiohttp.ClientTimeout = TIMEOUT

    async def bucket(self) -> str:
        """The id of the key's own bucket."""
        return str((await self._json("/v1/bucket"))["bucket"])

    async def ask(
        self, deployment: str, messages: Sequence[Mapping[str, Any]], conversation: str
    ) -> AsyncGenerator[bytes]:
        """The payloads of the streamed answer to the last message."""
        body = orjson.dumps({"messages": list(messages), "stream": True})
        path = f"/openai/deployments/{quote(deployment, safe='')}/chat/completions"
        async with self._response("POST", path, body, {"X-CONVERSATION-ID": conversation}) as response:
            reader = SseReader()
            async for piece in response.content.iter_any():
                for payload in reader.feed(piece):
                    yield payload
            for payload in reader.close():
                yield payload

    async def deployments(self) -> list[str]:
        """The ids of the applications and models that the key may use."""
        listings = [await self._json(f"/openai/{kind}") for kind in ("applications", "models")]
        return [str(item["id"]) for listing in listings for item in listing["data"]]

    async def reaches(self, deployment: str) -> bool | None:
        """Whether Core gets an answer at the address that its configuration has for the deployment; None: not tried."""
        try:
            async with self._response("GET", f"/v1/deployments/{quote(deployment, safe='')}/configuration") as response:
                return bool(await response.content.read(1)) or None  # Core's own answer is empty, or 404
        except CoreError as error:
            if not error.status:
                raise
            return None if error.status == 404 else error.status < 500

    async def _json(self, path: str) -> Any:
        async with self._response("GET", path) as response:
            try:
                return orjson.loads(await response.read())
            except orjson.JSONDecodeError as error:
                raise CoreError(f"{self.endpoint} answers, but not as DIAL Core does", 200) from error

    @asynccontextmanager
    async def _response(
        self, method: str, path: str, body: bytes | None = None, more: Mapping[str, str] | None = None
    ) -> AsyncGenerator[aiohttp.ClientResponse]:
        url = URL(f"{self.endpoint.rstrip('/')}{path}", encoded=True)
        headers = {"Api-Key": self.api_key, "Content-Type": "application/json", **(more or {})}
        try:
            async with (
                aiohttp.ClientSession(timeout=self.timeout) as session,
                session.request(method, url, headers=headers, data=body, allow_redirects=False) as response,
            ):
                if response.status != 200:
                    failure = http_failure(response.status, await response.content.read(100_000), {}, ())
                    text = failure.display_message or failure.text or f"HTTP status {response.status}"
                    raise CoreError(text, response.status)
                yield response
        except (aiohttp.ClientError, TimeoutError) as error:
            raise CoreError(f"{self.endpoint} does not answer ({type(error).__name__})") from error
