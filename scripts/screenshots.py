"""Take the pictures of docs/web.md: `python -m scripts.screenshots`, with Debian's chromium installed."""

import asyncio
import io
import tempfile
from pathlib import Path

from PIL import Image
from playwright.async_api import expect

from task.llm.scripted import says, wants
from tests.support.browser import NARROW, WIDE
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


async def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    await _journey("desk", WIDE, dark=False)
    await _journey("desk-dark", WIDE, dark=True)
    await _journey("phone", NARROW, dark=False)


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


async def _take(p: Person, name: str) -> None:
    await p.page.wait_for_load_state("networkidle")
    taken = Image.open(io.BytesIO(await p.page.screenshot())).convert("RGB")
    path = FOLDER / f"{name}.png"
    taken.quantize(128).save(path, optimize=True)
    if path.stat().st_size > MOST_BYTES:
        raise SystemExit(f"{path.name} is larger than {MOST_BYTES:,} bytes")


if __name__ == "__main__":
    asyncio.run(main())
