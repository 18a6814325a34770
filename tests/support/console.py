"""The console as people use it: `dial-agent chat` in a terminal, and what the store keeps of the conversation.

async with openai_upstream(*script) as upstream, console(tmp_path, **openai(upstream.url)) as person:
    exchange = await person.say("Note that it rains.")      until the turn is over or asks something
    exchange.waits                                          ["write_note"]
    exchange = await person.decide(("approve", ""))         one decision for each open question
    exchange.answer, exchange.calls                         what the continued turn said and called
    await person.type("/help", until="/quit")               a command
    person.window                                           the terminal: tests.support.terminal
"""

import asyncio
import json
import sys
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from task.conversation.messages import Message
from task.runs.request import RunState, state_of
from task.store.records import Approval, Run
from task.store.store import Store
from tests.support.ollama import MODEL
from tests.support.stores import opened
from tests.support.terminal import KEYS, SECONDS, Terminal, terminal
from tests.support.up import environment

QUESTION = "[y/n/a/e]"
PATIENCE = {"AGENT_TEPS__CONFIRMATION_SECONDS": "600"}
OWNER = "local"  # as on the web page of a machine's own user
Decision = tuple[str, str]  # approve, deny or always; and the reason of a denial


def openai(url: str) -> dict[str, Any]:
    """The environment of a console whose model is OpenAI's, at this address."""
    return {"AGENT_BACKEND": "openai", "OPENAI_BASE_URL": url, "OPENAI_API_KEY": "sk-test", "DEPLOYMENT_NAME": MODEL}


@dataclass(frozen=True, slots=True)
class Exchange:
    """What followed a message, or the decisions on its questions: a run with its answer, calls and open questions."""

    run: Run
    state: RunState
    calls: list[dict[str, Any]]
    approvals: tuple[Approval, ...]

    @property
    def answer(self) -> str:
        return self.state.written

    @property
    def waits(self) -> list[str]:
        """The tools of the calls that wait for a decision."""
        return [item.tool for item in self.approvals]


@dataclass
class Person:
    """Somebody at the terminal. `session_id` is the conversation of the last exchange."""

    window: Terminal
    folder: Path
    stack: AsyncExitStack
    session_id: str = ""
    store: Store | None = None
    seen: set[str] = field(default_factory=set[str])

    async def say(self, text: str) -> Exchange:
        await self.window.send(text + KEYS["enter"])
        return await self.exchange()

    async def type(self, text: str, *, until: str, times: int = 1) -> None:
        """Type a line; returns once something is shown."""
        await self.window.send(text + KEYS["enter"])
        await self.window.wait_for(until, times)

    async def decide(self, *decisions: Decision) -> Exchange:
        """Answer the open questions in their order; the exchange that follows."""
        for decision, asked in zip(decisions, await self.open_questions(), strict=True):
            await self.sees_the_question(asked.code)
            word, reason = decision
            await self.window.send(f"{word} {reason}".strip() + KEYS["enter"])
        return await self.exchange()

    async def sees_the_question(self, code: str) -> None:
        """Wait for the card of a question, and for the line below it that takes the answer."""

        def asked() -> bool:
            _, found, below = self.window.text().rpartition(code)
            return bool(found) and QUESTION in below

        await self.window.wait_until(asked, f"the question {code}")

    async def exchange(self) -> Exchange:
        """The next run, once it is over."""
        run = await self._next_run()
        self.seen.add(run.run_id)
        store = await self.opened()
        state = state_of(run, [event async for event in store.runs.events_after(OWNER, run.run_id)])
        assert state is not None, "the run has no events"
        self.session_id = state.run.session_id or ""
        messages = (await store.sessions.get(OWNER, self.session_id)).messages
        approvals = await store.approvals.list(OWNER, run_id=run.run_id)
        made = [call.function for message in messages[state.start : state.end] for call in message.tool_calls]
        calls = [{"tool": each.name, "arguments": json.loads(each.arguments)} for each in made]
        return Exchange(run, state, calls, approvals)

    async def open_questions(self) -> tuple[Approval, ...]:
        return await (await self.opened()).approvals.list(OWNER, session_id=self.session_id)

    async def messages(self) -> tuple[Message, ...]:
        """The conversation as the store has it."""
        return (await (await self.opened()).sessions.get(OWNER, self.session_id)).messages

    async def opened(self) -> Store:
        """The console's own store, as another process sees it."""
        if self.store is None:
            path = self.folder / "data" / "store.db"
            await self.window.wait_until(path.exists, f"a file {path}")
            self.store = await self.stack.enter_async_context(opened(f"sqlite:///{path}", chores=False))
        return self.store

    async def _next_run(self) -> Run:
        store, found = await self.opened(), None
        try:
            async with asyncio.timeout(SECONDS):
                while found is None or not found.over:
                    runs = (await store.runs.list(OWNER)).items
                    found = next((run for run in reversed(runs) if run.run_id not in self.seen), None)
                    await asyncio.sleep(0.05)
        except TimeoutError:
            raise AssertionError(f"No turn has ended. The terminal shows:\n{self.window.text()}") from None
        return found


@asynccontextmanager
async def console(
    folder: Path,
    *options: str | Path,
    columns: int = 100,
    rows: int = 40,
    config: Mapping[str, Any] | None = None,
    ready: str = "/help",
    **environ: str,
) -> AsyncGenerator[Person]:
    """`dial-agent chat` in `folder/work`, its data in `folder/data`, once it shows `ready`.

    `config` is written as its configuration file.
    """
    home, work = folder / "home", folder / "work"
    for each in (home, work):
        each.mkdir(parents=True, exist_ok=True)
    if config is not None:
        path = folder / "config.yaml"
        path.write_text(json.dumps(config))
        options = ("--config", path, *options)
    variables = environment(home, **{"AGENT_DATA_DIR": str(folder / "data"), **PATIENCE, **environ})
    command = [sys.executable, "-m", "task", "chat", *options]
    async with AsyncExitStack() as stack, terminal(command, variables, work, columns=columns, rows=rows) as window:
        person = Person(window, folder, stack)
        await window.wait_for(ready)
        await window.wait_until(lambda: window.text().rpartition("\n")[2].startswith(MODEL), "the line of status")
        yield person
