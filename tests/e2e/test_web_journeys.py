"""Journeys through the web page in a real browser, at the width of a desk and of a phone."""

import asyncio
from pathlib import Path

import pytest
from playwright.async_api import expect

from task.llm.scripted import says, wants
from tests.support.http_api import key_of
from tests.support.note_product import notes, noting_model
from tests.support.web import PAGE_MARKS, Person, person

pytestmark = PAGE_MARKS

SUM = (wants("calculator", expression="25*47"), says("It is ", "**1175**.", pause=0.05))
LONG = says(*[f"word{number} " for number in range(400)], pause=0.02)


async def test_an_answer_streams_and_its_tool_card_opens(tmp_path: Path, size: tuple[int, int]) -> None:
    async with person(*SUM, tmp_path=tmp_path, size=size) as p:
        await p.asks("What is 25*47?")
        await expect(p.answers.last.locator("strong")).to_have_text("1175")
        await expect(p.cards.first.locator(".card-time")).to_contain_text("ms")
        await p.cards.first.locator("summary").click()
        await expect(p.cards.first).to_contain_text("25*47")
        await expect(p.cards.first).to_contain_text("1175")
        await expect(p.answers.last.locator(".figures")).to_contain_text("out tokens")
        await p.is_in_a_conversation()
        await p.page.reload()
        await p.sees("1175")
        await expect(p.cards.first.locator(".card-time")).to_contain_text("ms")


async def reached(p: Person, name: str) -> None:
    """The button has the focus: by tabbing back to it from the message field, once it can be pressed."""
    await expect(p.button(name)).to_be_enabled()
    await p.field.focus()
    for _ in range(40):
        await p.page.keyboard.press("Shift+Tab")
        if await p.button(name).evaluate("button => button === document.activeElement"):
            return
    raise AssertionError(f"{name} cannot be reached by the keyboard")


@pytest.mark.fault("web page: a key pressed while a question comes")
async def test_keys_decide_nothing_in_the_first_second_of_a_question(tmp_path: Path, size: tuple[int, int]) -> None:
    async with person(then=noting_model, tmp_path=tmp_path, size=size) as p:
        clock = p.page.clock
        await clock.install()
        await clock.pause_at(await p.page.evaluate("Date.now()") + 1000)
        await p.says("Note 1")
        async with asyncio.timeout(30):
            while not await p.button("Approve").count():  # only what the test lets pass of the page's time passes
                await clock.run_for(20)
        for passed in (0, 900):
            await clock.run_for(passed)
            for name in ("Approve", "Always in this conversation", "Deny…"):
                if await p.button(name).count():
                    await p.button(name).focus()
                    await p.page.keyboard.press("Enter")
                    await p.page.keyboard.press("Space")
            await expect(p.button("Approve")).to_be_disabled()
        await expect(p.page.locator("#said")).to_have_text("write_note waits for your approval")
        await expect(p.page.locator(".approval:not(.done)")).to_have_count(1)
        assert notes(tmp_path) == []
        await clock.run_for(200)
        await clock.resume()
        await reached(p, "Approve")
        await p.page.keyboard.press("Enter")
        await p.sees("Result:")
    assert notes(tmp_path) == ["1"]


@pytest.mark.fault("web page: a key pressed while a question comes")
async def test_a_high_risk_takes_two_keys_and_a_held_key_takes_none(tmp_path: Path, size: tuple[int, int]) -> None:
    risky = wants("write_note", text="1\u202e")  # a letter that turns the direction of writing
    async with person(risky, says("Result: noted"), tmp_path=tmp_path, size=size) as p:
        keyboard = p.page.keyboard
        await p.says("Note 1")
        await expect(p.page.locator(".approval .risk")).to_have_text("High risk")
        await reached(p, "Approve")
        for _ in range(4):
            await keyboard.down("Enter")  # the second and later ones are repetitions
        await keyboard.up("Enter")
        await expect(p.button("Back")).to_be_focused()
        assert notes(tmp_path) == []
        await keyboard.press("Shift+Tab")
        await expect(p.button("Yes, run it")).to_be_focused()
        await keyboard.press("Enter")
        await p.sees("Result:")
    assert notes(tmp_path) == ["1\u202e"]


