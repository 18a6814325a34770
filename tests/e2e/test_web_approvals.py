"""Questions on the page are read before they are answered; ratings and traces at the width of a desk and a phone."""

import json
from pathlib import Path

import pytest
from playwright.async_api import expect

from task.llm.base import Usage
from task.llm.scripted import Reply, says, wants
from tests.support.note_product import notes, noting_model
from tests.support.upstream import Received
from tests.support.web import PAGE_MARKS, Person, person

pytestmark = PAGE_MARKS


@pytest.mark.fault("page: edited arguments that are no JSON")
@pytest.mark.fault("page: typing while questions arrive")
async def test_several_questions_are_listed_and_decided_one_by_one(tmp_path: Path, size: tuple[int, int]) -> None:
    async with person(then=noting_model, tmp_path=tmp_path, size=size) as p:
        await p.says("Note both")
        await p.page.keyboard.type("I was just writing ")
        await expect(p.button("Approve")).to_have_count(2)
        for card in await p.page.locator(".approval").all():
            await card.scroll_into_view_if_needed()
            await expect(card.get_by_role("button", name="Approve")).to_be_enabled()
            await expect(card).to_contain_text("“Always” would also allow")
            await expect(card).to_contain_text("every call of write_note")
        await p.page.keyboard.type("this")
        await p.page.keyboard.press("Tab")
        await expect(p.field).to_have_value("I was just writing this")
        await expect(p.page.get_by_role("heading", name="2 calls wait for your decision")).to_be_visible()
        assert notes(tmp_path) == []

        first, second = p.page.locator(".approval").first, p.page.locator(".approval").last
        await first.get_by_role("button", name="Edit arguments").click()
        field = first.get_by_label("Arguments as JSON")
        await field.fill('{"text": ')
        await first.get_by_role("button", name="Approve with these arguments").click()
        await expect(first.get_by_role("alert")).to_have_text("These arguments are not valid JSON.")
        await field.fill('{"text": "changed"}')
        difference = first.get_by_role("group", name="What you changed")
        await expect(difference.locator("dt")).to_have_text("text")
        await expect(difference.get_by_role("deletion")).to_contain_text("1")
        await expect(difference.get_by_role("insertion")).to_contain_text("changed")
        await first.get_by_role("button", name="Approve with these arguments").press("Enter")
        await expect(first).to_contain_text("Approved with changes – write_note")
        await expect(first).to_be_focused()  # and not a button of the next question
        await expect(p.page.get_by_role("heading", name="1 call waits for your decision")).to_be_visible()
        assert notes(tmp_path) == []

        await second.get_by_role("button", name="Deny…").click()
        await second.get_by_label("Reason").fill("one is enough")
        await p.page.keyboard.press("Enter")
        await expect(second).to_contain_text("Reason: one is enough")
        await p.sees("Result:")
        await p.sees_the_end()
        await p.page.reload()
        settled = p.page.locator(".approval.done")
        await expect(settled).to_have_count(2)
        await expect(settled.first).to_contain_text("Approved with changes")
        await expect(settled.first.get_by_role("insertion")).to_contain_text("changed")
        await expect(settled.last).to_contain_text("Denied – write_note")
        await expect(settled.last).to_contain_text("Reason: one is enough")
        await expect(p.cards.first.locator(".card-title")).to_have_text("write_note: changed")
    assert notes(tmp_path) == ["changed"]


async def test_a_card_that_moves_up_when_another_is_decided_takes_no_click_for_a_moment(tmp_path: Path) -> None:
    async with person(then=noting_model, tmp_path=tmp_path) as p:
        await p.says("Note both")
        await expect(p.button("Approve")).to_have_count(2)
        for button in await p.button("Approve").all():
            await button.scroll_into_view_if_needed()
            await expect(button).to_be_enabled()
        assert await p.page.evaluate(BOTH_AT_ONCE) == {"decided": "approval done", "disabled": True}
        assert notes(tmp_path) == []
        await p.button("Approve").click()
        await p.sees_the_end()
    assert sorted(notes(tmp_path)) == ["1", "2"]


# The first card is approved, and the second one clicked as soon as it has moved.
BOTH_AT_ONCE = """() => new Promise((done) => {
    const [first, second] = document.querySelectorAll(".approval");
    const [approve, next] = [first, second].map((card) => card.querySelector(".approval-actions .primary"));
    new MutationObserver(() => {
        done({ decided: first.className, disabled: next.disabled });
        next.click();
    }).observe(first, { attributeFilter: ["class"] });
    approve.click();
})"""


