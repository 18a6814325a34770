"""Search the web, politely: kept answers, one request for equal questions, a rate, and a pause when blocked."""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from mcp_servers.duckduckgo.engine import Blocked, Drifted, Hit, Unreachable
from mcp_servers.duckduckgo.limits import Breaker, Busy, Clock, Kept, Places, RateLimit
from mcp_servers.duckduckgo.text import cleaned, utc_now

logger = logging.getLogger(__name__)

LONGEST_QUERY = 500
MOST_RESULTS = 20
KEPT_SECONDS = 900
KEPT_QUERIES = 500
AT_ONCE = 8

Ask = Callable[[str], list[Hit]]  # blocks


class SearchFailed(Exception):
    """A search that failed; the text is advice for the model."""


@dataclass(frozen=True, slots=True)
class Found:
    """A query's results, best first, and when they were found."""

    hits: tuple[Hit, ...]
    at: str = ""


class WebSearch:
    def __init__(
        self, ask: Ask, *, per_minute: int = 30, pause_seconds: float = 600, clock: Clock = time.monotonic
    ) -> None:
        self._ask = ask
        self._rate, self._places = RateLimit(per_minute, clock), Places(AT_ONCE)
        self.kept: Kept[Found] = Kept(KEPT_QUERIES, KEPT_SECONDS, clock)
        self.breaker = Breaker(pause_seconds, clock)

    async def search(self, query: str, max_results: int, principal: str = "") -> Found:
        """At most `max_results` hits (1 to 20), best first; none is an answer too.

        Raises:
            SearchFailed: the query is unfit, or DuckDuckGo could not be asked.
        """
        wanted = " ".join(query.split())
        if not wanted:
            raise SearchFailed("The query is empty. Say what to search for.")
        if len(wanted) > LONGEST_QUERY:
            raise SearchFailed(f"The query has {len(wanted)} characters; use at most {LONGEST_QUERY}, a few key words.")
        found = await self.kept.get(wanted.casefold(), lambda: self._asked(wanted, principal))
        return replace(found, hits=found.hits[: max(1, min(max_results, MOST_RESULTS))])

    async def _asked(self, query: str, principal: str) -> Found:
        if left := self.breaker.left():
            raise SearchFailed(_blocked(left))
        try:
            self._rate.take(principal)
            async with self._places.taken(principal):
                hits = await asyncio.to_thread(self._ask, query)
        except Busy as busy:
            raise SearchFailed(f"Too many searches at once. Try again in {busy.seconds} s.") from busy
        except Blocked as error:
            self.breaker.trip()
            logger.warning("DuckDuckGo blocks this address (status %d); pausing", error.status)
            raise SearchFailed(_blocked(self.breaker.left())) from error
        except Unreachable as error:
            raise SearchFailed(
                f"DuckDuckGo could not be reached ({error}). Try again later, or tell the user that the web cannot be "
                "searched now."
            ) from error
        except Drifted as error:
            logger.error("the markup of DuckDuckGo's results has changed; the search server needs an update")  # noqa: TRY400
            raise SearchFailed(
                "DuckDuckGo's page could not be understood, so nothing is known about this query. Tell the user that "
                "the search needs maintenance."
            ) from error
        return Found(tuple(Hit(cleaned(hit.title), hit.url, cleaned(hit.snippet)) for hit in hits), utc_now())


def _blocked(seconds: int) -> str:
    minutes = max(1, round(seconds / 60))
    return (
        f"DuckDuckGo refuses searches from this address for now; this says nothing about the query. Do not search "
        f"again within {minutes} min. Answer from what you know and say that it was not checked on the web."
    )
