"""POST a JSON request to a model provider and stream its answer's bytes."""

import asyncio
import io
import random
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass
from http.cookiejar import CookieJar, DefaultCookiePolicy
from ipaddress import ip_address
from typing import Any, TypeVar

import aiohttp
import orjson
from yarl import URL

from task.errors import ProviderError
from task.llm.failures import CONNECTION_FAILED, INSUFFICIENT_QUOTA, INTERRUPTED, MODEL_SERVER, TIMEOUT, http_failure
from task.telemetry.operations import answered_by_core, first_chunk, join_trace

# Servers that close idle connections after 5 s are common (uvicorn, Node.js, llama.cpp), and a request on a connection
# that is just being closed is lost.
KEEP_ALIVE_SECONDS = 4.0
READ_SECONDS = 300.0
_END_SECONDS = 0.25  # how long a connection may take to end after a complete answer to be reused
_RETRIED = frozenset({408, 409, 429})
_HEADERS = {"Content-Type": "application/json", "Accept": "text/event-stream", "Accept-Encoding": "identity"}
_SECRET_HEADERS = frozenset({"authorization", "api-key", "x-api-key"})
_ERROR_BODY_LIMIT = 64 * 1024
_CONNECTION_ERRORS = (aiohttp.ClientError, TimeoutError, OSError)
_UNSENDABLE = (aiohttp.NonHttpUrlClientError, ValueError)  # aiohttp.InvalidURL is a ValueError too
Result = TypeVar("Result")
_LARGE_BODY = 2**20
LARGEST_LIST = 2**23  # bytes


def new_session(read_seconds: float = READ_SECONDS, *, traced: bool = False) -> aiohttp.ClientSession:
    """The connection pool that a composition root opens once, in the running loop, and all models share.

    Connections are not limited, since each one is a running answer; `read_seconds`: the longest silence within one.
    `traced`: requests are part of the trace of the operation that makes them.
    """

    async def join(_: aiohttp.ClientSession, __: object, request: aiohttp.TraceRequestStartParams) -> None:
        join_trace(request.headers)

    tracing = aiohttp.TraceConfig()
    tracing.on_request_start.append(join)
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, limit_per_host=0, keepalive_timeout=KEEP_ALIVE_SECONDS),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=read_seconds),
        cookie_jar=aiohttp.DummyCookieJar(),  # the pool serves many callers
        trace_configs=[tracing] if traced else None,
    )


def is_loopback(host: str) -> bool:
    """Whether `host` is a loopback address or `localhost`; no name is looked up."""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def no_cookies() -> CookieJar:
    """A jar that stays empty, for the clients of other libraries: they serve many callers too."""
    return CookieJar(DefaultCookiePolicy(allowed_domains=()))


@dataclass(frozen=True, slots=True)
class Retries:
    """When a request is retried: only before the answer's first byte, `attempts` tries in all.

    Retried are connection errors, 408, 409, 429 and 5xx. A `Retry-After` of up to `patience` seconds is honoured; a
    longer one ends the retries. Without one the wait is about `pause` seconds, then twice as long each time.
    """

    attempts: int = 3
    patience: float = 30.0
    pause: float = 0.5
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    jitter: Callable[[], float] = random.random

    def wait(self, attempt: int, error: ProviderError) -> float | None:
        """Seconds until the next try; None: no retry."""
        if error.status_code is None:
            passing = error.code in (CONNECTION_FAILED, INTERRUPTED)
        else:
            passing = error.status_code in _RETRIED or error.status_code >= 500
        if attempt >= self.attempts or not passing or error.code == INSUFFICIENT_QUOTA:
            return None
        if error.retry_after is not None:
            return error.retry_after if error.retry_after <= self.patience else None
        return min(self.pause * 2 ** (attempt - 1), max(self.pause, 8.0)) * (0.5 + self.jitter() / 2)

    async def run(self, call: Callable[[], Awaitable[Result]]) -> Result:
        """The call's result; the call is repeated while a retry may help.

        Raises:
            ProviderError: the last call's.
        """
        attempt = 1
        while True:
            try:
                return await call()
            except ProviderError as error:
                wait = self.wait(attempt, error)
                if wait is None:
                    raise
            await self.sleep(wait)
            attempt += 1


RETRIES = Retries()


