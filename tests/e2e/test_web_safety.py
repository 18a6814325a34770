"""What hostile text can do in the page, what screen readers find, and how soon a long conversation is usable."""

from __future__ import annotations

from pathlib import Path

import pytest
from axe_playwright_python.async_playwright import Axe
from playwright.async_api import expect

from task.conversation.messages import assistant, user
from task.llm.scripted import says, wants
from task.store.store import open_store
from tests.support.note_product import noting_model
from tests.support.web import PAGE_MARKS, Person, person

pytestmark = PAGE_MARKS

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


@pytest.mark.parametrize("reloaded", [False, True], ids=["streamed", "stored"])
async def test_hostile_model_text_is_inert_and_fetches_nothing(tmp_path: Path, *, reloaded: bool) -> None:
    async with person(says(HOSTILE), tmp_path=tmp_path) as p:
        await p.asks("Hi")
        if reloaded:
            await p.page.reload()
        await p.sees("The end.")
        prose = p.page.locator(".answer .prose")
        for hostile in ("script", "svg:not(.icon)", "iframe", "style", "img[src]", "[onerror]", "[onload]"):
            await expect(prose.locator(hostile)).to_have_count(0)
        links = await prose.locator("a").evaluate_all("links => links.map(link => link.href)")
        assert [link for link in links if not link.startswith(("http://", "https://", "mailto:"))] == []
        assert await p.page.evaluate("window.harmed") is None
        assert p.visit.asked == {"127.0.0.1"}


async def test_hostile_results_of_tools_are_inert_too(tmp_path: Path) -> None:
    async with person(wants("show_things", what=HOSTILE), says("Shown."), tmp_path=tmp_path) as p:
        await p.asks("Hi")
        await p.cards.first.locator("summary").click()
        await expect(p.cards.first).to_contain_text("The end.")
        assert await p.page.evaluate("window.harmed") is None
        assert p.visit.asked == {"127.0.0.1"}


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
async def test_axe_finds_nothing_serious(tmp_path: Path, size: tuple[int, int], *, dark: bool) -> None:
    items = (
        wants("show_things", what="cities") & wants("make_table", rows=200),
        says("# Cities [1]\n\n| a | b |\n|--|--|\n| 1 | 2 |\n\n```py\nx = 1\n```"),
    )
    async with person(*items, then=noting_model, tmp_path=tmp_path, size=size, dark=dark) as p:
        found = await serious(p)
        await p.asks("Show me")
        await p.cards.first.locator("summary").click()
        await expect(p.page.get_by_role("region", name="Table towns.csv").first).to_be_visible()
        await p.cited.first.click()
        found += await serious(p)
        await p.page.keyboard.press("Escape")
        await p.says("Note 1")
        await expect(p.button("Approve")).to_be_visible()
        found += await serious(p)
        await p.opens_the_list()
        found += await serious(p)
        await p.page.goto(f"{p.url}/#/traces")
        link = p.page.locator(".traces-list a").first
        await expect(link).to_be_visible()
        found += await serious(p)
        address = await link.get_attribute("href")
        await p.page.goto(f"{p.url}/{address}")
        await p.page.locator(".step").last.dispatch_event("click")
        found += await serious(p)
    assert found == []


async def serious(p: Person) -> list[str]:
    results = await Axe().run(p.page)
    return [
        f"{item['id']}: {node['target']} {node['failureSummary']}"
        for item in results.response["violations"]
        if item["impact"] in ("serious", "critical")
        for node in item["nodes"]
    ]


async def test_a_conversation_of_500_messages_is_usable_within_a_second(tmp_path: Path) -> None:
    async with person(tmp_path=tmp_path, then=says("More.")) as p:
        await p.asks("Hi")
        store = await open_store(f"sqlite:///{tmp_path / 'agent' / 'store.db'}", chores=False)
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
        milliseconds = await p.page.evaluate("performance.now()")
        assert await p.page.locator("article").count() <= 60
        await p.page.get_by_role("button", name="Earlier messages").click()
        await expect(p.page.get_by_text("Question 230")).to_be_attached()
    assert milliseconds < 5000  # 0.7 s on two busy cores
