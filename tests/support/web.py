"""A person in front of the web page: the product with tools that write and show things, and their browser."""

import re
from base64 import b64encode
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Locator, expect

from tests.support.browser import WIDE, Visit, visit
from tests.support.note_product import TOOL
from tests.support.product import product
from tests.support.upstream import Item, Upstream

PAGE_MARKS = [
    pytest.mark.system,
    pytest.mark.timeout(300),
    # Playwright talks with its driver through a subprocess that ends after the test's own loop has been left.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

SHOWING = '''
import json

from task.conversation.messages import Attachment, Message, Role

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
FIGURE = {"data": [{"type": "bar", "x": ["Tokyo", "Delhi", "Shanghai"], "y": [37, 33, 29], "name": "Millions"}],
          "layout": {"title": {"text": "Largest cities"}, "yaxis": {"title": {"text": "Millions"}}}}


@tool(effects={Effect.READ})
def show_things(what: str) -> Message:
    """Show a picture, a chart and a source."""
    return Message(Role.TOOL, f"shown: {what}", attachments=(
        Attachment("image/png", "dot.png", data=PIXEL),
        Attachment("application/vnd.plotly.v1+json", "Largest cities", data=json.dumps(FIGURE)),
        Attachment("text/markdown", "[1] cities.pdf, page 3", data="Tokyo is the largest city of the world.",
                   reference_url="files/somewhere/cities.pdf"),
    ))


@tool(effects={Effect.READ})
def cite(url: str, title: str, quote: str) -> Message:
    """Cite a passage of a file."""
    cited = Attachment("text/markdown", title, data=quote, reference_url=url)
    return Message(Role.TOOL, "cited", attachments=(cited,))


@tool(effects={Effect.READ})
def make_table(rows: int) -> Message:
    """Make a table of so many rows."""
    notes = {12: "=1+1"}
    lines = [
        f'"Town, no. {row}",{row * 1000},{notes.get(row, "<img src=x onerror=harmed()>")}' for row in range(1, rows + 1)
    ]
    table = "\\n".join(["town,people,note", *lines])
    return Message(Role.TOOL, f"{rows} rows", attachments=(
        Attachment("text/csv", "towns.csv", data=table),
    ))
'''

STORED = """async ([name, type, base64]) => {
    const bytes = Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));
    return (await (await import("/static/api.js")).upload(new File([bytes], name, { type }))).url;
}"""

# Part of an answer with formulas and code.
TECHNICAL = r"""The mean is $\bar{x} = \frac{1}{n} \sum_{i=1}^{n} x_i$ and

$$\sigma^2 = \frac{1}{n} \sum_{i=1}^{n} (x_i - \bar{x})^2$$

```python
def mean(values: list[float]) -> float:
    return sum(values) / len(values)
```

"""
# Keeps the durations of the page's tasks of over 50 ms.
WATCHED = """() => {
    window.longTasks = [];
    new PerformanceObserver((list) => window.longTasks.push(...list.getEntries().map((entry) => entry.duration)))
        .observe({ type: "longtask" });
}"""


class Person:
    """Does what people do, and sees what they see."""

    def __init__(self, visited: Visit, upstream: Upstream, url: str) -> None:
        self.visit, self.page, self.upstream, self.url = visited, visited.page, upstream, url
        self.field = self.page.get_by_label("Message", exact=True)
        self.answers = self.page.locator("article.answer")
        self.cards = self.page.locator("details.card")
        self.prose = self.answers.last.locator(".parts > .prose")
        self.cited = self.prose.get_by_role("button", name="Source")

    def button(self, name: str) -> Locator:
        return self.page.get_by_role("button", name=name, exact=True)

    async def says(self, text: str) -> None:
        await self.field.fill(text)
        await self.field.press("Enter")

    async def asks(self, text: str) -> None:
        """Say it, and wait for the end of the answer."""
        await self.says(text)
        await self.sees_the_end()

    async def sees_the_end(self) -> None:
        await expect(self.answers.last).not_to_have_attribute("aria-busy", "true")
        await expect(self.button("Send")).to_be_visible()

    async def sees(self, text: str) -> None:
        await expect(self.answers.last).to_contain_text(text)

    async def stores(self, name: str, kind: str, content: bytes) -> str:
        """Store a file of theirs; its address."""
        return await self.page.evaluate(STORED, [name, kind, b64encode(content).decode()])

    async def before_and_after_a_reload(self) -> AsyncGenerator[None]:
        yield
        await self.page.reload()
        yield

    async def fits(self) -> bool:
        """Whether nothing is wider than the window."""
        return await self.page.evaluate("document.documentElement.scrollWidth <= innerWidth")

    async def finds_serious(self) -> list[str]:
        """What axe finds that keeps people from using the page."""
        found = (await Axe().run(self.page)).response["violations"]
        return [
            f"{item['id']}: {node['target']} {node['failureSummary']}"
            for item in found
            if item["impact"] in ("serious", "critical")
            for node in item["nodes"]
        ]

    async def opens_the_list(self) -> None:
        """On a phone the list of conversations is a drawer."""
        burger = self.button("Conversations")
        if await burger.is_visible():
            await burger.click()

    async def starts_a_new_conversation(self) -> None:
        await self.opens_the_list()
        await self.page.get_by_role("link", name="New conversation").click()
        await expect(self.page.get_by_role("heading", name="What can I do for you?")).to_be_visible()

    async def is_in_a_conversation(self) -> str:
        await expect(self.page).to_have_url(re.compile("#/c/"))
        return self.page.url


@asynccontextmanager
async def person(
    *items: Item,
    tmp_path: Path,
    then: Item | None = None,
    size: tuple[int, int] = WIDE,
    dark: bool = False,
    locale: str = "en-US",
    at: str = "/",
    **settings: Any,
) -> AsyncGenerator[Person]:
    """A person who has opened the page of a product whose model answers `items`."""
    (tmp_path / "showing.py").write_text(TOOL + SHOWING)
    more: dict[str, Any] = {"dial_api_key": "key-one", "tool_paths": [str(tmp_path / "showing.py")], **settings}
    async with (
        product(*items, then=then, tmp_path=tmp_path, **more) as running,
        visit(f"{running.agent_url}{at}", size, dark=dark, locale=locale) as visited,
    ):
        someone = Person(visited, running.upstream, running.agent_url)
        await expect(visited.page.get_by_role("main")).to_be_visible()
        yield someone
        assert visited.faults == []
        assert visited.asked <= {"127.0.0.1"}
