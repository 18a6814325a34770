"""Take the pictures of docs/web.md and docs/dial.md: `python -m scripts.screenshots`, with Debian's chromium."""

import asyncio
import io
import tempfile
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.async_api import expect

from task.llm.scripted import says, wants
from tests.support.browser import NARROW, WIDE
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


async def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    await _journey("desk", WIDE, dark=False)
    await _journey("desk-dark", WIDE, dark=True)
    await _journey("phone", NARROW, dark=False)
    await _editor()


async def _journey(name: str, size: tuple[int, int], *, dark: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        async with person(*ITEMS, then=says("Noted."), tmp_path=Path(folder), size=size, dark=dark) as p:
            await p.asks("What is 18.7 % of 4,350, and how does that change at 21 %?")
            await p.page.evaluate("document.activeElement.blur()")
            await _take(p, f"{name}-answer")
            await p.asks("Which cities are the largest?")
            await p.page.locator(".chart .main-svg").first.wait_for()
            await _take(p, f"{name}-chart")
            await p.says("Make a note for the invoice")
            await expect(p.button("Approve")).to_be_enabled()  # not in its first second
            await _take(p, f"{name}-approval")
            await p.page.goto(f"{p.url}/#/traces")
            await p.page.locator(".traces-list a").last.click()
            await p.page.locator(".step.call").first.click()
            await _take(p, f"{name}-trace")
            if name != "desk":
                return
            for question in ("Plan three days in Kyiv", "Which invoices are open?", "Compare the two insurance offers"):
                await p.starts_a_new_conversation()
                await p.asks(question)
            await p.button("Actions for Which invoices are open?").focus()
            await p.page.keyboard.press("Enter")
            await p.page.get_by_role("menuitem", name="Pin").click()
            await expect(p.page.get_by_role("heading", name="Pinned")).to_be_visible()
            await p.button("Actions for Plan three days in Kyiv").focus()
            await p.page.keyboard.press("Enter")
            await _take(p, "desk-list")


async def _editor() -> None:
    for name, size, theme in (("editor", (1000, 1330), "light"), ("editor-refused", (NARROW[0], 640), "dark")):
        with tempfile.TemporaryDirectory() as folder:
            async with editing(Path(folder), RELEASES, size, theme=theme) as e:
                await e.signs_in()
                if name == "editor-refused":
                    await e.frame.get_by_label("Steps of an answer").fill("0")
                    await e.saves()
                    await e.got("SAVE_ERROR")
                await _take(e, name)


async def _take(p: Person | Editing, name: str) -> None:
    await p.page.wait_for_load_state("networkidle")
    taken = Image.open(io.BytesIO(await p.page.screenshot())).convert("RGB")
    path = FOLDER / f"{name}.png"
    taken.quantize(128).save(path, optimize=True)
    if path.stat().st_size > MOST_BYTES:
        raise SystemExit(f"{path.name} is larger than {MOST_BYTES:,} bytes")


if __name__ == "__main__":
    asyncio.run(main())
