"""The page by keyboard alone, on a small phone, and in the language of the browser."""

from pathlib import Path

import pytest
from playwright.async_api import Locator, expect

from task.llm.scripted import Reply, says, wants
from tests.support.note_product import notes, noting_model
from tests.support.upstream import Received
from tests.support.web import PAGE_MARKS, Person, person

pytestmark = PAGE_MARKS
SHOWN = sum("15" in str(number) for number in range(1, 151))


def _model(received: Received) -> Reply:
    last = received.messages[-1]
    if last["role"] == "user" and "table" in str(last["content"]):
        return wants("make_table", rows=150)
    return says("Made.") if "150 rows" in str(last["content"]) else noting_model(received)


async def test_a_whole_journey_needs_no_pointer(tmp_path: Path) -> None:
    async with person(then=_model, tmp_path=tmp_path) as p:
        keys = p.page.keyboard
        await keys.type("Note both")
        await keys.press("Enter")
        await expect(p.button("Approve")).to_have_count(2)
        await expect(p.button("Approve").last).to_be_enabled()
        await tabs_to(p, p.button("Approve").last, back=True)
        await keys.press("Enter")
        await expect(p.page.locator(".approval").last).to_contain_text("Approved – write_note")
        await tabs_to(p, p.button("Edit arguments"), back=True)
        await keys.press("Enter")
        await keys.press("Control+a")
        await keys.type('{"text": "typed"}')
        await tabs_to(p, p.button("Approve with these arguments"))
        await keys.press("Enter")
        await p.sees("Result:")
        await p.sees_the_end()

        await keys.press("/")
        await keys.type("A table")
        await keys.press("Enter")
        await p.sees("Made.")
        await p.sees_the_end()
        await tabs_to(p, p.cards.last.locator("summary"), back=True)
        await keys.press("Enter")
        table = p.page.get_by_role("region", name="Table towns.csv").last
        await tabs_to(p, p.page.get_by_label("Filter rows").last)
        await keys.type("no. 15")
        await expect(p.page.locator(".sheet-count").last).to_have_text(f"{SHOWN} of 150 rows")
        await tabs_to(p, table.get_by_role("button", name="people"))
        await keys.press("Enter")
        await keys.press("Enter")
        await expect(table.locator("tbody tr").first).to_contain_text("Town, no. 150")

        first = await p.is_in_a_conversation()
        await keys.press("Alt+n")
        await expect(p.field).to_be_focused()
        await keys.type("A table")
        await keys.press("Enter")
        await p.sees("Made.")
        assert await p.is_in_a_conversation() != first
        await keys.press("Alt+ArrowDown")
        await expect(p.page.locator(".question").first).to_contain_text("Note both")
        await tabs_to(p, p.button("Help and language"), back=True)
        await keys.press("Enter")
        await expect(p.page.get_by_role("dialog")).to_contain_text("write a message")
        await keys.press("Escape")
        await expect(p.button("Help and language")).to_be_focused()
        await tabs_to(p, p.page.get_by_role("link", name="Traces"), back=True)
        await keys.press("Enter")
        trace = p.page.locator(".traces-list a").first
        await expect(trace).to_be_visible()
        await tabs_to(p, trace)
        await keys.press("Enter")
        await tabs_to(p, p.page.locator("button.step").first)
        await keys.press("Enter")
        await expect(p.page.locator(".payload").filter(visible=True).first).to_be_visible()
    assert sorted(notes(tmp_path)) == ["2", "typed"]


async def tabs_to(p: Person, place: Locator, *, back: bool = False) -> None:
    """Press Tab until that element has the focus."""
    await expect(place).to_be_visible()
    for _ in range(80):
        if await place.evaluate("element => element === document.activeElement"):
            return
        await p.page.keyboard.press("Shift+Tab" if back else "Tab")
    raise AssertionError(f"{place} cannot be reached by the keyboard")


@pytest.mark.fault("page: a file over the limit, attached on the page or uploaded")
async def test_a_file_that_is_too_large_is_refused_where_it_was_attached(tmp_path: Path) -> None:
    async with person(then=says("Small."), tmp_path=tmp_path, limits={"max_upload_bytes": 2000}) as p:
        files = [{"name": name, "mimeType": "text/plain", "buffer": b"x" * size} for name, size in SIZES.items()]
        await p.page.get_by_label("Files", exact=True).set_input_files(files)  # type: ignore[list-item]
        alert = p.page.get_by_role("alert").filter(visible=True)
        await expect(alert).to_have_text(
            "large.txt is 3 kB. The largest file that can be attached is 2 kB: attach a smaller one, or a part of it."
        )
        await expect(p.page.locator("li.chip:not(.loading)")).to_have_text(["small.txt1 kB"])
        await p.asks("What is this?")
        await p.sees("Small.")


SIZES = {"large.txt": 3000, "small.txt": 1000}


async def test_the_page_speaks_the_browsers_language_until_another_is_chosen(tmp_path: Path) -> None:
    async with person(then=noting_model, tmp_path=tmp_path, locale="de-AT") as p:
        html = p.page.locator("html")
        await expect(html).to_have_attribute("lang", "de")
        await expect(p.page.get_by_role("heading", name="Was kann ich für Sie tun?")).to_be_visible()
        await p.page.keyboard.type("Note both")
        await p.page.keyboard.press("Enter")
        await expect(p.page.get_by_role("heading", name="2 Aufrufe warten auf Ihre Entscheidung")).to_be_visible()
        await p.button("Freigeben").first.click()
        await expect(p.page.get_by_role("heading", name="1 Aufruf wartet auf Ihre Entscheidung")).to_be_visible()
        await p.button("Hilfe und Sprache").click()
        await p.page.get_by_label("Sprache dieser Seite").select_option("zh")
        await expect(html).to_have_attribute("lang", "zh-Hans")
        await expect(p.page.get_by_role("heading", name="允许运行 write_note 吗？")).to_be_visible()
        await p.page.reload()
        await p.button("批准").click()
        await expect(p.page.locator(".answer .prose").last).to_contain_text("Result:")
        await p.button("帮助与语言").click()
        await p.page.get_by_label("页面语言").select_option("uk")
        await expect(html).to_have_attribute("lang", "uk")
        await expect(p.button("Довідка й мова")).to_be_visible()
    assert sorted(notes(tmp_path)) == ["1", "2"]


@pytest.mark.fault("page: a browser in a language without a catalogue")
async def test_numbers_plurals_and_unknown_languages(tmp_path: Path) -> None:
    async with person(tmp_path=tmp_path, locale="fr-FR") as p:
        await expect(p.page.get_by_role("heading", name="What can I do for you?")).to_be_visible()
        assert [path for path in await p.page.evaluate(LOADED) if "/lang/" in path] == []  # English costs nothing
        for language, written in ROWS.items():
            await p.page.evaluate("language => localStorage.setItem('language', language)", language)
            await p.page.reload()
            await expect(p.page.locator("html")).to_have_attribute("lang", language)
            assert await p.page.evaluate(WRITTEN) == written


LOADED = "performance.getEntriesByType('resource').map(entry => new URL(entry.name).pathname)"
ROWS = {
    "en": ["1 row", "3 rows", "12,345 rows", "2.5 rows"],
    "de": ["1 Zeile", "3 Zeilen", "12.345 Zeilen", "2,5 Zeilen"],
    "uk": ["1 рядок", "3 рядки", "12\u00a0345 рядків", "2,5 рядка"],
}
WRITTEN = """async () => {
    const { t } = await import("/static/i18n.js");
    return [1, 3, 12345, 2.5].map((count) => t("{count} row | {count} rows", { count }));
}"""
