"""Ratings and traces on the page, at the width of a desk and of a phone."""

from __future__ import annotations

from pathlib import Path

import aiohttp
from playwright.async_api import expect

from task.llm.base import Usage
from task.llm.scripted import Reply, says, wants
from tests.support.note_product import noting_model
from tests.support.upstream import Received
from tests.support.web import PAGE_MARKS, Person, person

pytestmark = PAGE_MARKS


def answering(request: Received) -> Reply:
    """Notes and sums; everything else is answered with the name of the model."""
    question = str([item for item in request.messages if item["role"] == "user"][-1]["content"])
    if question.startswith("Note"):
        return noting_model(request)
    if "steps" in question:
        results = sum(item["role"] == "tool" for item in request.messages)
        return wants("calculator", expression=f"{results}+1") if results < 40 else says("Done.")
    return says(f"This is {request.body['model']}.", usage=Usage(100, len(question)))


async def traces(p: Person) -> None:
    await p.page.evaluate("location.hash = '#/traces'")
    await expect(p.page.locator(".traces-list tbody tr").first).to_be_visible()
    await expect(p.button("End this conversation")).to_be_hidden()


async def nothing_is_cut(p: Person) -> None:
    """Nothing of the traces is wider than the window, and no serious finding of axe."""
    wide = "[...document.querySelectorAll('.traces, .traces > .scrolls')].some(e => e.scrollWidth > e.clientWidth + 1)"
    assert not await p.page.evaluate(wide)
    assert await p.finds_serious() == []


async def test_an_answer_is_rated_found_by_its_rating_and_asked_of_another_model(
    tmp_path: Path, size: tuple[int, int]
) -> None:
    async with person(then=answering, tmp_path=tmp_path, size=size, http={"titles": "model"}) as p:
        await p.asks("Who are you?")
        await expect(p.page.locator("h1")).to_contain_text("This is")  # a model made that title, which left a trace
        await expect(p.button("End this conversation")).to_be_visible()
        await p.button("Bad answer").click()
        field = p.page.get_by_label("What was wrong with it?")
        await field.fill("I meant your name")
        await field.press("Enter")
        await expect(field).to_have_count(0)
        await expect(p.button("Bad answer")).to_be_focused()
        await p.page.reload()
        await expect(p.button("Bad answer")).to_have_attribute("aria-pressed", "true")
        await p.says("Note 1")
        await p.button("Approve").click()
        await p.sees("Result:")
        await p.sees_the_end()
        await p.button("Good answer").last.click()
        await expect(p.button("Good answer").last).to_have_attribute("aria-pressed", "true")
        await p.button("Good answer").last.click()
        await expect(p.button("Good answer").last).to_have_attribute("aria-pressed", "false")

        await traces(p)
        rows = p.page.locator(".traces-list tbody tr")
        await expect(rows.locator(".asked")).to_have_text(["Note 1", "Note 1", "Who are you?"])
        await nothing_is_cut(p)
        await p.page.get_by_role("combobox", name="Rating").select_option("down")
        await expect(rows.locator(".asked")).to_have_text(["Who are you?"])
        await p.page.get_by_role("searchbox", name="Text").fill("WHO ARE")
        await p.page.keyboard.press("Enter")
        await expect(rows).to_have_count(1)
        await rows.get_by_role("link").click()
        await expect(p.page.get_by_text("“I meant your name”")).to_be_visible()
        replay = p.page.get_by_label("Ask another model")
        await expect(replay.locator("option")).not_to_have_count(1)
        await replay.select_option(index=1)
        await expect(p.page.locator(".trace-answer")).to_have_count(2)
        await expect(p.page.locator(".figures-table")).to_contain_text("Tokens out")
        await nothing_is_cut(p)


async def test_a_long_run_opens_in_parts(tmp_path: Path, size: tuple[int, int]) -> None:
    async with (
        person(then=answering, tmp_path=tmp_path, size=size, http={"steps": 50}) as p,
        aiohttp.ClientSession() as api,
    ):
        body = {"messages": [{"role": "user", "content": "many steps"}], "experiment": "long"}
        async with api.post(f"{p.url}/v1/chat/completions", json=body) as response:
            assert response.status == 200
        await traces(p)
        await p.page.get_by_role("link", name="many steps").click()
        await expect(p.page.locator(".step")).to_have_count(60)
        await p.page.get_by_role("button", name="more steps").click()
        await expect(p.page.locator(".step")).to_have_count(82)
        await nothing_is_cut(p)
