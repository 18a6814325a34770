"""A whole journey by keyboard alone: asking, deciding, a table, the help, the list of conversations, a trace."""

from __future__ import annotations

from pathlib import Path

from playwright.async_api import Locator, expect

from task.llm.scripted import Reply, says, wants
from tests.support.note_product import notes, noting_model
from tests.support.upstream import Received
from tests.support.web import PAGE_MARKS, Person, person

pytestmark = PAGE_MARKS
SHOWN = sum("15" in str(number) for number in range(1, 151))


def _model(received: Received) -> Reply:
    last = received.messages[-1]
    if last["role"] == "user" and "table" in str(last["content"]):
        return wants("make_table", rows=150)
    return says("Made.") if "150 rows" in str(last["content"]) else noting_model(received)


async def test_a_whole_journey_needs_no_pointer(tmp_path: Path) -> None:
    async with person(then=_model, tmp_path=tmp_path) as p:
        keys = p.page.keyboard
        await keys.type("Note both")
        await keys.press("Enter")
        await expect(p.button("Approve")).to_have_count(2)
        await expect(p.button("Approve").last).to_be_enabled()
        await tabs_to(p, p.button("Approve").last, back=True)
        await keys.press("Enter")
        await expect(p.page.locator(".approval").last).to_contain_text("Approved – write_note")
        await tabs_to(p, p.button("Edit arguments"), back=True)
        await keys.press("Enter")
        await keys.press("Control+a")
        await keys.type('{"text": "typed"}')
        await tabs_to(p, p.button("Approve with these arguments"))
        await keys.press("Enter")
        await p.sees("Result:")
        await p.sees_the_end()

        await keys.press("/")
        await keys.type("A table")
        await keys.press("Enter")
        await p.sees("Made.")
        await p.sees_the_end()
        await tabs_to(p, p.cards.last.locator("summary"), back=True)
        await keys.press("Enter")
        table = p.page.get_by_role("region", name="Table towns.csv").last
        await tabs_to(p, p.page.get_by_label("Filter rows").last)
        await keys.type("no. 15")
        await expect(p.page.locator(".sheet-count").last).to_have_text(f"{SHOWN} of 150 rows")
        await tabs_to(p, table.get_by_role("button", name="people"))
        await keys.press("Enter")
        await keys.press("Enter")
        await expect(table.locator("tbody tr").first).to_contain_text("Town, no. 150")

        first = await p.is_in_a_conversation()
        await keys.press("Alt+n")
        await expect(p.field).to_be_focused()
        await keys.type("A table")
        await keys.press("Enter")
        await p.sees("Made.")
        assert await p.is_in_a_conversation() != first
        await keys.press("Alt+ArrowDown")
        await expect(p.page.locator(".question").first).to_contain_text("Note both")
        await tabs_to(p, p.button("Help and language"), back=True)
        await keys.press("Enter")
        await expect(p.page.get_by_role("dialog")).to_contain_text("write a message")
        await keys.press("Escape")
        await expect(p.button("Help and language")).to_be_focused()
        await tabs_to(p, p.page.get_by_role("link", name="Traces"), back=True)
        await keys.press("Enter")
        trace = p.page.locator(".traces-list a").first
        await expect(trace).to_be_visible()
        await tabs_to(p, trace)
        await keys.press("Enter")
        await tabs_to(p, p.page.locator("button.step").first)
        await keys.press("Enter")
        await expect(p.page.locator(".payload").filter(visible=True).first).to_be_visible()
    assert sorted(notes(tmp_path)) == ["2", "typed"]


async def tabs_to(p: Person, place: Locator, *, back: bool = False) -> None:
    """Press Tab until that element has the focus."""
    await expect(place).to_be_visible()
    for _ in range(80):
        if await place.evaluate("element => element === document.activeElement"):
            return
        await p.page.keyboard.press("Shift+Tab" if back else "Tab")
    raise AssertionError(f"{place} cannot be reached by the keyboard")
