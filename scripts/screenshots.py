"""Take the pictures of README and docs: `python -m scripts.screenshots`, with Debian's chromium."""

import asyncio
import io
import tempfile
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.async_api import expect

from task.llm.scripted import says, wants
from tests.support.browser import NARROW
from tests.support.document_turns import reads_the_file
from tests.support.editor_host import Editing, editing
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


SALES = "region,2025,2026\nNorth,412,455\nEast,390,371\nSouth,288,402\nWest,351,360\n"
CHART = '''
import json

from task.conversation.messages import Attachment, Message, Role
from task.tools.declare import tool
from task.tools.models import Effect


@tool(effects={Effect.READ})
def draw_chart(title: str, names: list[str], values: list[float]) -> Message:
    """Draw a bar chart."""
    figure = {"data": [{"type": "bar", "x": names, "y": values}], "layout": {"title": {"text": title}, "height": 300}}
    chart = Attachment("application/vnd.plotly.v1+json", title, data=json.dumps(figure))
    return Message(Role.TOOL, "The chart is attached.", attachments=(chart,))
'''
GROWTH = {"title": "Growth in 2026, per cent", "names": ["North", "East", "South", "West"]}


async def take(folder: Path) -> None:
    """All pictures, as PNG files in the folder."""
    await _first_impression(folder)
    await _journey(folder)
    await _editor(folder)


async def _first_impression(folder: Path) -> None:
    items = (
        reads_the_file,
        wants("draw_chart", **GROWTH, values=[10.4, -4.9, 39.6, 2.6]),
        says("**South** grew most, by 39.6 % to 402. Only East shrank, by 4.9 %."),
    )
    with tempfile.TemporaryDirectory() as home:
        (tools := Path(home, "charts.py")).write_text(CHART)
        async with person(*items, tmp_path=Path(home), size=(1000, 880), tool_paths=[str(tools)]) as p:
            sales = {"name": "sales.csv", "mimeType": "text/csv", "buffer": SALES.encode()}
            await p.page.locator("input[type=file]").first.set_input_files([sales])  # type: ignore[list-item]
            await p.asks("Which region grew most in 2026? Draw it.")
            await p.page.locator(".chart .main-svg").first.wait_for()
            await p.page.evaluate("document.activeElement.blur()")
            await _take(p, folder / "readme.png")


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


async def _take(p: Person | Editing, path: Path) -> None:
    await p.page.wait_for_load_state("networkidle")
    pixels, file = Image.open(io.BytesIO(await p.page.screenshot())), io.BytesIO()
    pixels.convert("RGB").quantize(128).save(file, "PNG", optimize=True)
    if file.tell() > MOST_BYTES:
        raise SystemExit(f"{path.name} is larger than {MOST_BYTES:,} bytes")
    await asyncio.to_thread(path.write_bytes, file.getvalue())


if __name__ == "__main__":
    asyncio.run(take(FOLDER))
