"""Query DuckDuckGo's HTML page, and distinguish an empty answer from a refusal."""

from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs, urlsplit

from ddgs.engines.duckduckgo import Duckduckgo
from ddgs.exceptions import DDGSException, TimeoutException

SEARCH_URL = Duckduckgo.search_url
_CHALLENGES = ("anomaly-modal", "challenge-form")
_NO_RESULTS = "no-results"
_AD = "duckduckgo.com/y.js"


class Blocked(Exception):
    """DuckDuckGo takes us for a robot; `status` is its HTTP status."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


class Unreachable(Exception):
    """DuckDuckGo did not answer, or not with a page."""


class Drifted(Exception):
    """There is a page, but no results in their usual place."""


@dataclass(frozen=True, slots=True)
class Hit:
    title: str
    url: str
    snippet: str


class _Engine(Duckduckgo):
    """ddgs's own engine, which alone would report a refusal as "No results found"."""

    def request(self, *args: Any, **kwargs: Any) -> str:
        answer = self.http_client.request(*args, **kwargs)
        if answer.status_code in (202, 403, 429) or any(mark in answer.text for mark in _CHALLENGES):
            raise Blocked(answer.status_code)
        if answer.status_code != 200:
            raise Unreachable(f"status {answer.status_code}")
        self.page: str = answer.text
        return self.page


def ask(query: str, *, url: str = SEARCH_URL, region: str = "us-en", seconds: int = 10) -> list[Hit]:
    """The results in DuckDuckGo's order, without advertisements; blocks, so call it in a thread.

    Raises:
        Blocked, Unreachable, Drifted
    """
    engine = _Engine(timeout=seconds)
    engine.search_url = url
    try:
        found = engine.search(query, region=region) or []
    except TimeoutException as error:
        raise Unreachable(f"no answer within {seconds} s") from error
    except DDGSException as error:
        raise Unreachable("the connection failed") from error
    page = engine.page
    if not page.strip():
        raise Blocked(200)  # an empty page is how robots are turned away
    hits = [Hit(item.title, _target(item.href), item.body) for item in found if _AD not in item.href]
    usable = [hit for hit in hits if hit.title and hit.url.startswith(("http://", "https://"))]
    if not usable and (hits or not found) and _NO_RESULTS not in page:
        raise Drifted("no results and no word that there are none")
    return usable


def _target(href: str) -> str:
    parts = urlsplit(href if "//" in href else f"//{href}")
    if parts.netloc.endswith("duckduckgo.com") and parts.path == "/l/":
        return parse_qs(parts.query).get("uddg", [""])[0]
    return href
