"""The page in the language of the browser, or in the one that was chosen."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.async_api import expect

from tests.support.note_product import notes, noting_model
from tests.support.web import PAGE_MARKS, person

pytestmark = PAGE_MARKS


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
