"""One conversation at the console, with everything a person meets there; pictures of it are in docs/console.md."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from task.llm.scripted import says, wants
from task.store.records import Run
from tests.support.console import OWNER, Exchange, Open, Person, W, console_in, openai
from tests.support.note_product import TOOL
from tests.support.terminal import KEYS, Window
from tests.support.upstream import Item, Upstream, hanging, openai_upstream

COLUMNS, ROWS = 84, 44
REPORT = "Date,Category,Sales\n2025-10-01,A,1200\n2025-10-05,A,1700\n2025-10-05,B,1200\n"
CRITIC = "You are a critic: doubt every figure."
CONTEXT = "## Personas\npersona_critic: @critic.md\n"
CHARTS = '''
import json

from task.conversation.messages import Attachment, CustomContent, Message, Role


@tool(effects={Effect.READ})
def draw_chart(title: str) -> Message:
    """Draw the sales as a chart."""
    figure = {"data": [{"type": "bar", "x": ["A", "B"], "y": [2900, 1200]}], "layout": {"title": {"text": title}}}
    chart = Attachment("application/vnd.plotly.v1+json", title, data=json.dumps(figure))
    return Message(Role.TOOL, "The chart is attached.", custom_content=CustomContent((chart,)))
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
    wants("draw_chart", title="Sales by category"),
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
    """What was seen on the way: `pictures` by title, and the exchanges."""

    upstream: Upstream
    folder: Path
    pictures: dict[str, str] = field(default_factory=dict[str, str])
    exchanges: list[Exchange] = field(default_factory=list[Exchange])

    async def first_half(self, person: Person[Any]) -> None:
        """Files, a chart, an approval, a denial and a persona, until an answer is cut short."""
        await self._asks(person, "What is the top sale for category A? @report.csv", "1700")
        self._take(person.window, "A question about a file")
        await self._asks(person, "Draw it.", "twice as much as B.")
        self._take(person.window, "A chart, saved as a file")
        await self._asks(person, "Note the top sale.", "I will note the top sale.")
        [asked] = await person.open_questions()
        await person.window.wait_for(asked.code)
        self._take(person.window, "A question about a call that writes")
        self.exchanges.append(await person.decide(("approve", "")))
        await person.window.wait_for("Noted.")
        await self._asks(person, "And that it rains.", "it rains")
        self.exchanges.append(await person.decide(("deny", "it is sunny")))
        await person.window.wait_for("Then I leave it out.")
        self._take(person.window, "The answers")
        await person.type("/persona critic", until="critic", times=2)
        await self._asks(person, "What do you think?", "Three rows are thin evidence.")
        await person.window.send("Write a report." + KEYS["enter"])
        await person.window.wait_for("The report begins")

    async def second_half(self, person: Person[Any]) -> None:
        """The conversation goes on after the first console was killed."""
        self._take(person.window, "The conversation in another console, after the first was killed")
        await self._asks(person, "Go on.", "sell more of A.")
        await person.type("/quit", until="Goodbye")

    async def _asks(self, person: Person[Any], text: str, until: str) -> None:
        self.exchanges.append(await person.say(text))
        await person.window.wait_for(until)

    def _take(self, window: Window, title: str) -> None:
        self.pictures[title] = normalised(window.text(), self.folder)


def normalised(text: str, folder: Path) -> str:
    """What is drawn, without what differs between machines and moments."""
    for pattern, constant in (
        (re.escape(str(folder)), "~"),
        (r"sess_[0-9a-f]{8}", "sess_1a2b3c4d"),
        (r"\b[a-z]\d[a-z]\d\b", "k7f3"),
        (r"\b\d+(?:\.\d+)? ?s\b", "0.1 s"),
    ):
        text = re.sub(pattern, constant, text)
    return text


@asynccontextmanager
async def journey(opened_window: Open[W], folder: Path) -> AsyncGenerator[Journey]:
    """The whole conversation in a terminal of this kind."""
    work = folder / "work"
    work.mkdir(parents=True)
    (work / "report.csv").write_text(REPORT)
    for name, text in (("tools.py", TOOL + CHARTS), ("critic.md", CRITIC), ("FRAMEWORK_CONTEXT.md", CONTEXT)):
        (folder / name).write_text(text)
    async with openai_upstream(*SCRIPT) as upstream:
        variables = {
            "AGENT_TOOL_PATHS": str(folder / "tools.py"),
            "AGENT_CONTEXT__DEFINITION_PATH": str(folder / "FRAMEWORK_CONTEXT.md"),
            **openai(upstream.url),
        }
        options: dict[str, Any] = {"columns": COLUMNS, "rows": ROWS, **variables}
        seen = Journey(upstream, folder)
        async with console_in(opened_window, folder, **options) as person:
            await seen.first_half(person)
            await person.window.kill()
        resuming = ("--resume", person.session_id)
        async with console_in(opened_window, folder, *resuming, ready="interrupted", **options) as again:
            again.seen |= person.seen | {run.run_id for run in await unfinished(again)}
            await seen.second_half(again)
        yield seen


async def unfinished(person: Person[Any]) -> list[Run]:
    """The runs whose console was killed."""
    store = await person.opened()
    return [run for run in (await store.runs.list(OWNER)).items if run.status == "interrupted"]
