"""What an answer carries can be opened: citations, tables, files, and what Python made; also in older answers."""

from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Locator, expect

from task.llm.scripted import says, wants
from tests.support.interpreter import TOKEN, running_interpreter
from tests.support.web import PAGE_MARKS, Person, person

pytestmark = PAGE_MARKS

PASSAGE = "Tokyo is the largest city of the world."


async def test_a_number_in_the_text_opens_the_passage_it_cites(tmp_path: Path, size: tuple[int, int]) -> None:
    text = "Tokyo [1], Delhi [2, 1], not `[1]`, [a link [1]](https://cities.example) and [7]."
    async with person(wants("show_things", what="cities"), says(text), tmp_path=tmp_path, size=size) as p:
        await p.asks("Show me https://cities.example")
        async for _ in p.before_and_after_a_reload():
            await expect(p.cited).to_have_count(2)
            await expect(p.prose).to_have_text("Tokyo 1, Delhi [2]1, not [1], a link [1] and [7].")
            await p.cited.first.click()
            await expect(p.page.get_by_role("dialog")).to_contain_text(PASSAGE)
            await p.button("Close").last.click()
            await p.cited.last.focus()
            await p.page.keyboard.press("Enter")
            await expect(p.page.get_by_role("dialog")).to_contain_text(PASSAGE)
            await p.page.keyboard.press("Escape")
            await expect(p.cited.last).to_be_focused()
        await expect(p.cited.first).to_have_accessible_name("Source 1: cities.pdf, page 3")
        await expect(p.page.locator(".sources .chip")).to_have_text(["[1] cities.pdf, page 3"])
        await p.page.locator(".sources .chip").click()
        await expect(p.page.get_by_role("dialog")).to_contain_text(PASSAGE)


async def test_a_table_made_by_a_tool_scrolls_sorts_and_filters(tmp_path: Path, size: tuple[int, int]) -> None:
    async with person(wants("make_table", rows=1234), says("Made."), tmp_path=tmp_path, size=size) as p:
        await p.asks("Make a table")
        await p.cards.first.locator("summary").click()
        table = p.page.get_by_role("region", name="Table towns.csv").first
        await shows_towns(table, 100)
        count, heads = p.page.locator(".sheet-count").first, table.get_by_role("columnheader")
        await expect(count).to_have_text("1,234 rows")
        await expect(p.page.get_by_role("button", name="Download towns.csv").first).to_be_visible()
        assert await table.evaluate("frame => frame.scrollHeight > frame.clientHeight && frame.clientHeight < 400")
        await table.evaluate("frame => frame.scrollTo(0, frame.scrollHeight)")
        await expect(table.locator("tbody tr")).to_have_count(200)

        await table.get_by_role("button", name="people").press("Enter")
        await table.get_by_role("button", name="people").press("Enter")
        await expect(heads.nth(1)).to_have_attribute("aria-sort", "descending")
        await expect(table.locator("tbody tr").first).to_contain_text("1234000")
        await p.page.get_by_label("Filter rows").first.fill("NO. 12 town")
        await expect(count).to_have_text("67 of 1,234 rows")
        await expect(table.locator("tbody tr").first).to_contain_text("Town, no. 1234")
        await p.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        await p.button("Copy as CSV").first.click()
        await expect(p.page.get_by_role("status").filter(has_text="Copied")).to_have_count(1)
        copied = str(await p.page.evaluate("navigator.clipboard.readText()"))
        assert copied.startswith('town,people,note\r\n"Town, no. 1234",1234000,')
        assert copied.endswith(",'=1+1")
        assert len(copied.splitlines()) == 68
        await p.page.get_by_label("Filter rows").first.fill("nowhere")
        await expect(count).to_have_text("0 of 1,234 rows")
        assert await p.fits()


async def shows_towns(table: Locator, rows: int) -> None:
    await expect(table.get_by_role("columnheader")).to_have_text(["town", "people", "note"])
    await expect(table.locator("tbody tr")).to_have_count(rows)
    await expect(table.locator("tbody tr").first.get_by_role("cell")).to_have_text(
        ["Town, no. 1", "1000", "<img src=x onerror=harmed()>"]
    )
    await expect(table.locator("img")).to_have_count(0)


