"""The page's dialogs and its field: what they say, at the width of a desk and of a small phone."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.async_api import expect

from task.llm.scripted import says
from tests.support.web import PAGE_MARKS, person

pytestmark = PAGE_MARKS
SMALL = (360, 740)


async def test_a_small_phone_shows_the_keys_the_modes_and_the_figures_whole(tmp_path: Path) -> None:
    async with person(then=says("Hello!"), tmp_path=tmp_path, size=SMALL) as p:
        await p.asks("Hi")
        figures = p.answers.last.locator(".figures")
        await expect(figures).to_contain_text("out tokens")
        assert await figures.evaluate(IS_WHOLE)
        mode = p.page.get_by_label("Permissions")
        for value in ("default", "ask", "read_only"):
            await mode.select_option(value)
            assert await mode.evaluate(SHOWS_ITS_CHOICE), value
        assert await p.fits()
        await p.opens_the_list()
        await p.button("Help and language").click()
        dialog = p.page.get_by_role("dialog")
        await expect(dialog.locator("dt").last).to_have_text("?")
        await expect(dialog.locator("dt").first).to_have_text("Enter")
        await expect(dialog).not_to_contain_text("[object")


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
IS_WHOLE = """element => {
    const { left, right } = element.getBoundingClientRect();
    return element.scrollWidth <= element.clientWidth + 1 && left >= 0 && right <= innerWidth;
}"""
# A select clips a long choice without overflowing, so its text is measured in its own font.
SHOWS_ITS_CHOICE = """element => {
    const style = getComputedStyle(element);
    const pen = document.createElement("canvas").getContext("2d");
    pen.font = style.font;
    const room = element.clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight);
    return room >= pen.measureText(element.selectedOptions[0].textContent).width;
}"""
