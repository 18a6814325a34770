"""One of the people of `make scale`: asks, retries and follows as clients should, and remembers what came back."""

import asyncio
import random
import re
from collections.abc import AsyncGenerator, Callable, Container, Iterable
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import aiohttp
import orjson

from tests.benchmarks.upstream import WORD

WORDS, PAUSE_MS = 40, 50
RETRY_SECONDS, ANSWER_SECONDS, READ_SECONDS = 1.0, 150.0, 600.0
BROKEN = (aiohttp.ClientError, TimeoutError, ConnectionError)
SUM = re.compile(r"sum=(\d+);")
Event = dict[str, Any]


class Refused(Exception):
    """The request was not answered, or not to its end; the text says how."""


class Gone(Refused):
    """What was to be read back is not there."""


@dataclass(slots=True)
class Turn:
    """What a person asked and what became of it. `runs` has the events that were seen of each run, by their numbers.

    It is `late` where the person has stopped waiting: neither answered nor refused.
    """

    word: str
    script: str
    began: float
    seconds: float | None = None
    accepted: bool = False
    answer: str = ""
    refused: str = ""
    late: bool = False
    words: int = WORDS
    runs: dict[str, dict[int, Event]] = field(default_factory=dict[str, dict[int, Event]])
    approved: list[str] = field(default_factory=list[str])

    @property
    def ending(self) -> str:
        """The text after the last call."""
        match self.script.split():
            case ["note", word]:
                return f"noted: {word}"
            case ["record", word, *_]:
                return f"recorded: {word}"
            case ["add", *_]:
                return self.answer
            case _:
                return WORD * self.words

    @property
    def writes(self) -> bool:
        return self.script.startswith(("note", "record"))


