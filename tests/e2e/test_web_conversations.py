"""The list of conversations in a real browser: found, pinned, renamed, exported and deleted."""

from __future__ import annotations

import asyncio
from pathlib import Path

from playwright.async_api import Locator, Route, expect

from task.llm.scripted import says
from tests.support.web import PAGE_MARKS, Person, person

pytestmark = PAGE_MARKS

QUESTIONS = ("How do I index a database?", "Plan a trip to Kyiv", "Wie heißt die Straße?")


async def chooses(p: Person, menu: str, entry: str) -> None:
    await p.button(menu).focus()
    await p.page.keyboard.press("Enter")
    await p.page.get_by_role("menuitem", name=entry, exact=True).click()


def links(p: Person) -> Locator:
    return p.page.locator(".conversation a")


async def test_a_conversation_that_opens_late_does_not_stand_for_the_one_that_is_shown(tmp_path: Path) -> None:
    async with person(then=says("Yes."), tmp_path=tmp_path) as p:
        for question in QUESTIONS[:2]:
            await p.starts_a_new_conversation()
            await p.asks(question)
        await p.starts_a_new_conversation()
        late, shown = links(p).filter(has_text=QUESTIONS[0]), links(p).filter(has_text=QUESTIONS[1])
        may_come = asyncio.Event()

        async def held(route: Route) -> None:
            await may_come.wait()
            await route.continue_()

        address = f"**/session/{await late.get_attribute('data-session')}/messages"
        await p.page.route(address, held)
        async with p.page.expect_response(address) as response:
            await late.click()
            await shown.click()
            await expect(p.page.locator(".question")).to_contain_text(QUESTIONS[1])
            await expect(p.field).to_be_focused()
            may_come.set()
        await (await response.value).finished()
        async with p.page.expect_download() as download:
            await chooses(p, "Actions for this conversation", "Export as Markdown")
        assert QUESTIONS[1] in (await (await download.value).path()).read_text("utf-8")
        await expect(shown).to_have_attribute("aria-current", "page")


async def test_conversations_are_found_pinned_renamed_exported_and_deleted(
    tmp_path: Path, size: tuple[int, int]
) -> None:
    async with person(then=says("The **answer**."), tmp_path=tmp_path, size=size) as p:
        for question in QUESTIONS:
            await p.starts_a_new_conversation()
            await p.asks(question)
        await p.page.request.post(f"{p.url}/v1/responses", data={"input": "A program asks"})
        await p.page.reload()
        await p.opens_the_list()
        await expect(links(p)).to_have_text([*reversed(QUESTIONS)])

        await p.page.keyboard.press("Control+k")
        await p.page.keyboard.type("STRASSE")
        await expect(links(p)).to_have_count(1)
        await expect(links(p).locator("mark")).to_have_count(0)  # the words differ from what is written
        await p.page.keyboard.press("Control+k")
        await p.page.keyboard.type("datab")
        await expect(links(p).locator("mark")).to_have_text("datab")
        await p.page.keyboard.press("ArrowDown")
        await expect(links(p).first).to_be_focused()
        await p.page.keyboard.press("Enter")
        await expect(p.page.get_by_role("heading", level=1)).to_have_text(QUESTIONS[0])
        await p.opens_the_list()
        await p.page.keyboard.press("Control+k")
        await p.page.keyboard.press("Escape")
        await expect(links(p)).to_have_count(3)

        await chooses(p, f"Actions for {QUESTIONS[0]}", "Pin")
        await expect(p.page.get_by_role("heading", name="Pinned")).to_be_visible()
        await expect(links(p).first).to_have_text(QUESTIONS[0])
        await chooses(p, f"Actions for {QUESTIONS[1]}", "Rename")
        await p.page.get_by_label("Title").fill("Kyiv")
        await p.button("Save").click()
        await expect(p.page.get_by_role("link", name="Kyiv")).to_be_focused()
        async with p.page.expect_download() as download:
            await chooses(p, "Actions for Kyiv", "Export as Markdown")
        assert "# Kyiv" in (await (await download.value).path()).read_text()

        await chooses(p, "All conversations", "From programs")
        await expect(links(p)).to_have_text(["A program asks"])
        await p.button("Back to yours").click()
        await chooses(p, "All conversations", "Select…")
        await p.page.get_by_role("checkbox").nth(1).check()
        await expect(p.page.get_by_text("1 selected")).to_be_visible()
        await p.button("Cancel").click()
        await expect(links(p)).to_have_count(3)
        await chooses(p, "All conversations", "Delete all…")
        await expect(p.page.get_by_role("heading", name="Delete 3 conversations?")).to_be_visible()
        await p.button("Delete").click()
        await expect(p.page.get_by_text("Your conversations will be listed here.")).to_be_visible()
        await expect(p.page.get_by_role("heading", name="What can I do for you?")).to_be_attached()
