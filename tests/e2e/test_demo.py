"""The first minutes without a model: the guided demo on the page and at the terminal, with tools that really run."""

from pathlib import Path

from playwright.async_api import Page, expect

from task.llm.demo import SAMPLES
from tests.support.browser import NARROW, Visit, visit
from tests.support.up import RunningProduct, running_product
from tests.support.web import PAGE_MARKS

pytestmark = PAGE_MARKS

SHOWN = ("details.card:has-text(': sample-sales.csv')", ".cited, [aria-label^='Source']", ".chart .plot-container")


async def test_the_demo_answers_about_the_samples_at_the_terminal_and_on_the_page(tmp_path: Path) -> None:
    async with running_product(tmp_path) as product:
        await three_answers_at_the_terminal(product)
        async with visit(product.ready["agent"], NARROW) as visited:
            await three_answers_on_the_page(visited)


async def three_answers_at_the_terminal(product: RunningProduct) -> None:
    answer = await product.ask("", "--demo", "--save", "made")
    assert answer.code == 0, answer.err
    places = [answer.out.index(sample.words) for sample in SAMPLES]
    assert places == sorted(places)
    assert answer.out.count("I am a scripted demo, not a real model") == len(SAMPLES)
    for number, sample in enumerate(SAMPLES, 1):
        assert f"{number} of 3: {sample.question} ({sample.path})" in answer.err
        assert f"✓ {sample.tool} " in answer.err
    assert list((product.home / "made").glob("chart*.json"))


async def three_answers_on_the_page(visited: Visit) -> None:
    page = visited.page
    await expect(page.get_by_role("note")).to_contain_text("no model writes them")
    await expect(page.locator(".ideas button:visible")).to_have_count(len(SAMPLES))
    for sample, shown in zip(SAMPLES, SHOWN, strict=True):
        await chosen(page, sample.title, sample.name)
        await page.get_by_role("button", name="Send", exact=True).click()
        answer = page.locator("article.answer").last
        await expect(answer).to_contain_text("these words were written beforehand")
        await expect(answer.locator(shown).first).to_be_visible()
    assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "nothing is cut off on a phone"
    assert (visited.asked, visited.faults) == ({"127.0.0.1"}, [])


async def chosen(page: Page, title: str, name: str) -> None:
    """Press a sample twice, as one does who sees no answer at once: its file is attached once."""
    button = page.get_by_role("button", name=title).locator("visible=true").first
    await button.dblclick()
    await expect(page.locator(".composer .chips .chip:not(.loading)")).to_contain_text([name])