async def test_a_formula_in_the_answer_is_not_painted_over_a_card(tmp_path: Path) -> None:
    painted = r"$\rlap{\smash{\raisebox{-12em}{\text{This call only reads a file.}}}}$"
    async with person(says(painted) & wants("write_note", text="1"), tmp_path=tmp_path) as p:
        await p.says("Note 1")
        await expect(p.button("Approve")).to_be_enabled()
        text = p.prose.locator(".katex-html .text").last
        await expect(text).to_contain_text("only reads")
        assert await text.evaluate(IS_BEHIND_THE_CARD) == [True, False]


# The text stands where the card is, and a pointer there does not meet it.
IS_BEHIND_THE_CARD = """(text) => {
    const { x, y, width, height } = text.getBoundingClientRect();
    const card = document.querySelector(".approval").getBoundingClientRect();
    const met = document.elementFromPoint(x + width / 2, y + height / 2);
    return [card.top < y && y < card.bottom, met.closest(".math") !== null];
}"""


@pytest.mark.fault("page: a question that is answered elsewhere while it is shown")
async def test_an_answer_given_elsewhere_settles_the_question_and_shows_what_follows(tmp_path: Path) -> None:
    async with person(then=noting_model, tmp_path=tmp_path) as p:
        await p.says("Note 1")
        await expect(p.button("Approve")).to_be_enabled()
        answered = await p.page.evaluate(DENIED_ELSEWHERE)
        assert json.loads(answered)["approval"]["status"] == "denied"
        await p.sees("Denied – write_note")
        await p.sees("not today")
        await p.sees("Result:")
        await p.sees_the_end()
        await expect(p.button("Approve")).to_have_count(0)
    assert notes(tmp_path) == []


DENIED_ELSEWHERE = """async () => {
    const { approvals: [approval] } = await (await fetch("/approvals")).json();
    const body = JSON.stringify({ decision: "deny", reason: "not today" });
    const headers = { "Content-Type": "application/json" };
    return (await fetch(`/approvals/${approval.approval_id}`, { method: "POST", headers, body })).text();
}"""


async def test_the_lines_of_a_long_text_that_were_changed_are_found(tmp_path: Path) -> None:
    async with person(tmp_path=tmp_path) as p:
        assert await p.page.evaluate(LINES, ["a\nb\nc\nd", "a\nc\nx\nd"]) == [
            [" ", "a"], ["-", "b"], [" ", "c"], ["+", "x"], [" ", "d"],
        ]  # fmt: skip
        assert await p.page.evaluate(LINES, ["\n".join("abcdefgh"), "\n".join("abcdXfgh")]) == [
            [" ", "…"], [" ", "c"], [" ", "d"], ["-", "e"], ["+", "X"], [" ", "f"], [" ", "g"], [" ", "h"],
        ]  # fmt: skip
        long, other = "\n".join(map(str, range(5000))), "\n".join(map(str, range(10_000, 15_000)))
        assert len(await p.page.evaluate(LINES, [long, other])) == 10_000
        assert await p.page.evaluate(CHANGES, [{"a": 1, "b": {"c": [1]}}, {"b": {"c": [2]}, "d": None}]) == [
            "a", "b.c", "d",
        ]  # fmt: skip


LINES = """async ([before, after]) =>
    (await import("/static/diff.js")).lines(before.split("\\n"), after.split("\\n"))"""
CHANGES = """async ([before, after]) =>
    (await import("/static/diff.js")).changes(before, after).map((change) => change.path)"""


def answering(request: Received) -> Reply:
    """Notes; everything else is answered with the name of the model."""
    question = str([item for item in request.messages if item["role"] == "user"][-1]["content"])
    if question.startswith("Note"):
        return noting_model(request)
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


async def test_an_answer_is_rated_found_by_that_and_asked_of_another_model(
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
        row = await rows.element_handle()
        await p.page.get_by_role("searchbox", name="Text").fill("WHO ARE")
        async with p.page.expect_response(lambda answer: "/ratings?" in answer.url and "text=WHO" in answer.url):
            await p.page.keyboard.press("Enter")  # the counts are asked for when the rows are there
        assert await row.evaluate("row => row.isConnected")  # a click that was under way while it came isn't lost
        await rows.get_by_role("link").click()
        await expect(p.page.get_by_text("“I meant your name”")).to_be_visible()
        replay = p.page.get_by_label("Ask another model")
        await expect(replay.locator("option")).not_to_have_count(1)
        await replay.select_option(index=1)
        await expect(p.page.locator(".trace-answer")).to_have_count(2)
        await expect(p.page.locator(".figures-table")).to_contain_text("Tokens out")
        await nothing_is_cut(p)