@dataclass(slots=True)
class Person:
    """One conversation in a session. Of three turns one writes a note, which the user approves, and one calls a tool
    that writes without a question."""

    number: int
    url: str
    key: str
    session: aiohttp.ClientSession
    thinks: tuple[float, float]
    words: int = WORDS  # of an answer
    session_id: str = ""
    turns: list[Turn] = field(default_factory=list[Turn])
    codes: bool = False  # whether some of its turns add to a variable of its kernel
    sums: set[int] = field(default_factory=lambda: {0})  # what that may be by now
    wrong_sums: list[str] = field(default_factory=list[str])
    errors: list[str] = field(default_factory=list[str])  # requests that an agent failed to handle

    async def converse(self, seed: int, stopping: asyncio.Event) -> None:
        dice = random.Random(f"{seed} {self.number}")
        await _unless(stopping, dice.uniform(0, sum(self.thinks) / 2))  # the load is the same from the beginning
        while not self.session_id and not stopping.is_set():
            with suppress(Refused, TimeoutError):
                async with asyncio.timeout(ANSWER_SECONDS):
                    self.session_id = (await self.sent("/session/start", {}, "start"))["session_id"]
        while not stopping.is_set():
            place = len(self.turns) + self.number
            word = f"w{self.number}-{len(self.turns)}"
            if self.codes and not len(self.turns) % 3:
                script = f"add {place + 1} {word}"
            else:
                paced = f"{self.words} {PAUSE_MS}"
                script = (f"note {word}", f"paced {paced} {word}", f"record {word} {paced}")[place % 3]
            self.turns.append(turn := Turn(word, script, perf_counter(), words=self.words))
            try:
                async with asyncio.timeout(ANSWER_SECONDS):
                    await (self._streamed(turn) if place % 3 and place % 2 else self._followed(turn))
                turn.seconds = perf_counter() - turn.began
                self._check_sum(turn)
            except Refused as refusal:
                turn.refused = str(refusal)
            except TimeoutError:
                turn.late = True
            if turn.seconds is None and turn.script.startswith("add"):  # it may have been done, also in a new kernel
                number = int(turn.script.split()[1])
                self.sums |= {before + number for before in self.sums} | {0, number}
            await _unless(stopping, dice.uniform(*self.thinks))

    def _check_sum(self, turn: Turn) -> None:
        if not turn.script.startswith("add"):
            return
        found = SUM.search(turn.answer)
        possible = {before + int(turn.script.split()[1]) for before in self.sums}
        if found is None or int(found[1]) not in possible:
            self.wrong_sums.append(f"{turn.word}: {turn.answer[:80]!r}, not one of {sorted(possible)}")
        self.sums = {int(found[1])} if found is not None else possible | self.sums

    async def _followed(self, turn: Turn) -> None:
        """Ask with `POST /runs`, follow the events, and approve what is asked."""
        run_id = (await self.sent("/runs", self._body(turn), turn.word))["run_id"]
        turn.accepted = True
        status = await self._events(turn, run_id)
        if status == "suspended":
            [approval] = [item for event in turn.runs[run_id].values() for item in event.get("approvals", ())]
            path = f"/approvals/{approval['approval_id']}"
            decided = await self.sent(path, {"decision": "approve"}, f"{turn.word} approved")
            turn.approved.append(approval["approval_id"])
            resumed = decided.get("resumed")
            if resumed is None:
                raise Refused("approved, and not continued")
            run_id = resumed["run_id"]
            status = await self._events(turn, run_id)
        turn.answer = "".join(
            event["text"] for _, event in sorted(turn.runs[run_id].items()) if event["type"] == "text"
        )
        if status == "failed":
            raise Refused(f"failed ({_failure(turn.runs[run_id].values())})")
        if status != "finished":
            raise Refused(status)

    async def _streamed(self, turn: Turn) -> None:
        """Ask with `/v1/chat/completions`, as OpenAI's clients do."""

        def refused(response: aiohttp.ClientResponse, text: str) -> str:
            turn.accepted = turn.accepted or response.status == 200
            if response.status == 200 and text.rstrip().endswith("[DONE]"):
                return ""
            return f"HTTP {response.status}" if response.status != 200 else _error(text)

        body = {**self._body(turn), "stream": True}
        self._read(turn, await self._posted("/v1/chat/completions", body, turn.word, refused, final=(409,)))

    def _read(self, turn: Turn, text: str) -> None:
        chunks = [orjson.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
        if any("error" in chunk for chunk in chunks):
            raise Refused(_error(text))
        choices = [choice for chunk in chunks for choice in chunk["choices"]]
        turn.answer = "".join(choice["delta"].get("content") or "" for choice in choices)
        if "stop" not in {choice.get("finish_reason") for choice in choices}:
            raise Refused("cancelled")

    async def _events(self, turn: Turn, run_id: str) -> str:
        """The run's status at its end; a stream that breaks is followed again from where it broke."""
        seen = turn.runs.setdefault(run_id, {})
        while True:
            try:
                async with aclosing(self.live(run_id, max(seen, default=0))) as events:
                    async for event in events:
                        seen.setdefault(event["id"], event)
                        if event["type"] == "finished":
                            return event["status"]
            except BROKEN:
                pass
            await asyncio.sleep(RETRY_SECONDS)

    async def sent(self, path: str, body: dict[str, Any], key: str) -> Any:
        """What a POST returns; one that fails is sent once more."""

        def refused(response: aiohttp.ClientResponse, _: str) -> str:
            return f"HTTP {response.status}" if response.status >= 300 else ""

        return orjson.loads(await self._posted(path, body, key, refused, final=range(500)))

    async def _posted(
        self,
        path: str,
        body: dict[str, Any],
        key: str,
        refused: Callable[[aiohttp.ClientResponse, str], str],
        final: Container[int],
    ) -> str:
        """The text of the answer to a POST, which is sent once more where it is refused, unless its status is final."""
        headers = {**self._headers, "Idempotency-Key": f"{self.number} {key}"}
        for again in (False, True):
            pause = RETRY_SECONDS
            try:
                async with self.session.post(f"{self.url}{path}", json=body, headers=headers) as response:
                    self._note(response)
                    text = await response.text()
                if not (reason := refused(response, text)):
                    return text
                if again or response.status in final:
                    raise Refused(reason)
                pause = float(response.headers.get("Retry-After", RETRY_SECONDS))
            except BROKEN as error:
                if again:
                    raise Refused(type(error).__name__) from error
            await asyncio.sleep(pause)
        raise AssertionError("the second try ends in an answer or in a refusal")

    def _note(self, response: aiohttp.ClientResponse) -> None:
        if response.status == 500:
            self.errors.append(f"{response.method} {response.url.path}, person {self.number}")

    def _body(self, turn: Turn) -> dict[str, Any]:
        return {"session_id": self.session_id, "messages": [{"role": "user", "content": turn.script}]}

    @property
    def _headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.key}"}

    async def read(self, path: str) -> Any:
        """What a GET returns, which is sent until it is answered.

        Raises:
            Gone: there is no such thing.
            TimeoutError: it is not known by then.
        """
        async with asyncio.timeout(READ_SECONDS):
            while True:
                with suppress(*BROKEN):
                    async with self.session.get(f"{self.url}{path}", headers=self._headers) as response:
                        self._note(response)
                        if response.status == 404:
                            raise Gone(f"GET {path}: HTTP 404")
                        if response.status == 200:
                            return orjson.loads(await response.read())
                await asyncio.sleep(RETRY_SECONDS)

    async def live(self, run_id: str, after: int = 0) -> AsyncGenerator[Event]:
        """The run's events after that number, as they come, until the stream ends."""
        headers = {**self._headers, "Last-Event-ID": str(after)}
        async with self.session.get(f"{self.url}/runs/{run_id}/events", headers=headers) as response:
            self._note(response)
            if response.status == 404:
                raise Gone(f"the run {run_id}: HTTP 404")
            if response.status != 200:
                raise ConnectionError(f"HTTP {response.status}")
            async for line in response.content:
                if line.startswith(b"data: {"):
                    yield orjson.loads(line[6:])

    async def events(self, run_id: str) -> list[Event]:
        """All of the run's events, which are asked for until they have come to their end."""
        async with asyncio.timeout(READ_SECONDS):
            while True:
                with suppress(*BROKEN):
                    async with aclosing(self.live(run_id)) as events:
                        return [event async for event in events]
                await asyncio.sleep(RETRY_SECONDS)


async def _unless(stopping: asyncio.Event, seconds: float) -> None:
    """Wait so long, or until it is time to stop."""
    with suppress(TimeoutError):
        await asyncio.wait_for(stopping.wait(), seconds)


def _failure(events: Iterable[Event]) -> str:
    return next((str(event["error"].get("code")) for event in events if event["type"] == "error"), "no reason")


def _error(text: str) -> str:
    return "interrupted" if "interrupted" in text else "cancelled" if "error" not in text else "an error in the stream"
