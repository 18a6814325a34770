"""What a person sees and can do when the agent is gone, refuses, or could not answer."""

from __future__ import annotations

from pathlib import Path

from playwright.async_api import expect

from task.llm.base import Finish, TextDelta
from task.llm.scripted import Reply, says
from tests.support.http_api import key_of
from tests.support.upstream import http_error
from tests.support.web import PAGE_MARKS, person

pytestmark = PAGE_MARKS

GONE = "The agent does not answer."


async def test_a_message_that_was_not_accepted_is_kept_for_a_retry(tmp_path: Path, size: tuple[int, int]) -> None:
    async with person(says("Here I am."), tmp_path=tmp_path, size=size) as p:
        await p.page.context.set_offline(True)
        await p.says("Are you there?")
        await expect(p.page.get_by_role("alert").filter(visible=True)).to_contain_text(GONE)
        await expect(p.field).to_have_value("Are you there?")
        await expect(p.field).to_be_focused()
        await p.page.context.set_offline(False)
        await p.page.keyboard.press("Enter")
        await p.sees("Here I am.")
        await p.sees_the_end()
        await expect(p.page.locator(".question")).to_have_count(1)
        await expect(p.page.get_by_role("alert").filter(visible=True)).to_have_count(0)


async def test_places_that_could_not_be_opened_are_retried(tmp_path: Path, size: tuple[int, int]) -> None:
    async with person(says("Hello!"), tmp_path=tmp_path, size=size) as p:
        await p.asks("Hi")
        conversation = await p.is_in_a_conversation()
        await p.starts_a_new_conversation()
        await p.page.context.set_offline(True)
        await p.page.evaluate("place => { location.hash = place; }", conversation.partition("#")[2])
        await expect(p.page.get_by_text(GONE)).to_be_visible()
        await p.page.context.set_offline(False)
        await p.button("Try again").click()
        await p.sees("Hello!")
        await p.page.context.set_offline(True)
        await p.page.evaluate("location.hash = '#/traces'")
        await expect(p.page.locator(".traces").get_by_text(GONE)).to_be_visible()
        await p.page.context.set_offline(False)
        await p.button("Try again").click()
        await expect(p.page.locator(".traces-list").get_by_role("link", name="Hi")).to_be_visible()
        await p.page.evaluate("location.hash = '#/c/sess_nowhere'")
        await expect(p.page.get_by_text("There is no such conversation.")).to_be_visible()
        await expect(p.button("Try again")).to_have_count(0)


async def test_too_many_requests_are_reported_in_a_sentence(tmp_path: Path, size: tuple[int, int]) -> None:
    key = await key_of("ada", tmp_path)
    limited = {"mode": "keys", "requests_per_minute": 30}
    async with person(says("Hello!"), tmp_path=tmp_path, size=size, http=limited) as p:
        await p.page.get_by_label("API key").fill(key)
        await p.page.keyboard.press("Enter")
        await expect(p.page.get_by_text("Your conversations will be listed here.")).to_be_attached()
        await p.page.evaluate(ASKED_60_TIMES, key)
        await p.says("Hi")
        await expect(p.page.get_by_role("alert").filter(visible=True)).to_contain_text("requests")
        await expect(p.field).to_have_value("Hi")


ASKED_60_TIMES = """async (key) => {
    const headers = { Authorization: `Bearer ${key}` };
    await Promise.all(Array.from({ length: 60 }, () => fetch("/sessions", { headers })));
}"""


async def test_a_question_without_an_answer_is_marked_after_a_reload(tmp_path: Path, size: tuple[int, int]) -> None:
    items = (http_error(400, "No such thing."), says("Second."), says("First."))
    async with person(*items, tmp_path=tmp_path, size=size) as p:
        await p.asks("One")
        await p.asks("Two")
        await p.page.reload()
        await expect(p.answers.first).to_contain_text("This answer could not be finished.")
        await expect(p.answers.first.get_by_role("link", name="Show the trace")).to_be_visible()
        await expect(p.answers.last).to_contain_text("Second.")
        await p.answers.first.get_by_role("button", name="Answer again").click()
        await p.sees("First.")
        await p.sees_the_end()
        await expect(p.page.locator(".question")).to_have_text(["One"])


async def test_an_answer_that_is_cut_off_or_filtered_is_marked(tmp_path: Path, size: tuple[int, int]) -> None:
    cut, filtered = Reply((TextDelta("Once upon"), Finish("length"))), Reply((Finish("content_filter"),))
    async with person(cut, filtered, tmp_path=tmp_path, size=size) as p:
        await p.asks("One")
        await expect(p.answers.first).to_contain_text("Once upon")
        await expect(p.answers.first).to_contain_text("The answer was cut off at the model's limit of tokens.")
        await p.says("Two")
        await expect(p.answers.last).to_contain_text("The model's content filter stopped the answer.")
