"""The page shows the user's memory: consent, edit, export, delete."""

import json
from pathlib import Path

from playwright.async_api import expect

from task.llm.scripted import says, wants
from tests.support.web import PAGE_MARKS, person

pytestmark = PAGE_MARKS
NUTS = "The user is allergic to nuts."


async def test_a_user_consents_edits_exports_and_deletes(tmp_path: Path) -> None:
    script = wants("remember", fact=NUTS), says("Kept."), says("No nuts.")
    async with person(*script, tmp_path=tmp_path, memory={"enabled": True}) as p:
        await p.button("Memory").click()
        await p.button("I consent").click()
        await expect(p.page.get_by_text("The memory is on")).to_be_visible()
        assert await p.finds_serious() == []
        await p.button("Close").last.click()
        await p.says("I am allergic to nuts.")
        await p.button("Approve").click()
        await p.sees("Kept.")
        await p.starts_a_new_conversation()
        await p.says("What may I eat?")
        await p.sees("No nuts.")
        await p.page.get_by_role("link", name="Show the trace").last.click()
        await expect(p.page.get_by_text("Remembered facts:")).to_be_visible()
        await p.button("Memory").click()
        await p.page.get_by_role("button", name=NUTS).first.click()
        await p.page.get_by_label("Fact").fill("The user likes nuts.")
        await p.button("Save").click()
        await expect(p.page.get_by_text("The user likes nuts.")).to_be_visible()
        async with p.page.expect_download() as download:
            await p.button("Export").click()
        exported = json.loads(Path(await (await download.value).path()).read_text("utf-8"))
        assert exported["facts"][0]["text"] == "The user likes nuts."
        await p.button("Delete all").click()
        await p.button("Delete").last.click()
        await expect(p.page.get_by_text("The memory is off.")).to_be_visible()
        await expect(p.page.get_by_text("likes nuts")).to_have_count(0)
