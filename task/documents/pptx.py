"""Reader of PowerPoint presentations."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from task.documents.model import Block, Extraction, Piece, blocks_of, heading, item, table
from task.documents.office import Element, Package, attribute, child, each, local, open_package, whole_number

_TITLES = frozenset({"title", "ctrTitle"})
_REPEATED = frozenset({"dt", "ftr", "hdr", "sldNum", "sldImg"})
_LISTS = frozenset({"body", "obj"})


def read_pptx(content: bytes, content_type: str = "") -> Extraction:
    """Every slide under its number and title: texts, lists, tables, labels of pictures, the speaker's notes."""
    package = open_package(content)
    blocks: list[Block] = []
    hidden: list[str] = []
    relations = package.relations(package.main)
    slides: list[str] = []
    for element in package.xml(package.main).iterfind("{*}sldIdLst/{*}sldId"):
        # An id has two attributes named "id": its own number, and the relation's, which has a namespace.
        ids = [str(found) for key, found in element.items() if str(key).endswith("}id")]
        relation = relations.get(ids[0]) if ids else None
        if relation is not None and relation.target in package:
            slides.append(relation.target)
    for number, part in enumerate(slides, 1):
        root = package.side(part)
        if root is None:
            blocks += blocks_of([heading(f"Slide {number}", 2), Piece("text", "(damaged)")], number)
            continue
        is_hidden = attribute(root, "show") in ("0", "false")
        hidden += [str(number)] * is_hidden
        name = f"Slide {number}{' (hidden)' if is_hidden else ''}"
        blocks += blocks_of(_Slide(package, part).pieces(root, name), number)
    notes = package.notes()
    if hidden:
        notes.append(f"hidden slides: {', '.join(hidden)}")
    return Extraction(tuple(blocks), tuple(notes))


class _Slide:
    def __init__(self, package: Package, part: str) -> None:
        self._package = package
        self._part = part
        self._relations = package.relations(part)
        self._title = ""

    def pieces(self, root: Element, name: str) -> Iterator[Piece]:
        found = list(self._shapes(each(root, "{*}cSld/{*}spTree/*")))
        yield heading(f"{name}: {self._title}" if self._title else name, 2)
        yield from found
        for part in self._package.parts("notesSlide", self._part):
            shapes = each(self._package.side(part), "{*}cSld/{*}spTree/{*}sp")
            if text := "\n".join(filter(None, (_body_text(shape) for shape in shapes if _kind(shape) == "body"))):
                yield Piece("text", f"Notes: {text}")

    def _shapes(self, shapes: Iterable[Element]) -> Iterator[Piece]:
        for shape in shapes:
            name = local(shape)
            if name == "grpSp":
                yield from self._shapes(shape)
            elif name == "AlternateContent":
                yield from self._shapes(next(iter(shape), shape))
            elif name == "sp":
                yield from self._texts(shape)
            elif name == "graphicFrame":
                for element in shape.iterfind("{*}graphic/{*}graphicData/*"):
                    if local(element) == "tbl" and (made := table(_rows(element))):
                        yield made
                    relation = self._relations.get(attribute(element, "dm"))
                    if relation is not None and relation.target in self._package:
                        diagram = self._package.side(relation.target)
                        yield from (item(text, 0) for part in each(diagram, ".//{*}p") if (text := _text(part)))
            elif name == "pic" and (label := attribute(child(shape, "nvPicPr", "cNvPr"), "descr").strip()):
                yield Piece("text", f"[image: {label}]")

    def _texts(self, shape: Element) -> Iterator[Piece]:
        kind = _kind(shape)
        if kind in _TITLES:
            self._title = " ".join(_body_text(shape).split())
        if kind in _TITLES or kind in _REPEATED:
            return
        for paragraph in shape.iterfind("{*}txBody/{*}p"):
            if not (text := _text(paragraph)):
                continue
            properties = child(paragraph, "pPr")
            marks = {local(part) for part in each(properties, "*")}
            if "buNone" in marks or not (kind in _LISTS or marks & {"buChar", "buAutoNum"}):
                yield Piece("text", text)
            else:
                yield item(text, whole_number(attribute(properties, "lvl"), 0))


def _kind(shape: Element) -> str:
    place = child(shape, "nvSpPr", "nvPr", "ph")
    return "" if place is None else attribute(place, "type") or "obj"


def _text(paragraph: Element) -> str:
    texts = ("\n" if local(part) == "br" else part.text or "" for part in paragraph.iter("{*}t", "{*}br"))
    return "".join(texts).replace("\v", "\n").strip()


def _body_text(shape: Element) -> str:
    return "\n".join(filter(None, map(_text, shape.iterfind("{*}txBody/{*}p"))))


def _rows(element: Element) -> Iterator[list[str]]:
    above: list[str] = []
    for row in element.iterfind("{*}tr"):
        cells: list[str] = []
        for cell in row.iterfind("{*}tc"):
            if attribute(cell, "hMerge") in ("1", "true") and cells:
                cells.append(cells[-1])
            elif attribute(cell, "vMerge") in ("1", "true") and len(cells) < len(above):
                cells.append(above[len(cells)])
            else:
                cells.append(_body_text(cell))
        above = cells
        yield cells
