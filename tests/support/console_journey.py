"""One conversation at the console, with everything a person meets there; pictures of it are in docs/console.md."""

import asyncio
import re
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from task.llm.scripted import says, wants
from tests.support.console import OWNER, Exchange, Person, console, openai
from tests.support.note_product import TOOL
from tests.support.terminal import KEYS, SECONDS, Terminal
from tests.support.upstream import Item, Upstream, hanging, openai_upstream

DRAWN_SECONDS = 2.0
REPORT = "Date,Category,Sales\n2025-10-01,A,1200\n2025-10-05,A,1700\n2025-10-05,B,1200\n"
CRITIC = "You are a critic: doubt every figure."
CONTEXT = "## Personas\npersona_critic: @critic.md\n"
CHARTS = '''
import json

from task.conversation.messages import Attachment, Message, Role


@tool(effects={Effect.READ})
def draw_chart(title: str) -> Message:
    """Draw the sales as a chart."""
    figure = {"data": [{"type": "bar", "x": ["A", "B"], "y": [2900, 1200]}], "layout": {"title": {"text": title}}}
    chart = Attachment("application/vnd.plotly.v1+json", title, data=json.dumps(figure))
    return Message(Role.TOOL, "The chart is attached.", attachments=(chart,))
'''
TABLE = """\
The top sale of category A is **1700**, on 2025-10-05.

| Date | Category | Sales |
|---|---|---:|
| 2025-10-01 | A | 1200 |
| 2025-10-05 | A | 1700 |
"""
SCRIPT: tuple[Item, ...] = (
    wants("file_read", file_path="report.csv"),
    says(TABLE),
    wants("draw_chart", title="Sales"),
    says("Category A sold more than twice as much as B."),
    says("I will note the top sale.") & wants("write_note", text="top sale: 1700"),
    says("Noted."),
    wants("write_note", text="it rains"),
    says("Then I leave it out."),
    says("Three rows are thin evidence."),
    hanging(says("The report begins ", "and never ends"), chunks=2),
    says("The report is short: sell more of A."),
)


@dataclass
class Journey:
    """What was seen on the way: `pictures` by title, and the exchanges. `expected` are pictures to wait for."""

    upstream: Upstream
    folder: Path
    expected: Mapping[str, str] | None
    pictures: dict[str, str] = field(default_factory=dict[str, str])
    exchanges: list[Exchange] = field(default_factory=list[Exchange])

    async def first_half(self, person: Person) -> None:
        """Files, a chart, an approval, a denial and a persona, until an answer is cut short."""
        await self._asks(person, "What is the top sale for category A? @report.csv", "1700")
        await self._take(person.window, "A question about a file", "> What is the top sale")
        await self._asks(person, "Draw it.", "twice as much as B.")
        await self._take(person.window, "A chart, saved as a file", "> Draw it.")
        await self._asks(person, "Note the top sale.", "I will note the top sale.")
        [asked] = await person.open_questions()
        await person.sees_the_question(asked.code)
        await self._take(person.window, "A call that needs permission", "> Note the top sale.")
        self.exchanges.append(await person.decide(("approve", "")))
        await person.window.wait_for("Noted.")
        await self._asks(person, "And that it rains.", "it rains")
        self.exchanges.append(await person.decide(("deny", "it is sunny")))
        await person.window.wait_for("Then I leave it out.")
        await self._take(person.window, "One call allowed, another denied", "✓ Allowed this once")
        await person.window.send(f"{KEYS['enter']}   {KEYS['enter']}")
        await person.type("/persona critic", until="critic", times=2)
        await self._asks(person, "What do you think?", "Three rows are thin evidence.")
        await person.window.send("Write a report." + KEYS["enter"])
        await person.window.wait_for("The report begins")
        store = await person.opened()
        [running] = [run for run in (await store.runs.list(OWNER)).items if not run.over]
        async with asyncio.timeout(SECONDS):  # what the store has of the answer outlives the console
            async for event in store.runs.events_after(OWNER, running.run_id):
                if event.type == "text":
                    return

    async def second_half(self, person: Person) -> None:
        """The conversation goes on after the first console was killed."""
        await self._asks(person, "Go on.", "sell more of A.")
        await self._take(person.window, "Continued in a narrow terminal after kill -9", "> What do you think?")
        await person.type("/quit", until="Goodbye")

    async def _asks(self, person: Person, text: str, until: str) -> None:
        self.exchanges.append(await person.say(text))
        await person.window.wait_for(until)

    async def _take(self, window: Terminal, title: str, start: str) -> None:
        def picture() -> str:
            return normalised(_from(start, window.text()), self.folder)

        if self.expected is None:
            await asyncio.sleep(DRAWN_SECONDS)
        else:
            expected = self.expected.get(title)
            await window.wait_until(lambda: picture() == expected, f"{title}: {expected}")
        self.pictures[title] = picture()


def _from(start: str, text: str) -> str:
    """What is drawn from the last line on that starts so, without the empty input line and the status below it."""
    above = text.rpartition("\n")[0].rstrip()
    shown = above[above.rindex(start) :] if start in above else above
    return "\n".join(line.rstrip() for line in shown.removesuffix("\n>").rstrip().splitlines())


def normalised(text: str, folder: Path) -> str:
    """The same without what differs between machines and moments."""
    place = "\n?".join(map(re.escape, str(folder)))  # a long one is wrapped
    text = re.sub(rf"{place}(?:\n?[^\n ])*", lambda found: "~" + found[0].replace("\n", "")[len(str(folder)) :], text)
    for pattern, constant in (
        (r"sess_[0-9a-f]{8}", "sess_1a2b3c4d"),
        (r"\b[a-z]\d[a-z]\d\b", "k7f3"),
        (r"\b\d+(?:\.\d+)? s\b", "0.1 s"),
        (r"\(\d+ min\)", "(10 min)"),
    ):
        text = re.sub(pattern, constant, text)
    return text


@asynccontextmanager
async def journey(folder: Path, expected: Mapping[str, str] | None = None) -> AsyncGenerator[Journey]:
    """The whole conversation; without `expected` pictures they are taken after a pause."""
    work = folder / "work"
    work.mkdir(parents=True)
    (work / "report.csv").write_text(REPORT)
    for name, text in (("tools.py", TOOL + CHARTS), ("critic.md", CRITIC), ("FRAMEWORK_CONTEXT.md", CONTEXT)):
        (folder / name).write_text(text)
    async with openai_upstream(*SCRIPT) as upstream:
        variables: dict[str, Any] = {
            "AGENT_TOOL_PATHS": str(folder / "tools.py"),
            "AGENT_CONTEXT__DEFINITION_PATH": str(folder / "FRAMEWORK_CONTEXT.md"),
            **openai(upstream.url),
        }
        seen = Journey(upstream, folder, expected)
        async with console(folder, columns=84, rows=44, **variables) as person:
            await seen.first_half(person)
            await person.window.kill()
        resuming = ("--resume", person.session_id)
        async with console(folder, *resuming, ready="interrupted", columns=60, **variables) as again:
            earlier = (await (await again.opened()).runs.list(OWNER)).items
            again.seen |= {run.run_id for run in earlier}
            await seen.second_half(again)
        yield seen
