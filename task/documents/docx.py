"""Reader of Word documents."""

from __future__ import annotations

from collections.abc import Iterator

from task.documents.docx_styles import Numbering, Styles, number_of, outline_level
from task.documents.markdown import Piece, blocks_of, heading, item, table
from task.documents.model import Extraction
from task.documents.office import (
    Element,
    Package,
    attribute,
    child,
    each,
    is_on,
    local,
    open_package,
    value,
    whole_number,
)

_WIDEST_SPAN = 100
_WRAPPERS = frozenset({"sdt", "sdtContent", "customXml", "ins", "moveTo", "body", "AlternateContent", "Choice"})
_ROWS = frozenset({"sdt", "sdtContent", "customXml", "ins"})
_LEFT_OUT = frozenset({"pPr", "rPr", "instrText", "fldData", "Fallback", "annotationRef", "footnoteRef", "endnoteRef"})
_DELETED = frozenset({"del", "moveFrom"})
_SIGNS = {"tab": " ", "br": "\n", "cr": "\n", "noBreakHyphen": "-", "ptab": " "}
_NOTES = {"footnoteReference": "", "endnoteReference": "e"}
_WEB = ("http://", "https://", "mailto:")


def read_docx(content: bytes, content_type: str = "") -> Extraction:
    """Headings, paragraphs, lists and tables as Markdown; footnotes, page headers and footers at the end.

    Merged cells repeat their text; tracked deletions and hidden text are left out.
    """
    package = open_package(content)
    root = package.xml(package.main)
    body = _Body(package)
    pieces = [
        *body.pieces(root),
        *body.footnotes("footnotes", ""),
        *body.footnotes("endnotes", "e"),
        *body.margins("header"),
        *body.margins("footer"),
    ]
    return Extraction(blocks_of(pieces), tuple(body.notes()))


class _Body:
    """Reads the parts of one document; remembers what was left out, and text boxes until their paragraph ends."""

    def __init__(self, package: Package) -> None:
        self._package = package
        self._relations = package.relations(package.main)
        self._styles = Styles(package.first("styles"))
        self._numbering = Numbering(package.first("numbering"))
        self._deletions = 0
        self._boxes: list[Element] = []

    def pieces(self, parent: Element) -> Iterator[Piece]:
        for element in parent:
            name = local(element)
            if name == "p":
                yield from self._paragraph(element)
            elif name == "tbl":
                if made := table(self._rows(element)):
                    yield made
            elif name in _WRAPPERS:
                yield from self.pieces(element)

    def footnotes(self, kind: str, mark: str) -> Iterator[Piece]:
        for note in each(self._package.first(kind), "*"):
            if attribute(note, "type") in ("", "normal") and (text := self._text(note)):
                yield Piece("text", f"[^{mark}{attribute(note, 'id')}]: {text}")

    def margins(self, kind: str) -> Iterator[Piece]:
        roots = map(self._package.side, self._package.parts(kind))
        texts = [self._text(root) for root in roots if root is not None]
        for text in dict.fromkeys(filter(None, texts)):
            yield Piece("text", f"Page {kind}: {text}")

    def notes(self) -> list[str]:
        comments = self._package.first("comments")
        found = self._package.notes()
        if self._deletions:
            found.append(f"tracked deletions left out: {self._deletions}")
        if comments is not None and len(comments):
            found.append(f"comments left out: {len(comments)}")
        return found

    def _text(self, parent: Element) -> str:
        return "\n".join(_plain(piece) for piece in self.pieces(parent))

    def _paragraph(self, element: Element) -> Iterator[Piece]:
        if text := "".join(self._texts(element)).strip():
            yield self._shaped(text, child(element, "pPr"))
        boxes, self._boxes = self._boxes, []
        for box in boxes:
            yield from self.pieces(box)

    def _shaped(self, text: str, properties: Element | None) -> Piece:
        style = self._styles.named(value(properties, "pStyle"))
        number = number_of(properties) or style.number
        marker = self._numbering.marker(*number) if number else ""
        level = outline_level(properties) or style.level
        if level:
            return heading(f"{marker} {text}" if marker not in ("", "-") else text, level)
        return item(text, number[1], marker) if number and marker else Piece("text", text)

    def _texts(self, parent: Element) -> Iterator[str]:
        for element in parent:
            name = local(element)
            if name == "t":
                yield element.text or ""
            elif name in _DELETED:
                self._deletions += 1
            elif name in _SIGNS:
                yield _SIGNS[name]
            elif name in _NOTES:
                yield f"[^{_NOTES[name]}{attribute(element, 'id')}]"
            elif name == "txbxContent":
                self._boxes.append(element)
            elif name == "hyperlink":
                yield self._link(element)
            elif name == "docPr":
                yield _label(element)
            elif name not in _LEFT_OUT and not (name == "r" and is_on(child(element, "rPr"), "vanish")):
                yield from self._texts(element)

    def _link(self, element: Element) -> str:
        text = "".join(self._texts(element))
        relation = self._relations.get(attribute(element, "id"))
        if relation is None or not relation.target.startswith(_WEB) or text.strip() in ("", relation.target):
            return text
        return f"[{text}]({relation.target})"

    def _rows(self, element: Element) -> Iterator[list[str]]:
        above: list[str] = []
        for row in _nested(element, "tr"):
            if is_on(child(row, "trPr"), "del"):
                continue
            above = list(self._cells(row, above))
            yield above

    def _cells(self, row: Element, above: list[str]) -> Iterator[str]:
        column = min(whole_number(value(row, "trPr", "gridBefore"), 0), _WIDEST_SPAN)
        yield from [""] * column
        for cell in _nested(row, "tc"):
            properties = child(cell, "tcPr")
            merge = child(properties, "vMerge")
            width = min(whole_number(value(properties, "gridSpan"), 1), _WIDEST_SPAN)
            if merge is not None and attribute(merge, "val") != "restart" and column < len(above):
                text = above[column]
            else:
                text = self._text(cell)
            yield from [text] * width
            column += width


def _nested(element: Element, name: str) -> Iterator[Element]:
    for inner in element:
        if local(inner) == name:
            yield inner
        elif local(inner) in _ROWS:
            yield from _nested(inner, name)


def _plain(piece: Piece) -> str:
    if piece.kind == "table":
        return "\n".join("; ".join(filter(None, dict.fromkeys(row))) for row in piece.rows)
    return piece.text.lstrip("# ") if piece.kind == "heading" else piece.text


def _label(element: Element) -> str:
    label = attribute(element, "descr").strip()
    return f"[image: {label}]" if label else ""
