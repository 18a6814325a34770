"""The web page in bad conditions: hostile text, an agent that is gone, screen readers, long conversations."""

import re
from pathlib import Path

import pytest
from playwright.async_api import expect

from task.conversation.messages import assistant, user
from task.llm.base import Finish, TextDelta
from task.llm.scripted import Reply, says, wants
from task.store.access import StoreOptions
from task.store.store import open_store
from tests.support.note_product import noting_model
from tests.support.upstream import http_error
from tests.support.web import PAGE_MARKS, person

pytestmark = PAGE_MARKS

REFERENCE = re.compile(r"\(error reference: [0-9a-f]{8}\)$")
HOSTILE = """<script>window.harmed = 1</script> <img src=x onerror="window.harmed = 2">
<svg onload="window.harmed = 3"><a href="javascript:window.harmed=4">html</a></svg>

[link](javascript:window.harmed=5) [data](data:text/html,<script>window.harmed=6</script>)
[vb](vbscript:harm) <javascript:window.harmed=7>

![remote](https://pictures.example/pixel.png)
![odd](//pictures.example/x.png) ![svg](data:image/svg+xml;base64,PHN2Zz4=)

| a | b |
|---|---|
| <iframe src="https://frames.example"></iframe> | <style>body{display:none}</style> |

[ref]

[ref]: javascript:window.harmed=8 "title"

The end.
"""


@pytest.mark.fault("web page: `<script>`, `onerror` and `javascript:` links in model text")
@pytest.mark.fault("web page: a remote picture in model text")
@pytest.mark.fault("web page: hostile text in a tool's result")
async def test_hostile_text_is_inert_and_fetches_nothing_streamed_or_stored(tmp_path: Path) -> None:
    async with person(wants("show_things", what=HOSTILE), says(HOSTILE), tmp_path=tmp_path) as p:
        await p.asks("Hi")
        await p.cards.first.locator("summary").click()
        await expect(p.cards.first).to_contain_text("The end.")
        async for _ in p.before_and_after_a_reload():
            await p.sees("The end.")
            prose = p.page.locator(".answer .prose")
            for hostile in ("script", "svg:not(.icon)", "iframe", "style", "img[src]", "[onerror]", "[onload]"):
                await expect(prose.locator(hostile)).to_have_count(0)
            links = await prose.locator("a").evaluate_all("links => links.map(link => link.href)")
            assert [link for link in links if not link.startswith(("http://", "https://", "mailto:"))] == []
            assert await p.page.evaluate("window.harmed") is None
            assert p.visit.asked == {"127.0.0.1"}


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
async def test_axe_finds_nothing_serious(tmp_path: Path, size: tuple[int, int], *, dark: bool) -> None:
    items = (
        wants("show_things", what="cities") & wants("make_table", rows=200),
        says("# Cities [1]\n\n| a | b |\n|--|--|\n| 1 | 2 |\n\n```py\nx = 1\n```"),
    )
    async with person(*items, then=noting_model, tmp_path=tmp_path, size=size, dark=dark) as p:
        found = await p.finds_serious()
        await p.asks("Show me")
        await p.cards.first.locator("summary").click()
        await expect(p.page.get_by_role("region", name="Table towns.csv").first).to_be_visible()
        await p.cited.first.click()
        await expect(p.page.get_by_role("dialog")).to_be_visible()
        found += await p.finds_serious()
        await p.page.keyboard.press("Escape")
        await expect(p.page.locator(".chart .main-svg").first).to_be_visible()
        await p.page.get_by_role("region", name="Table towns.csv").first.get_by_role("button", name="people").click()
        await p.page.get_by_label("Filter rows").first.fill("no. 12")
        found += await p.finds_serious()
        await p.says("Note both")
        await expect(p.button("Approve")).to_have_count(2)
        await expect(p.button("Approve").last).to_be_enabled()
        card = p.page.locator(".approval").last
        await card.get_by_role("button", name="Edit arguments").click()
        await card.get_by_label("Arguments as JSON").fill('{"text": "changed"}')
        found += await p.finds_serious()
        await card.get_by_role("button", name="Approve with these arguments").click()
        await expect(card).to_contain_text("Approved with changes")
        await p.opens_the_list()
        await p.button("Actions for Show me").click()
        found += await p.finds_serious()
        await p.page.keyboard.press("Escape")
        await p.button("Help and language").click()
        found += await p.finds_serious()
        await p.page.keyboard.press("Escape")
        await p.page.goto(f"{p.url}/#/traces")
        link = p.page.locator(".traces-list a").first
        await expect(link).to_be_visible()
        found += await p.finds_serious()
        address = await link.get_attribute("href")
        await p.page.goto(f"{p.url}/{address}")
        await p.page.locator(".step").last.dispatch_event("click")
        found += await p.finds_serious()
    assert found == []


async def test_a_conversation_of_500_messages_is_usable_before_all_is_shown(tmp_path: Path) -> None:
    async with person(tmp_path=tmp_path, then=says("More.")) as p:
        await p.asks("Hi")
        store = await open_store(StoreOptions(f"sqlite:///{tmp_path / 'agent' / 'store.db'}", chores=False))
        try:
            session_id = (await p.is_in_a_conversation()).rsplit("/", 1)[-1]
            [owner] = {item.owner for item in (await store.traces.list(None)).items}
            session = await store.sessions.get(owner, session_id)
            text = "Some **words**, a list:\n\n- one\n- two\n\n```py\nprint(1)\n```\n" * 3
            said = [message for number in range(249) for message in (user(f"Question {number}"), assistant(text))]
            await store.sessions.append(owner, session_id, said, session.version)
        finally:
            await store.close()
        await p.page.reload()
        await expect(p.page.locator(".question").last).to_contain_text("Question 248")
        await p.field.fill("ready")
        assert await p.page.locator("article").count() <= 60
        await p.page.get_by_role("button", name="Earlier messages").click()
        await expect(p.page.get_by_text("Question 230")).to_be_attached()


GONE = "The agent is not responding."


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
        await expect(p.page.get_by_text("There is no such conversation.")).to_contain_text(REFERENCE)
        await expect(p.button("Try again")).to_have_count(0)
        await p.page.evaluate("location.hash = '#/traces/%E0%A4%A'")  # not encoded correctly
        await expect(p.page.locator(".traces")).to_be_visible()


async def test_a_question_without_an_answer_is_marked_after_a_reload(tmp_path: Path, size: tuple[int, int]) -> None:
    items = (http_error(400, "No such thing."), says("Second."), says("First."))
    async with person(*items, tmp_path=tmp_path, size=size) as p:
        await p.asks("One")
        await expect(p.answers.first.get_by_role("alert")).to_contain_text(REFERENCE)
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
        await expect(p.answers.first).to_contain_text("The answer was cut off at the model's token limit.")
        await p.says("Two")
        await expect(p.answers.last).to_contain_text("The model's content filter stopped the answer.")
