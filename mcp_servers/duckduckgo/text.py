"""The readable text of what the web sent."""

import json
import re
import unicodedata
from datetime import UTC, datetime

MAX_PDF_PAGES = 200
_MANY_BLANK_LINES = re.compile(r"\n{3,}")
_CHARSET = re.compile(rb"charset\s*+=\s*+[\"']?+\s*+([a-zA-Z0-9_:.-]+)", re.IGNORECASE)


class _Visible(dict[int, int | None]):
    """A table for `str.translate` that looks at a character when it first meets it."""

    def __missing__(self, code: int) -> int | None:
        kept = chr(code) in "\t\n" or unicodedata.category(chr(code)) not in ("Cc", "Cf", "Co", "Cs")
        self[code] = code if kept else None
        return self[code]


_VISIBLE = _Visible()


def cleaned(text: str) -> str:
    """The text without control, formatting and zero-width characters, which could hide something from its reader."""
    return _MANY_BLANK_LINES.sub("\n\n", text.replace("\r\n", "\n").translate(_VISIBLE)).strip()


def utc_now() -> str:
    """The time, to the minute: what the web says holds at that time."""
    return f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"


def page_text(body: bytes, kind: str, charset: str | None) -> tuple[str, str]:
    """Title (may be empty) and readable text of a body of that media type; blocks."""
    if kind == "application/pdf":
        return "", _pdf(body)
    text = _decoded(body, charset)
    if kind in ("text/html", "application/xhtml+xml"):
        return _html(text)
    if kind.endswith("json"):
        return "", _json(text)
    return "", cleaned(text)


def _html(page: str) -> tuple[str, str]:
    import trafilatura

    if not page.strip():
        return "", ""
    tree = trafilatura.load_html(page)
    if tree is None:
        return "", ""
    title = cleaned(" ".join(tree.xpath("string(//title)").split()))
    markdown = trafilatura.extract(
        tree, output_format="markdown", include_tables=True, include_links=True, include_comments=False
    )
    return title[:300], cleaned(markdown or _all_text(page))


def _all_text(page: str) -> str:
    from bs4 import BeautifulSoup

    soup = BeautifulSoup(page, "lxml")
    for element in soup(["script", "style", "noscript", "template", "svg"]):
        element.decompose()
    return soup.get_text("\n", strip=True)


def _json(text: str) -> str:
    try:
        return cleaned(json.dumps(json.loads(text), ensure_ascii=False, indent=1))
    except (ValueError, RecursionError):
        return cleaned(text)


def _pdf(body: bytes) -> str:
    import pypdfium2

    with pypdfium2.PdfDocument(body) as document:
        pages = range(min(len(document), MAX_PDF_PAGES))
        return cleaned("\n\n".join(document[number].get_textpage().get_text_bounded() for number in pages))


def _decoded(body: bytes, charset: str | None) -> str:
    named = charset or next((found.decode() for found in _CHARSET.findall(body[:2048])), None)
    for encoding in (named, "utf-8"):
        try:
            if encoding:
                return body.decode(encoding)
        except (LookupError, UnicodeDecodeError):
            continue
    from charset_normalizer import from_bytes

    best = from_bytes(body[:200_000]).best()
    return body.decode(best.encoding if best else "utf-8", "replace")