async def answer_bytes(
    session: aiohttp.ClientSession | None,
    url: str,
    body: bytes,
    headers: Mapping[str, str],
    retries: Retries,
    server: str = MODEL_SERVER,
) -> AsyncGenerator[bytes, Any]:
    """The bytes of the answer to a POST of JSON; closing or cancelling the generator closes the connection.

    Use `drain` instead where the answer is complete. `url` is percent-encoded already, `headers` contain the key,
    `server` is what errors call the one at `url`. Without a session it opens one of its own.

    Raises:
        ProviderError: the provider could not be reached, refused, failed or broke off.
    """
    if session is None:
        async with new_session() as own, aclosing(answer_bytes(own, url, body, headers, retries, server)) as pieces:
            async for piece in pieces:
                if (yield piece):
                    await drain(pieces)
        return
    try:
        response, piece = await retries.run(lambda: _open(session, url, body, headers))
        first_chunk()
        try:
            while piece and not (yield piece):
                piece = await response.content.readany()
            if piece and not response.content.at_eof():  # the end has usually come with the last bytes
                with suppress(TimeoutError):
                    async with asyncio.timeout(_END_SECONDS):
                        while await response.content.readany():
                            pass
        except _CONNECTION_ERRORS as error:
            raise _failure(error) from error
        finally:
            _release(response)
    except ProviderError as error:
        error.server = server
        with suppress(ValueError):  # a user name or a query may be a key
            error.address = str(URL(url, encoded=True).with_user(None).with_query(None))
        raise


async def drain(pieces: AsyncGenerator[bytes, Any]) -> None:
    """End `answer_bytes` after a complete answer, at the connection's end: only then can it be reused."""
    with suppress(ProviderError, StopAsyncIteration):
        await pieces.asend(True)


async def fetched(
    session: aiohttp.ClientSession, url: str | URL, headers: Mapping[str, str], seconds: float, most: int
) -> tuple[int, bytes, str]:
    """The status that a server answers a GET with, its content where that is 200, and the content's ETag.

    Raises:
        aiohttp.ClientError, TimeoutError: it does not answer.
        OverflowError: the content has more than `most` bytes.
    """
    timeout, body = aiohttp.ClientTimeout(total=seconds), bytearray()
    async with session.get(url, headers=headers, timeout=timeout, allow_redirects=False) as response:
        while response.status == 200 and (piece := await response.content.readany()):
            body += piece
            if len(body) > most:
                raise OverflowError(f"it has more than {most:,} bytes")
        return response.status, bytes(body), response.headers.get("ETag", "")


async def listing(
    session: aiohttp.ClientSession, url: str, headers: Mapping[str, str], seconds: float = 2, most: int = LARGEST_LIST
) -> Any:
    """The JSON of at most so many bytes that a server answers a GET with; None where it does not answer, refuses, or
    sends something else."""
    try:
        status, content, _ = await fetched(session, url, headers, seconds, most)
        return orjson.loads(content) if status == 200 else None
    except (aiohttp.ClientError, TimeoutError, ValueError, OverflowError):
        return None


async def listed(
    session: aiohttp.ClientSession, url: str, headers: Mapping[str, str], key: str
) -> list[dict[str, Any]] | None:
    """The objects below `key` in what a server lists; None where it does not list them."""
    found = await listing(session, url, headers)
    items = found.get(key) if isinstance(found, dict) else None
    return [item for item in items if isinstance(item, dict)] if isinstance(items, list) else None


def sendable(body: bytes) -> bytes | io.BytesIO:
    """The body for aiohttp: a large one as a file, so that writing it does not block the event loop."""
    return body if len(body) < _LARGE_BODY else io.BytesIO(body)


async def _open(
    session: aiohttp.ClientSession, url: str, body: bytes, headers: Mapping[str, str]
) -> tuple[aiohttp.ClientResponse, bytes]:
    try:
        response = await session.post(
            URL(url, encoded=True),
            data=sendable(body),
            headers={**_HEADERS, **headers},
            allow_redirects=False,  # a redirect would take the key to another host
        )
    except _UNSENDABLE as error:
        raise ProviderError("The model provider's address, key or a header is not valid.", code="unsendable") from error
    except _CONNECTION_ERRORS as error:
        raise _failure(error) from error
    try:
        if core_trace := response.headers.get("X-DIAL-TRACE-ID"):
            answered_by_core(core_trace)
        piece = await response.content.readany()
        if response.status == 200:
            return response, piece
        content = b""
        while piece and len(content) < _ERROR_BODY_LIMIT:
            content += piece
            piece = await response.content.readany()
        secrets = [value.removeprefix("Bearer ") for name, value in headers.items() if name.lower() in _SECRET_HEADERS]
        raise http_failure(response.status, content, response.headers, secrets)
    except BaseException as error:
        _release(response)
        if isinstance(error, _CONNECTION_ERRORS):
            raise _failure(error) from error
        raise


def _release(response: aiohttp.ClientResponse) -> None:
    if response.content.at_eof():
        response.release()
    else:  # closed in the middle of an answer, so that the provider stops
        response.close()


def _failure(error: Exception) -> ProviderError:
    # The texts name no address: it may contain a key. The cause stays attached for the log.
    if isinstance(error, aiohttp.ConnectionTimeoutError | aiohttp.ClientConnectorError):
        return ProviderError("The model provider cannot be reached.", code=CONNECTION_FAILED)
    if isinstance(error, TimeoutError):
        return ProviderError("The model provider has been silent for too long.", code=TIMEOUT)
    return ProviderError("The connection to the model provider was lost.", code=INTERRUPTED)
