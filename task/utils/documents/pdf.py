"""Reader of PDF."""

from __future__ import annotations

from task.utils.documents.model import Block, Extraction, NotText, Unreadable


def read_pdf(content: bytes, content_type: str = "") -> Extraction:
    import pypdfium2 as pdfium

    if b"%PDF-" not in content[:1024] and b" obj" not in content:
        raise NotText("this is not a PDF")
    try:
        document = pdfium.PdfDocument(content)
    except pdfium.PdfiumError as error:
        raise Unreadable("it is damaged, or needs a password") from error
    blocks = [
        Block(page.get_textpage().get_text_range().replace("\r\n", "\n"), page=number)
        for number, page in enumerate(document, 1)
    ]
    return Extraction(tuple(blocks))
