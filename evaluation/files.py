"""Turn Markdown of headings, paragraphs and tables into PDF and DOCX files with pages and styles."""

import re
from collections.abc import Iterator
from io import BytesIO
from typing import Any
from xml.sax.saxutils import escape

_HEADING = re.compile(r"(#{1,3}) (.+)")


def docx_of(markdown: str) -> bytes:
    """A Word document with heading styles and real tables."""
    from docx import Document

    document = Document()
    for part in _parts(markdown):
        if match := _HEADING.fullmatch(part):
            document.add_heading(match[2], len(match[1]))
        elif part.startswith("|"):
            _add_table(document, _rows(part))
        else:
            document.add_paragraph(part)
    saved = BytesIO()
    document.save(saved)
    return saved.getvalue()


def pdf_of(markdown: str) -> bytes:
    """A PDF of A4 pages with larger headings and ruled tables."""
    from reportlab.lib.pagesizes import A4
    from reportlab.platypus import SimpleDocTemplate

    saved = BytesIO()
    SimpleDocTemplate(saved, pagesize=A4, invariant=1).build(list(_flowables(markdown)))
    return saved.getvalue()


def _flowables(markdown: str) -> Iterator[Any]:
    from reportlab.lib.colors import black
    from reportlab.lib.styles import getSampleStyleSheet
    from reportlab.platypus import Paragraph, Spacer, Table

    styles = getSampleStyleSheet()
    for part in _parts(markdown):
        if match := _HEADING.fullmatch(part):
            yield Paragraph(escape(match[2]), styles[f"Heading{len(match[1])}"])
        elif part.startswith("|"):
            cells = [[Paragraph(escape(cell), styles["BodyText"]) for cell in row] for row in _rows(part)]
            yield Table(cells, repeatRows=1, style=[("GRID", (0, 0), (-1, -1), 0.5, black)])
        else:
            yield Paragraph(escape(part), styles["BodyText"])
        yield Spacer(1, 6)


def _parts(markdown: str) -> list[str]:
    return [part.strip() for part in markdown.split("\n\n") if part.strip()]


def _rows(table: str) -> list[list[str]]:
    lines = [line for line in table.splitlines() if not line.startswith("|---")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def _add_table(document: Any, rows: list[list[str]]) -> None:
    table = document.add_table(len(rows), len(rows[0]), style="Table Grid")
    for place, row in enumerate(rows):
        for column, cell in enumerate(row):
            table.cell(place, column).text = cell
