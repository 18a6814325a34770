"""Take the pictures of README and docs: `python -m scripts.screenshots`, with Debian's chromium."""

import asyncio
import io
import tempfile
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.async_api import expect

from task.llm.demo import SAMPLES
from task.llm.scripted import says, wants
from tests.support.browser import NARROW, Visit, visit
from tests.support.editor_host import Editing, editing
from tests.support.up import running_product
from tests.support.upstream import openai_upstream
from tests.support.web import Person, person

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "images"
MOST_BYTES = 150_000
VAT = """At **18.7 %** the tax on €4,350 is **€813.45**; at 21 % it is €100.05 more.

| Rate | Tax | Total |
|---|---:|---:|
| 18.7 % | €813.45 | €5,163.45 |
| 21.0 % | €913.50 | €5,263.50 |

```python
def total(amount: float, rate: float) -> float:
    return amount * (1 + rate / 100)
```
"""
ITEMS = (
    wants("calculator", expression="4350 * 18.7 / 100") & wants("calculator", expression="4350 * 21 / 100"),
    says(VAT),
    wants("show_things", what="the largest cities"),
    says("Tokyo is the largest city of the world [1], with 37 million people; Delhi follows with 33 million."),
    wants("write_note", text="Send the invoice with 21 % VAT"),
)
RELEASES: dict[str, Any] = {
    "instructions": "You manage our releases. Read the changelog first, and name version and date of each change.",
    "model": "test-model",
    "tools": ["jira", "research"],
    "builtin": ["file_content_extraction_tool", "rag_search_tool", "calculator"],
    "context": ["files/public/handbook/", "files/public/releases/"],
    "starters": [{"title": "What changed?", "text": "What changed in the last release?"}],
    "permission_mode": "ask",
}


async def take(folder: Path) -> None:
    """All pictures, as PNG files in the folder."""
    await _first_impression(folder)
    await _journey(folder)
    await _editor(folder)


async def _first_impression(folder: Path) -> None:
    chart = SAMPLES[-1]
    answer, _, _ = chart.words.partition(" The chart was drawn")
    with tempfile.TemporaryDirectory() as home:
        async with (
            openai_upstream(wants(chart.tool, **chart.arguments), says(answer)) as upstream,
            running_product(Path(home), OPENAI_BASE_URL=upstream.url, AGENT_HTTP__TITLES="off") as product,
            visit(product.ready["agent"], (1000, 960)) as visited,
        ):
            await visited.page.get_by_role("button", name=chart.title).click()
            await visited.page.locator(".composer .chip:not(.loading)").wait_for()
            await visited.page.get_by_role("button", name="Send", exact=True).click()
            await visited.page.locator(".chart .main-svg").first.wait_for()
            await expect(visited.page.locator("article.answer")).to_contain_text("94 %")
            await visited.page.evaluate("document.activeElement.blur()")
            await _take(visited, folder / "readme.png")


async def _journey(folder: Path) -> None:
    with tempfile.TemporaryDirectory() as home:
        async with person(*ITEMS, then=says("Noted."), tmp_path=Path(home)) as p:
            await p.asks("What is 18.7 % of 4,350, and how does that change at 21 %?")
            await p.page.evaluate("document.activeElement.blur()")
            await _take(p, folder / "answer.png")
            await p.asks("Which cities are the largest?")
            await p.page.locator(".chart .main-svg").first.wait_for()
            await _take(p, folder / "chart.png")
            await p.says("Make a note for the invoice")
            await expect(p.button("Approve")).to_be_enabled()  # not in its first second
            await _take(p, folder / "approval.png")
            await p.page.goto(f"{p.url}/#/traces")
            await p.page.locator(".traces-list a").last.click()
            await p.page.locator(".step.call").first.click()
            await _take(p, folder / "trace.png")
            for question in ("Plan three days in Kyiv", "Which invoices are open?", "Compare the two insurance offers"):
                await p.starts_a_new_conversation()
                await p.asks(question)
            await p.button("Actions for Which invoices are open?").focus()
            await p.page.keyboard.press("Enter")
            await p.page.get_by_role("menuitem", name="Pin").click()
            await expect(p.page.get_by_role("heading", name="Pinned")).to_be_visible()
            await p.button("Actions for Plan three days in Kyiv").focus()
            await p.page.keyboard.press("Enter")
            await _take(p, folder / "list.png")


async def _editor(folder: Path) -> None:
    for name, size, theme in (("editor", (1000, 1330), "light"), ("editor-refused", (NARROW[0], 640), "dark")):
        with tempfile.TemporaryDirectory() as home:
            async with editing(Path(home), RELEASES, size, theme=theme) as e:
                await e.signs_in()
                if name == "editor-refused":
                    await e.frame.get_by_label("Steps of an answer").fill("0")
                    await e.saves()
                    await e.got("SAVE_ERROR")
                await _take(e, folder / f"{name}.png")


async def _take(p: Person | Editing | Visit, path: Path) -> None:
    await p.page.wait_for_load_state("networkidle")
    pixels, file = Image.open(io.BytesIO(await p.page.screenshot())), io.BytesIO()
    pixels.convert("RGB").quantize(128).save(file, "PNG", optimize=True)
    if file.tell() > MOST_BYTES:
        raise SystemExit(f"{path.name} is larger than {MOST_BYTES:,} bytes")
    await asyncio.to_thread(path.write_bytes, file.getvalue())


if __name__ == "__main__":
    asyncio.run(take(FOLDER))
