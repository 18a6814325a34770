"""The first minutes without a model: the guided demo on the page and at the terminal, with tools that really run."""

from pathlib import Path

from playwright.async_api import Page, expect

from task.conversation.inputs import ATTACHED
from task.llm.demo import SAMPLES
from task.llm.scripted import says
from tests.support.browser import NARROW, visit
from tests.support.up import running_product
from tests.support.web import PAGE_MARKS, person

pytestmark = PAGE_MARKS

SHOWN = ("details.card:has-text(': sample-sales.csv')", ".cited, [aria-label^='Source']", ".chart .plot-container")


async def test_the_demo_answers_about_the_samples_at_the_terminal_and_on_the_page(tmp_path: Path) -> None:
    async with running_product(tmp_path) as product:
        answer = await product.ask("", "--demo", "--save", "made")
        async with visit(product.ready["agent"], NARROW) as visited:
            page = visited.page
            await expect(page.get_by_role("note")).to_contain_text("no model writes them")
            await expect(page.locator(".ideas button:visible")).to_have_count(len(SAMPLES))
            for sample, shown in zip(SAMPLES, SHOWN, strict=True):
                await chosen(page, sample.title, sample.name)
                await page.get_by_role("button", name="Send", exact=True).click()
                last = page.locator("article.answer").last
                await expect(last).to_contain_text("these words were written beforehand")
                await expect(last.locator(shown).first).to_be_visible()
            assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "nothing is cut off"
    assert (visited.asked, visited.faults) == ({"127.0.0.1"}, [])
    assert answer.code == 0, answer.err
    places = [answer.out.index(sample.words) for sample in SAMPLES]
    assert places == sorted(places)
    assert answer.out.count("I am a scripted demo, not a real model") == len(SAMPLES)
    for number, sample in enumerate(SAMPLES, 1):
        assert f"{number} of 3: {sample.question} ({sample.path})" in answer.err
        assert f"✓ {sample.tool} " in answer.err
    assert list((tmp_path / "made").glob("chart*.json"))


async def test_with_a_model_the_samples_are_starters_and_one_out_of_reach_leaves_the_message(tmp_path: Path) -> None:
    table, search, _ = SAMPLES
    async with person(says("Desks."), tmp_path=tmp_path) as p:
        await expect(p.page.locator(".ideas button:visible")).to_have_count(len(SAMPLES) + 1)
        await p.page.route(f"**/samples/{search.name}", lambda route: route.abort())
        await p.field.fill("My own words")
        await p.page.get_by_role("button", name=search.title).click()
        await expect(p.page.get_by_text("The agent is not responding.")).to_be_visible()
        await expect(p.field).to_have_value("My own words")
        await chosen(p.page, table.title, table.name)
        await p.button("Send").click()
        await p.sees("Desks.")
    sent = p.upstream.requests[0].messages[-1]["content"]
    assert sent.startswith(f"{table.question}\n\n{ATTACHED}\n- {table.name} (text/csv): files/")


async def chosen(page: Page, title: str, name: str) -> None:
    """Press a sample twice, as one does who sees no answer at once: its file is attached once."""
    button = page.get_by_role("button", name=title).locator("visible=true").first
    await button.dblclick()
    await expect(page.locator(".composer .chips .chip:not(.loading)")).to_contain_text([name])
