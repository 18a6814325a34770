"""Office files made by code: by libraries, or part by part where no library would write such a file."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from docx.document import Document
    from openpyxl.workbook import Workbook
    from openpyxl.worksheet.worksheet import Worksheet
    from pptx.presentation import Presentation
    from pptx.slide import Slide

TYPES = {
    "docx": "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
    "xlsx": "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
    "pptx": "application/vnd.openxmlformats-officedocument.presentationml.presentation",
}
COMPOUND = bytes.fromhex("d0cf11e0a1b11ae1") + bytes(504)
"""The first bytes of old binary Office files and encrypted new ones."""

_RELATION = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
_WORD = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
_SHEET = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"


def saved(document: Document | Workbook | Presentation) -> bytes:
    content = io.BytesIO()
    document.save(content)
    return content.getvalue()


def new_document() -> Document:
    import docx

    return docx.Document()


def new_workbook(rows: Sequence[Sequence[Any]] = (), title: str = "Data") -> tuple[Workbook, Worksheet]:
    """A workbook with one sheet that holds the rows."""
    import openpyxl

    workbook = openpyxl.Workbook()
    sheet = workbook.worksheets[0]
    sheet.title = title
    for row in rows:
        sheet.append(list(row))
    return workbook, sheet


def new_presentation() -> Presentation:
    import pptx

    return pptx.Presentation()


def add_slide(deck: Presentation, layout: int, *texts: str) -> Slide:
    """A slide whose placeholders, the title first, hold the texts."""
    slide = deck.slides.add_slide(deck.slide_layouts[layout])
    for place, text in enumerate(texts):
        placeholder: Any = slide.placeholders[place]
        placeholder.text = text
    return slide


def zipped(parts: Mapping[str, str | bytes], *, compression: int = zipfile.ZIP_DEFLATED) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", compression) as archive:
        for name, part in parts.items():
            archive.writestr(name, part)
    return content.getvalue()


def with_parts(content: bytes, parts: Mapping[str, str | bytes]) -> bytes:
    """The Office file with these parts added or replaced."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        kept = {name: archive.read(name) for name in archive.namelist() if name not in parts}
    return zipped({**kept, **parts})


def word_file(body: str, parts: Mapping[str, str] | None = None, *, prolog: str = "") -> bytes:
    """A Word file of this body; `parts` are others by the kind of their relation, such as `footnotes`."""
    others = parts or {}
    root = f'{prolog}<w:document xmlns:w="{_WORD}" xmlns:r="{_RELATION}"><w:body>{body}</w:body></w:document>'
    relations = "".join(
        f'<Relationship Id="r{number}" Type="{_RELATION}/{kind}" Target="{kind}.xml"/>'
        for number, kind in enumerate(others)
    )
    return zipped(
        {
            "_rels/.rels": _relations(f'<Relationship Id="r" Type="{_RELATION}/officeDocument" Target="word/d.xml"/>'),
            "word/d.xml": root,
            "word/_rels/d.xml.rels": _relations(relations),
            **{
                f"word/{kind}.xml": f'<w:{kind} xmlns:w="{_WORD}">{content}</w:{kind}>'
                for kind, content in others.items()
            },
        }
    )


def sheet_file(rows: str, *, prolog: str = "", strings: str = "", after: str = "") -> bytes:
    """A workbook of one sheet, its rows (and shared strings) as they are in the file."""
    workbook = (
        f'<workbook xmlns="{_SHEET}" xmlns:r="{_RELATION}"><sheets><sheet name="Data" sheetId="1" r:id="r1"/></sheets>'
        "</workbook>"
    )
    relations = (
        f'<Relationship Id="r1" Type="{_RELATION}/worksheet" Target="sheet.xml"/>'
        f'<Relationship Id="r2" Type="{_RELATION}/sharedStrings" Target="strings.xml"/>'
    )
    return zipped(
        {
            "_rels/.rels": _relations(f'<Relationship Id="r" Type="{_RELATION}/officeDocument" Target="/xl/b.xml"/>'),
            "xl/b.xml": workbook,
            "xl/_rels/b.xml.rels": _relations(relations),
            "xl/strings.xml": f'<sst xmlns="{_SHEET}">{strings}</sst>',
            "xl/sheet.xml": f'{prolog}<worksheet xmlns="{_SHEET}"><sheetData>{rows}</sheetData>{after}</worksheet>',
        }
    )


def paragraph(text: str) -> str:
    return f"<w:p><w:r><w:t>{text}</w:t></w:r></w:p>"


def _relations(content: str) -> str:
    return (
        f'<Relationships xmlns="http://schemas.openxmlformats.org/package/2006/relationships">{content}</Relationships>'
    )