async def test_a_high_risk_is_approved_by_one_click(tmp_path: Path, size: tuple[int, int]) -> None:
    risky = wants("write_note", text="1\u202e")
    async with person(risky, says("Result: noted"), tmp_path=tmp_path, size=size) as p:
        await p.says("Note 1")
        await p.button("Approve").click()
        await p.sees("Result:")
    assert notes(tmp_path) == ["1\u202e"]


async def test_the_stop_button_ends_the_answer_and_keeps_its_beginning(tmp_path: Path, size: tuple[int, int]) -> None:
    async with person(LONG, says("Yes?"), tmp_path=tmp_path, size=size) as p:
        await p.says("Talk")
        await p.sees("word3")
        await p.button("Stop").click()
        await p.sees("Stopped.")
        await p.upstream.disconnected(1)
        await p.asks("And now?")
        await p.sees("Yes?")


@pytest.mark.fault("web page: a reload in the middle of an answer")
async def test_a_reload_in_the_middle_loses_nothing_of_the_answer(tmp_path: Path, size: tuple[int, int]) -> None:
    async with person(LONG, tmp_path=tmp_path, size=size) as p:
        await p.says("Talk")
        await p.sees("word20 ")
        await p.page.reload()
        await p.sees("word399")
        await p.sees_the_end()
        text = await p.answers.last.locator(".parts").inner_text()
    assert text.split() == [f"word{number}" for number in range(400)]


async def test_an_answer_is_copied_and_the_colours_stay_chosen(tmp_path: Path, size: tuple[int, int]) -> None:
    async with person(says("Copy **me**."), tmp_path=tmp_path, size=size) as p:
        await p.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        await p.asks("Hi")
        await expect(p.page.get_by_label("Persona")).to_be_hidden()  # there is none
        await p.button("Copy the answer").click()
        await expect(p.page.get_by_role("status")).to_have_text("Copied")
        assert await p.page.evaluate("navigator.clipboard.readText()") == "Copy **me**."
        await p.opens_the_list()
        await p.button("Dark or light").click()
        await p.page.reload()
        await expect(p.page.locator("html")).to_have_attribute("data-theme", "dark")


async def test_a_page_that_wants_a_key_asks_for_it_once(tmp_path: Path, size: tuple[int, int]) -> None:
    key = await key_of("ada", tmp_path)
    async with person(says("Hello, Ada!"), tmp_path=tmp_path, size=size, http={"mode": "keys"}) as p:
        await p.page.get_by_label("API key").fill(key)
        await p.page.keyboard.press("Enter")
        await expect(p.page.get_by_role("dialog")).to_have_count(0)
        await p.asks("Hi")
        await p.sees("Hello, Ada!")
        await p.page.reload()
        await p.sees("Hello, Ada!")


async def test_each_conversation_keeps_the_persona_chosen_for_it(tmp_path: Path, size: tuple[int, int]) -> None:
    (tmp_path / "critic.md").write_text("Doubt everything.")
    (tmp_path / "poet.md").write_text("Rhyme.")
    definition = tmp_path / "FRAMEWORK_CONTEXT.md"
    definition.write_text("## Personas\npersona_critic: @critic.md\npersona_poet: @poet.md\n")
    chosen = {"definition_path": definition}
    async with person(then=says("Hi."), tmp_path=tmp_path, size=size, context=chosen) as p:
        persona = p.page.get_by_label("Persona")
        await expect(persona).to_have_value("")
        await persona.select_option("poet")
        await p.asks("Good morning")
        first = await p.is_in_a_conversation()
        await p.starts_a_new_conversation()
        await expect(persona).to_have_value("")
        await p.asks("Good evening")
        await p.page.goto(first)
        await p.page.reload()
        await expect(persona).to_have_value("poet")
        await p.asks("Again")
    sent = [any("Rhyme." in str(message["content"]) for message in request.messages) for request in p.upstream.requests]
    assert sent == [True, False, True]
