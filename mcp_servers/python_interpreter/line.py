"""One waiting line for the calls of all sessions: so many run at once, of one person at most half."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass

CANCELLED = "the call was cancelled before it ran"


class NoPlace(Exception):
    """A call that has left the line: it waited too long, or is no longer wanted."""


@dataclass(eq=False, slots=True)
class Ticket:
    """One call. While it waits it is number `place` of `length`, else 0; `waited` is in seconds."""

    owner: str
    place: int = 0
    length: int = 0
    waited: float = 0.0
    given_up: bool = False
    turn: asyncio.Future[None] | None = None

    def give_up(self) -> None:
        """Leave the line, or do not enter it again."""
        self.given_up = True
        if self.turn is not None and not self.turn.done():
            self.turn.set_exception(NoPlace(CANCELLED))


class Line:
    """First come, first served; who has half of the places already is passed over."""

    def __init__(self, places: int) -> None:
        self._places = places
        self._share = max(1, places // 2)
        self._running = Counter[str]()
        self._waiting: dict[Ticket, asyncio.Future[None]] = {}

    @asynccontextmanager
    async def place(self, ticket: Ticket, seconds: float) -> AsyncGenerator[None]:
        """Hold a place in the block; wait at most so many seconds for it.

        Raises:
            NoPlace: the ticket was given up, or none became free in time.
        """
        await self._entered(ticket, seconds)
        try:
            yield
        finally:
            self._running[ticket.owner] -= 1
            self._admit()

    def give_up(self) -> None:
        """End every wait."""
        for turn in self._waiting.values():
            if not turn.done():
                turn.set_exception(NoPlace(CANCELLED))

    async def _entered(self, ticket: Ticket, seconds: float) -> None:
        if ticket.given_up:
            raise NoPlace(CANCELLED)
        began, turn = time.monotonic(), asyncio.get_running_loop().create_future()
        ticket.turn = turn
        self._waiting[ticket] = turn
        self._admit()
        try:
            async with asyncio.timeout(seconds):
                await turn
        except BaseException as error:
            if self._waiting.pop(ticket, None) is None:  # its turn came while it was being cancelled
                self._running[ticket.owner] -= 1
            self._admit()
            if isinstance(error, TimeoutError):
                raise NoPlace(f"no kernel became free within {seconds:.0f} seconds; try again in a minute") from None
            raise
        finally:
            ticket.turn, ticket.place, ticket.length = None, 0, 0
            ticket.waited += time.monotonic() - began

    def _admit(self) -> None:
        for ticket, turn in list(self._waiting.items()):
            if self._running.total() >= self._places:
                break
            if self._running[ticket.owner] < self._share and not turn.done():
                self._running[ticket.owner] += 1
                del self._waiting[ticket]
                turn.set_result(None)
        for number, ticket in enumerate(self._waiting, 1):
            ticket.place, ticket.length = number, len(self._waiting)
