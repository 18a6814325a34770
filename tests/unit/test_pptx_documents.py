"""Reading presentations: slide by slide, titles, lists, tables and the speaker's notes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from task.documents.extract import extract
from tests.support.office import add_slide, new_presentation, saved, with_parts

if TYPE_CHECKING:
    from pptx.util import Length

TITLE, CONTENT, TITLE_ONLY, BLANK = 0, 1, 5, 6


def place() -> tuple[Length, Length, Length, Length]:
    from pptx.util import Inches

    return Inches(1), Inches(1), Inches(4), Inches(2)


def test_titles_lists_and_notes_of_every_slide() -> None:
    deck = new_presentation()
    add_slide(deck, TITLE, "Pumps", "A guide")
    slide = add_slide(deck, CONTENT, "Kinds", "Gear")
    body: Any = slide.placeholders[1]
    added = body.text_frame.add_paragraph()
    added.text, added.level = "for oil", 1
    notes: Any = slide.notes_slide.notes_text_frame
    notes.text = "Say hello"
    found = extract("deck.pptx", saved(deck))
    assert found.text == (
        "## Slide 1: Pumps\n\nA guide\n\n## Slide 2: Kinds\n\n- Gear\n  - for oil\n\nNotes: Say hello"
    )
    assert [block.page for block in found.blocks] == [1, 2]


def test_tables_with_merged_cells_groups_and_text_boxes() -> None:
    deck = new_presentation()
    slide = add_slide(deck, TITLE_ONLY, "Numbers")
    table = slide.shapes.add_table(3, 2, *place()).table
    for row, texts in enumerate((("Year", "Flow"), ("2025", "10"), ("", "11"))):
        for column, text in enumerate(texts):
            table.cell(row, column).text = text
    table.cell(1, 0).merge(table.cell(2, 0))
    group = slide.shapes.add_group_shape()
    group.shapes.add_textbox(*place()).text_frame.text = "in a group\vsecond line"
    assert extract("deck.pptx", saved(deck)).text == (
        "## Slide 1: Numbers\n\n| Year | Flow |\n| --- | --- |\n| 2025 | 10 |\n| 2025 | 11 |\n\nin a group\nsecond line"
    )


def test_a_hidden_slide_is_read_and_named() -> None:
    deck = new_presentation()
    add_slide(deck, BLANK)
    slide: Any = add_slide(deck, TITLE_ONLY, "Backup")
    slide.element.set("show", "0")
    found = extract("deck.pptx", saved(deck))
    assert found.text == "## Slide 1\n\n## Slide 2 (hidden): Backup"
    assert found.notes == ("hidden slides: 2",)


@pytest.mark.fault("office: macros")
def test_a_presentation_with_macros_is_read_without_them() -> None:
    deck = new_presentation()
    add_slide(deck, TITLE_ONLY, "Hi")
    content = with_parts(saved(deck), {"ppt/vbaProject.bin": b"x", "ppt/embeddings/sheet1.xlsx": b"PK"})
    found = extract("deck.pptm", content)
    assert found.text == "## Slide 1: Hi"
    assert found.notes == ("contains macros; they were not run", "embedded files not read: 1")


def test_a_presentation_without_slides_is_empty() -> None:
    assert extract("deck.pptx", saved(new_presentation())).is_empty
