"""Conversations on the web page: their list, versions, other tabs, long runs of steps, prompts and speech."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from playwright.async_api import Locator, Page, Route, expect

from task.llm.scripted import says, wants
from tests.support.core_peers import DONE, chunk, peer, streams
from tests.support.note_product import notes, noting_model
from tests.support.web import PAGE_MARKS, Person, person

pytestmark = PAGE_MARKS


async def test_versions_of_answers_and_questions_are_one_conversation(tmp_path: Path, size: tuple[int, int]) -> None:
    items = (says("First."), says("Second."), says("Third."), says("After."))
    async with person(*items, tmp_path=tmp_path, size=size) as p:
        await p.asks("Tell me")
        await p.button("Answer again").click()
        await p.sees("Second.")
        await p.sees_the_end()
        switch = p.page.locator(".versions")
        await expect(p.answers.last.get_by_role("group", name="Version 2 of 2")).to_be_visible()
        await p.button("Previous version").click()
        await p.sees("First.")
        await expect(p.button("Next version")).to_be_focused()
        await p.page.keyboard.press("Enter")
        await p.sees("Second.")
        await p.page.locator(".question").hover()
        await p.button("Edit and ask again").click()
        await p.page.get_by_label("Your message").fill("Tell me more")
        await p.button("Ask").click()
        await p.sees("Third.")
        await p.sees_the_end()
        question = p.page.locator(".question")
        await expect(question.get_by_role("group", name="Version 2 of 2")).to_be_visible()
        await p.asks("And then?")
        await p.page.reload()
        await p.sees("After.")
        await expect(switch).to_have_count(1)
        await p.button("Previous version").click()
        await p.sees("Second.")
        await expect(switch).to_have_count(2)
        async with p.page.expect_download() as download:
            await p.button("Actions for this conversation").click()
            await p.page.get_by_role("menuitem", name="Export as Markdown", exact=True).click()
        exported = (await (await download.value).path()).read_text("utf-8")
        assert "Second." in exported  # the version that is shown
        assert "After." not in exported
        await question.get_by_role("button", name="Next version").click()
        await p.sees("After.")


@asynccontextmanager
async def other_tab(p: Person) -> AsyncGenerator[Page]:
    """The same conversation in another tab of the same browser."""
    tab = await p.page.context.new_page()
    await tab.goto(await p.is_in_a_conversation())
    yield tab


@asynccontextmanager
async def held(page: Page, address: str, following: str) -> AsyncGenerator[None]:
    """In the block, no request to the address is answered; it ends with an answer to the following one."""
    released = asyncio.Event()

    async def hold(route: Route) -> None:
        await released.wait()
        await route.continue_()

    await page.route(address, hold)
    yield
    async with page.expect_response(following):
        released.set()


async def test_two_tabs_show_the_same_conversation(tmp_path: Path) -> None:
    async with person(then=noting_model, tmp_path=tmp_path) as p:
        await p.says("Note 1")
        await expect(p.button("Approve")).to_be_visible()
        async with other_tab(p) as other:
            await expect(other.get_by_role("button", name="Approve", exact=True)).to_be_enabled()
            await other.get_by_role("button", name="Approve", exact=True).click()
            await expect(other.locator("article.answer")).to_contain_text("Result:")
            await p.page.bring_to_front()
            await p.sees("Result:")
            await expect(p.button("Approve")).to_have_count(0)
            await p.says("Note 2")
            await expect(p.button("Approve")).to_be_enabled()
            await other.bring_to_front()
            await expect(other.locator(".question")).to_have_count(2)
            await expect(other.get_by_role("button", name="Approve", exact=True)).to_be_visible()
            await other.get_by_role("button", name="End this conversation").click()
            await other.get_by_role("button", name="End", exact=True).click()
            await expect(other.get_by_text("This conversation has ended.")).to_be_visible()
            await p.page.bring_to_front()
            await expect(p.page.get_by_text("This conversation has ended.")).to_be_visible()
            await expect(p.button("Approve")).to_have_count(0)
        async with held(p.page, "**/versions", "**/runs?*"):
            await p.button("Continue in a branch").click()
            await p.says("Note 3")  # while the branch is still loaded
        await expect(p.page.locator(".question")).to_have_count(3)
        await expect(p.button("Approve")).to_be_enabled()
        async with other_tab(p) as other:
            await other.get_by_role("button", name="Actions for this conversation").click()
            await other.get_by_role("menuitem", name="Delete").click()
            await other.get_by_role("dialog").get_by_role("button", name="Delete").click()
            await expect(other.get_by_role("heading", name="What can I do for you?")).to_be_visible()
            await p.page.bring_to_front()
            await expect(p.page.get_by_text("There is no such conversation.")).to_be_visible()
            await expect(p.answers).to_have_count(0)
    assert notes(tmp_path) == ["1"]


MANY = [wants("calculator", expression=f"{number}+1") for number in range(7)]
REPORT = """async ([...reports]) => {
    const { StepProgress } = await import("/static/progress.js");
    const progress = new StepProgress();
    return reports.map((report) => {
        progress.show(report);
        const { element, text, bar } = progress;
        return [element.hidden ? null : text.textContent, bar.hidden ? null : bar.value];
    });
}"""


async def test_many_steps_fold_into_one_line_and_long_ones_show_progress(tmp_path: Path, size: tuple[int, int]) -> None:
    items = (*MANY, says("Enough.", " Really.", pause=0.05))
    async with person(*items, tmp_path=tmp_path, size=size) as p:
        await p.asks("Count")
        fold = p.page.locator("details.fold")
        async for _ in p.before_and_after_a_reload():
            await expect(fold.locator(".card-title").first).to_have_text("7 steps")
            await expect(fold.locator(".card-time").first).to_contain_text("s")
            await expect(p.cards.first).to_be_hidden()
            await fold.locator("summary").first.click()
            await expect(p.cards).to_have_count(7)
            await p.cards.last.locator("summary").click()
            await expect(p.cards.last).to_contain_text("6+1")
        arguments = '## Request arguments:\n\n```json\n{"n": "50 %"}\n```\n\n'
        grown = f"{arguments}Preparing the model … 10 % … 40 %"
        shown = await p.page.evaluate(REPORT, [arguments, grown, f"{arguments}- 1/4 page one\n- 3/4 page three\n"])
        assert shown == [[None, None], ["40 %", 0.4], ["3/4 page three", 0.75]]


async def test_a_prompt_is_saved_completed_and_asks_for_its_variables(tmp_path: Path, size: tuple[int, int]) -> None:
    async with person(then=says("Done."), tmp_path=tmp_path, size=size) as p:
        keyboard, dialog = p.page.keyboard, p.page.get_by_role("dialog")
        await p.field.focus()
        await keyboard.type("/")
        await expect(p.page.get_by_role("option", name="Manage prompts…")).to_be_visible()
        await keyboard.press("Enter")
        await dialog.get_by_label("Name, typed after a slash").fill("two words")
        await dialog.get_by_label("Text;").fill("Translate “{{text}}” into {{language}}.")
        await p.button("Save").click()
        await expect(dialog).to_contain_text("no spaces")
        await dialog.get_by_label("Name, typed after a slash").fill("translate")
        await p.button("Save").click()
        await expect(dialog.get_by_role("button", name="/translate")).to_be_visible()
        await keyboard.press("Escape")
        await expect(dialog).to_have_count(0)
        await expect(p.field).to_be_focused()
        await keyboard.type("/tra")
        await expect(p.page.get_by_role("option", name="/translate")).to_have_attribute("aria-selected", "true")
        await keyboard.press("Enter")
        await expect(dialog.get_by_label("text")).to_be_focused()
        await keyboard.type("Hello")
        await keyboard.press("Tab")
        await keyboard.type("Ukrainian")
        await keyboard.press("Enter")
        await expect(p.field).to_have_value("Translate “Hello” into Ukrainian.")
        await expect(dialog).to_have_count(0)
        await keyboard.type(" Now.")
        await expect(p.field).to_have_value("Translate “Hello” into Ukrainian. Now.")
        await keyboard.press("Enter")
        await p.sees("Done.")
    assert p.upstream.requests[0].messages[-1]["content"] == "Translate “Hello” into Ukrainian. Now."


async def test_what_is_spoken_is_written_into_the_field_and_not_sent(tmp_path: Path) -> None:
    heard = streams(chunk({"role": "assistant", "content": "Good morning."}, "stop"), DONE)
    async with peer(heard) as listener:
        models = {"listener": {"type": "chat", "endpoint": f"{listener.url}/chat/completions"}}
        settings: dict[str, Any] = {"models": models, "http": {"transcription": "listener"}}
        async with person(tmp_path=tmp_path, **settings) as p:
            await p.page.context.grant_permissions(["microphone"])
            await p.field.fill("Hello!")
            await p.button("Speak a message").click()
            await p.button("End the recording").click()
            await expect(p.field).to_have_value("Hello! Good morning.")
            await expect(p.field).to_be_focused()
            await expect(p.button("Speak a message")).to_be_enabled()
    [attachment] = listener.last.json["messages"][-1]["custom_content"]["attachments"]
    assert attachment["type"].startswith("audio/")
    assert p.upstream.requests == []


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


async def test_conversations_are_found_pinned_renamed_saved_and_deleted(tmp_path: Path, size: tuple[int, int]) -> None:
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
