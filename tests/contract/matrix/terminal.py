"""The console of the matrix: `dial-agent chat` in a terminal, with a person who types."""

import json
import sys
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from tests.contract.matrix.doors import calls_and_results, last_turn
from tests.contract.matrix.projection import Outcome, is_decision
from tests.support.console import Decision, Exchange, Person
from tests.support.core import RunningCore
from tests.support.terminal import KEYS, terminal
from tests.support.up import environment

CLEARED, REFUSED = "Conversation history cleared.", "/clear waits until the answer is complete"


@dataclass
class Console:
    """The running console. It works in the user's home, where it offers no tools of the folder.

    `waits` is the code of the card that is open; the numbers say how often something has been shown.
    """

    person: Person
    home: Path
    waits: str = ""
    left: int = 0
    cleared: int = -1
    refused: int = 0

    async def leave(self) -> None:
        """Leave an open card without an answer."""
        if self.waits:
            await self.person.sees_the_question(self.waits)
            self.waits, self.left = "", self.left + 1
            await self.person.window.send(KEYS["ctrl-c"])
            await self.person.window.wait_for("The question stays open", self.left)

    async def clear(self) -> None:
        """Start a new conversation."""
        await self.leave()
        window, self.person.session_id = self.person.window, ""
        self.cleared += 1
        while not window.shows(CLEARED, self.cleared):  # it is refused while the last answer is still being drawn
            await window.send("/clear" + KEYS["enter"])
            await window.wait_until(
                lambda: window.shows(CLEARED, self.cleared) or window.shows(REFUSED, self.refused + 1), CLEARED
            )
            self.refused += window.shows(REFUSED, self.refused + 1)


@asynccontextmanager
async def console_process(home: Path, variables: Mapping[str, str]) -> AsyncGenerator[Console]:
    home.mkdir()
    environ = environment(home, AGENT_DATA_DIR=str(home / "data"), **variables)
    command = [sys.executable, "-m", "task", "chat"]
    async with AsyncExitStack() as stack, terminal(command, environ, home, columns=100, rows=40) as window:
        await window.wait_for("/help")
        yield Console(Person(window, home, stack), home)


class ConsoleDoor:
    """One conversation at a running console."""

    def __init__(self, console: Console, core: RunningCore, session: aiohttp.ClientSession) -> None:
        self._console, self._core, self._session = console, core, session
        self._person, self._started = console.person, False

    async def attach(self, name: str, content: bytes, content_type: str) -> str:
        await self._start()
        (self._console.home / name).write_bytes(content)
        await self._person.type(f"/files {name}", until=f"Attached {name}")
        return await self._place(name)

    async def say(self, text: str) -> Outcome:
        await self._start()
        if self._console.waits and is_decision(text):
            decisions = [_decision(part) for part in text.split(", ")]
            return await self._outcome(await self._person.decide(*decisions))
        await self._console.leave()
        return await self._outcome(await self._person.say(text))

    async def _start(self) -> None:
        if not self._started:
            self._started = True
            await self._console.clear()

    async def _outcome(self, exchange: Exchange) -> Outcome:
        kept = [message.as_dict() for message in await self._person.messages()]
        calls, results = calls_and_results(last_turn(kept))
        codes = [item.code for item in exchange.approvals if item.status == "waiting"]
        self._console.waits = codes[0] if codes else ""
        failed = exchange.run.status == "failed"
        await self._person.window.wait_for(exchange.answer.rpartition("\n\n")[2])  # tools are shown between paragraphs
        return Outcome(exchange.answer, list(calls.values()), results, exchange.waits, codes, failed)

    async def _place(self, name: str) -> str:
        headers = {"Api-Key": self._core.api_key}
        async with self._session.get(f"{self._core.url}/v1/bucket", headers=headers) as response:
            bucket = (await response.json())["bucket"]
        listing = f"{self._core.url}/v1/metadata/files/{bucket}/?recursive=true"
        async with self._session.get(listing, headers=headers) as response:
            items = json.loads(await response.text())["items"]
        return max(item["url"] for item in items if item["name"].startswith(name.partition(".")[0]))


def _decision(part: str) -> Decision:
    words, _, reason = part.partition(" because ")
    return words.split()[0], reason