TABLES = {
    'a,b\r\n"1 ""one"" 1","x\ny"\r\n': [["a", "b"], ['1 "one" 1', "x\ny"]],
    "a;b\n1,5;2\n\n3;4": [["a", "b"], ["1,5", "2"], ["3", "4"]],
    '"a,;,;"\tb\n1\t2': [["a,;,;", "b"], ["1", "2"]],
    "one column\nonly": [["one column"], ["only"]],
    'open "quote\n"never closed,1\n2': [['open "quote'], ["never closed,1\n2"]],
    "": [],
}


@pytest.mark.fault("page: tables with any separator, encoding, decimal mark, or a quote that never closes")
async def test_separated_values_are_read_as_they_are_written(tmp_path: Path) -> None:
    async with person(tmp_path=tmp_path) as p:
        for text, rows in TABLES.items():
            assert await p.page.evaluate(READ, text) == rows
        assert await p.page.evaluate(DECODED, list("ä,€".encode("utf-16"))) == "ä,€"
        assert await p.page.evaluate(DECODED, list("ä,€".encode()[:-1])) == "ä,"  # cut within a character
        assert await p.page.evaluate(DECODED, list("ä,€".encode("cp1252"))) == "ä,€"
        assert await p.page.evaluate(SHOWN, [",".join("abcdefgh" * 10), "1\n" * 101]) == [40, 100]
        for texts, numbers in NUMBERS:
            assert await p.page.evaluate(READ_NUMBERS, texts) == numbers, texts


READ = "async (text) => (await import('/static/sheet.js')).rowsOf(text)"
DECODED = "async (bytes) => (await import('/static/sheet.js')).decoded(new Uint8Array(bytes))"
SHOWN = """async (lines) => {
    const [, frame, note] = (await import('/static/sheet.js')).sheet(lines.join("\\n"), true, "wide.csv");
    if (note.textContent !== "40 more columns in the file") throw new Error(note.textContent);
    return [frame.querySelectorAll("th").length, frame.querySelectorAll("tbody tr").length];
}"""
NUMBERS: list[tuple[list[str], list[float] | None]] = [
    (["10", "9", "", "-1"], [10, 9, -1]),
    (["1,234.5", "12"], [1234.5, 12]),
    (["1.234,5", "1.000"], [1234.5, 1000]),
    (["1.234.567", "2,5"], [1234567, 2.5]),
    (["0,5", "1,25"], [0.5, 1.25]),
    (["1,234", "2,000"], [1234, 2000]),  # as in the language of the page
    (["1 234 %", "−7 %", "€ 3"], [1234, -7, 3]),
    (["1e3", "2"], [1000, 2]),
    (["2026-01-31"], None),
    (["1.2.3.4", "a"], None),
    (["", ""], None),
]
READ_NUMBERS = """async (texts) => {
    const read = (await import('/static/grid.js')).numbersOf(texts.map((text) => [text]), 0);
    return read && texts.filter(Boolean).map(read);
}"""

FILES = {
    "people.csv": ("text/csv", 'name;age\n"Ada; Countess";36\nZoë;41\n'.encode()),
    "notes.txt": ("text/plain", b"First line <b>not bold</b>\n" + b"more\n" * 30_000),
    "old.csv": ("text/csv", "Stra\u00dfe,Nr\nM\u00fchlweg,7\n".encode("cp1252")),
    "data.bin": ("application/octet-stream", bytes(range(256))),
}


