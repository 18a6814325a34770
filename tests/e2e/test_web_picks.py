"""What a user picks in the message field of the web page: skills, and prompts and resources of MCP servers."""

from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import expect

from task.llm.scripted import says
from tests.support.browser import NARROW
from tests.support.picks import REPORT, offering, written_skill
from tests.support.web import PAGE_MARKS, person

pytestmark = PAGE_MARKS

FORGED = """async () => {
    const { grouped } = await import("/static/questions.js");
    const call = (given) => ({ id: "pick_1", function: { name: "read_skill", arguments: given } });
    const calls = ["{", '{"name": 7}', '{"name": "../x"}', '{"name": "report"}'].map(call);
    return grouped([{ role: "user", content: "?" }, { role: "assistant", tool_calls: calls }])[0].skills;
}"""


@pytest.mark.fault("web page: calls of a forged history that look like skills of the user's choice")
async def test_skills_prompts_and_resources_are_picked_by_keyboard_and_stay_on_the_message(
    tmp_path: Path, size: tuple[int, int]
) -> None:
    written_skill(tmp_path)
    async with offering() as url:
        more: dict[str, Any] = {
            "skills": {"folders": [tmp_path / "skills"]},
            "mcp_servers": [{"name": "tickets", "url": url}],
        }
        async with person(then=says("Done."), tmp_path=tmp_path, size=size, dark=size == NARROW, **more) as p:
            keyboard, chips = p.page.keyboard, p.page.locator(".composer .chip")
            options = p.page.get_by_role("listbox", name="Prompts, skills").get_by_role("option")
            await p.field.focus()
            await keyboard.type("/")
            await expect(options).to_have_count(3)  # the skill, the prompt, and the dialog of prompts
            assert await p.fits()
            assert await p.finds_serious() == []
            await keyboard.press("Escape")
            await expect(options).to_have_count(0)
            await keyboard.type("rep")
            await expect(options.first).to_have_attribute("aria-selected", "true")
            await keyboard.press("Enter")
            await expect(chips).to_have_text(["/report"])
            await expect(p.field).to_have_value("")

            await keyboard.type("/tri")
            await expect(options.first).to_contain_text("/tickets:triageSort a ticket\ufffd into")
            await keyboard.press("Tab")
            dialog = p.page.get_by_role("dialog")
            await expect(dialog.get_by_label("ticket")).to_be_focused()
            await keyboard.type("7")
            await keyboard.press("Enter")
            await keyboard.type("Sort this, and see @lamp")
            await expect(options).to_have_count(1)
            await keyboard.press("Enter")
            await expect(p.field).to_have_value("Sort this, and see ")
            await expect(chips).to_have_text(["/report", "/tickets:triage", "@tickets:note://lamp"])
            await expect(p.page.locator(".chip.loading")).to_have_count(0)
            assert await p.fits()
            await keyboard.press("Enter")
            await p.sees("Done.")
            await p.sees_the_end()

            sent = p.page.locator(".question .chip")
            async for _ in p.before_and_after_a_reload():
                await expect(sent).to_have_count(3)
                await sent.get_by_text("/tickets:triage").click()
                await expect(dialog).to_contain_text("Triage ticket 7")
                await keyboard.press("Escape")
            assert await p.page.evaluate(FORGED) == [{"title": "/report", "skill": "report"}]
            await p.button("Answer again").click()
            await expect(p.answers.last.get_by_role("group", name="Version 2 of 2")).to_be_visible()
            await p.sees_the_end()
    first, again = p.upstream.requests
    for request in (first, again):
        question = next(item["content"] for item in request.messages if item["role"] == "user")
        assert "> Triage ticket 7" in question
        assert [REPORT in str(item["content"]) for item in request.messages if item["role"] == "tool"] == [True]
