"""Fetch a public page and give its text, piece by piece."""

import asyncio
import logging
import time
from dataclasses import dataclass
from http.cookiejar import CookieJar, DefaultCookiePolicy

import httpx2

from mcp_servers.duckduckgo.decoding import ACCEPTED, Unreadable, bounded
from mcp_servers.duckduckgo.guard import Forbidden, GuardedTransport, checked_url
from mcp_servers.duckduckgo.limits import Busy, Clock, Kept, Places, RateLimit
from mcp_servers.duckduckgo.reading import PageReader, ReadingLimits
from mcp_servers.duckduckgo.text import utc_now

logger = logging.getLogger(__name__)

MAX_BYTES = 2 * 2**20
MAX_REDIRECTS = 5
FETCH_SECONDS = 10.0
KEPT_SECONDS = 600
KEPT_PAGES = 60
AT_ONCE = 8
LONGEST_URL = 2_000
_AGENT = "Mozilla/5.0 (compatible; dial-general-purpose-agent; +text for one reader)"
_READABLE = ("text/", "application/json", "application/xml", "application/xhtml+xml", "application/pdf")


class FetchFailed(Exception):
    """A page that could not be fetched; the text is an explanation and advice for the model."""


@dataclass(frozen=True, slots=True)
class Page:
    """A page's text; `url` is where it was found after redirects, `at` when, `cut` that the page was larger than we
    read."""

    url: str
    title: str
    text: str
    cut: bool
    at: str = ""


@dataclass(frozen=True, slots=True)
class _Body:
    url: str
    kind: str
    charset: str | None
    content: bytes
    cut: bool


class PageFetcher:
    """Fetches pages through a transport that guards where requests go."""

    def __init__(
        self,
        transport: GuardedTransport | None = None,
        *,
        per_minute: int = 30,
        seconds: float = FETCH_SECONDS,
        max_bytes: int = MAX_BYTES,
        reading: ReadingLimits | None = None,
        clock: Clock = time.monotonic,
    ) -> None:
        self._transport = transport
        self._seconds = seconds
        self._max_bytes = max_bytes
        self._rate = RateLimit(per_minute, clock)
        self._places = Places(AT_ONCE)
        self._reader = PageReader(reading)
        self.kept: Kept[Page] = Kept(KEPT_PAGES, KEPT_SECONDS, clock)

    async def page(self, url: str, principal: str = "") -> Page:
        """The page's text, kept for ten minutes so that its later pieces cost nothing.

        Raises:
            FetchFailed: it must not or could not be fetched, or contains no text.
        """
        address = url.strip().partition("#")[0]
        if len(address) > LONGEST_URL:
            raise FetchFailed(f"The address is longer than {LONGEST_URL} characters.")
        return await self.kept.get(address, lambda: self._fetched(address, principal))

    async def close(self) -> None:
        if self._transport is not None:
            await self._transport.aclose()

    async def _fetched(self, url: str, principal: str) -> Page:
        try:
            self._rate.take(principal)
            async with self._places.taken(principal):
                body = await self._body(url)
                found = await self._reader.read(body.content, body.kind, body.charset)
        except Busy as busy:
            raise FetchFailed(f"Too many pages at once. Try again in {busy.seconds} s.") from busy
        except (Forbidden, Unreadable) as error:
            raise FetchFailed(f"The page cannot be fetched: {error}.") from error
        except TimeoutError as error:
            raise FetchFailed(f"The page took longer than {self._seconds:g} s. Try another source.") from error
        except httpx2.TooManyRedirects as error:
            raise FetchFailed("The page redirects in circles. Try another source.") from error
        except (httpx2.HTTPError, httpx2.InvalidURL, ValueError, RuntimeError) as error:
            raise FetchFailed(f"The page could not be read ({type(error).__name__}). Try another source.") from error
        if not found.text:
            raise FetchFailed("The page contains no readable text; it may need a browser. Try another source.")
        return Page(body.url, found.title, found.text, body.cut or found.cut, utc_now())

    async def _body(self, url: str) -> _Body:
        client = httpx2.AsyncClient(
            transport=self._guarded(),
            follow_redirects=True,
            max_redirects=MAX_REDIRECTS,
            timeout=self._seconds,
            trust_env=False,
            cookies=CookieJar(DefaultCookiePolicy(allowed_domains=())),  # none, also within one redirect
            headers={"User-Agent": _AGENT, "Accept": "text/html,text/*,*/*;q=0.8", "Accept-Encoding": ACCEPTED},
        )
        async with asyncio.timeout(self._seconds), client.stream("GET", checked_url(url)) as answer:
            if answer.status_code != 200:
                raise Unreadable(f"the server answered status {answer.status_code}; try another source")
            kind, charset = _media_type(answer.headers.get("content-type", ""))
            if not kind.startswith(_READABLE) and not kind.endswith(("+xml", "+json")):
                raise Unreadable(
                    f"it is {kind or 'of an unknown type'}, and only text, HTML, JSON, XML and PDF are read"
                )
            encoding = answer.headers.get("content-encoding", "")
            content, cut = await bounded(answer.aiter_raw(), encoding, self._max_bytes)
            return _Body(str(answer.url), kind, charset, content, cut)

    def _guarded(self) -> GuardedTransport:
        if self._transport is None:
            self._transport = GuardedTransport()
        return self._transport


def _media_type(header: str) -> tuple[str, str | None]:
    kind, *parameters = (part.strip() for part in header.split(";"))
    charset = next(
        (value.strip("\"' ") for name, _, value in (p.partition("=") for p in parameters) if name == "charset"), None
    )
    return kind.lower(), charset or None