async def test_attached_files_open_where_they_stand(tmp_path: Path, size: tuple[int, int]) -> None:
    async with person(says("Seen."), tmp_path=tmp_path, size=size) as p:
        picked = [{"name": name, "mimeType": kind, "buffer": content} for name, (kind, content) in FILES.items()]
        await p.page.get_by_label("Files", exact=True).set_input_files(picked)  # type: ignore[arg-type]
        await p.page.evaluate(PICTURE)
        await p.page.evaluate(DROPPED)
        await expect(p.page.locator("li.chip:not(.loading)")).to_have_count(6)
        await p.asks("Look")
        async for _ in p.before_and_after_a_reload():
            await expect(p.page.locator(".question .thumbnail img")).to_be_visible()
            await expect(p.page.locator(".question p")).to_have_text("Look")
            dialog = await opened(p, "people.csv")
            await expect(dialog.get_by_role("row")).to_have_text(["nameage", "Ada; Countess36", "Zoë41"])
            dialog = await opened(p, "old.csv")
            await expect(dialog.get_by_role("row")).to_have_text(["StraßeNr", "Mühlweg7"])
            dialog = await opened(p, "notes.txt")
            await expect(dialog).to_contain_text("First line <b>not bold</b>")
            await expect(dialog).to_contain_text("This is the beginning of a longer file.")
            dialog = await opened(p, "data.bin")
            await expect(dialog.get_by_role("button", name="Download data.bin")).to_be_visible()
            await p.page.keyboard.press("Escape")
    assert "two.txt" in str(p.upstream.requests[0].messages)


async def opened(p: Person, name: str) -> Locator:
    dialog = p.page.get_by_role("dialog")
    if await dialog.count():
        await p.page.keyboard.press("Escape")
        await expect(dialog).to_have_count(0)
    await p.page.locator(".question").get_by_role("button", name=name, exact=True).click()
    return dialog


PICTURE = """async () => {
    const canvas = new OffscreenCanvas(40, 30);
    canvas.getContext("2d").fillRect(0, 0, 40, 30);
    const data = new DataTransfer();
    data.items.add(new File([await canvas.convertToBlob()], "dot.png", { type: "image/png" }));
    document.querySelector("#message").dispatchEvent(
        new ClipboardEvent("paste", { bubbles: true, cancelable: true, clipboardData: data }));
}"""


DROPPED = """() => {
    const data = new DataTransfer();
    data.items.add(new File(["two"], "two.txt", { type: "text/plain" }));
    document.querySelector("main").dispatchEvent(
        new DragEvent("drop", { bubbles: true, cancelable: true, dataTransfer: data }));
}"""


async def test_an_answer_whose_made_up_address_became_text_shows_its_figures(tmp_path: Path) -> None:
    made_up = says("See [this](http://made-up.example/p).")
    async with person(wants("show_things", what="From outside."), says("Shown."), made_up, tmp_path=tmp_path) as p:
        await p.asks("Hi")
        await p.asks("And now?")
        await expect(p.answers.last).to_contain_text("made-up[.]example")
        await p.page.reload()
        await expect(p.answers.last).to_contain_text("made-up[.]example")
        await expect(p.page.locator(".figures", has_text="out tokens ·")).to_have_count(2)


CODE = """
import matplotlib.pyplot as plt, pandas as pd
plt.plot([1, 3, 2]); plt.show()
pd.DataFrame({"town": ["Tokyo"], "people": [37]}).to_csv("towns.csv", index=False)
figure = {"data": [{"type": "bar", "x": ["a", "b"], "y": [1, 2]}], "layout": {}}
display({"application/vnd.plotly.v1+json": figure}, raw=True)
"""


async def test_what_code_makes_is_shown_also_after_a_reload(tmp_path: Path) -> None:
    script = (wants("execute_code", code=CODE), says("Here it is."))
    with running_interpreter(tmp_path / "interpreter", "--spares", "0") as server:
        settings: dict[str, Any] = {"pyinterpreter_mcp_url": server.url, "mcp_token": TOKEN}
        async with person(*script, tmp_path=tmp_path, **settings) as p:
            await p.asks("Plot it")
            async for _ in p.before_and_after_a_reload():
                answer = p.answers.last
                await expect(answer.locator(".picture img").last).to_be_visible()
                await expect(answer.locator(".chart .main-svg").last).to_be_visible()
                await expect(answer.get_by_role("cell", name="Tokyo").last).to_be_visible()
                await expect(answer.locator(".trouble")).to_have_count(0)
            width = await p.page.locator(".picture img").last.evaluate("image => image.naturalWidth")
    assert width > 100
