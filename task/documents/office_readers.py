"""Readers of Word documents and PowerPoint presentations."""

from collections.abc import Iterable, Iterator

from task.documents.model import Block, Extraction, Piece, Repeats, blocks_of, heading, item, table
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
_DEEPEST_CHAIN = 20
_WRAPPERS = frozenset({"sdt", "sdtContent", "customXml", "ins", "moveTo", "body", "AlternateContent", "Choice"})
_ROWS = frozenset({"sdt", "sdtContent", "customXml", "ins"})
_LEFT_OUT = frozenset({"pPr", "rPr", "instrText", "fldData", "Fallback", "annotationRef", "footnoteRef", "endnoteRef"})
_DELETED = frozenset({"del", "moveFrom"})
_SIGNS = {"tab": " ", "br": "\n", "cr": "\n", "noBreakHyphen": "-", "ptab": " "}
_NOTES = {"footnoteReference": "", "endnoteReference": "e"}
_Number = tuple[str, int]  # a list and a level in it
_WEB = ("http://", "https://", "mailto:")
_ROMAN = (
    *((1000, "m"), (900, "cm"), (500, "d"), (400, "cd"), (100, "c"), (90, "xc"), (50, "l")),
    *((40, "xl"), (10, "x"), (9, "ix"), (5, "v"), (4, "iv"), (1, "i")),
)


def read_docx(content: bytes, content_type: str = "") -> Extraction:
    """Headings, paragraphs, lists and tables as Markdown; footnotes, page headers and footers at the end.

    Merged cells repeat their text; tracked deletions and hidden text are left out.
    """
    package = open_package(content)
    root = package.xml(package.main)
    body = _DocxBody(package)
    pieces = [*body.pieces(root), *body.footnotes("footnotes", ""), *body.footnotes("endnotes", "e")]
    pieces += [*body.margins("header"), *body.margins("footer")]
    return Extraction(blocks_of(pieces), tuple(body.notes()))


class _DocxBody:
    """Reads the parts of one document; remembers what was left out, and text boxes until their paragraph ends."""

    def __init__(self, package: Package) -> None:
        self._package = package
        self._relations = package.relations(package.main)
        self._styles = _Styles(package.first("styles"))
        self._numbering = _Numbering(package.first("numbering"))
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
        texts: list[str] = []
        for piece in self.pieces(parent):
            if piece.kind == "table":
                texts += ["; ".join(filter(None, dict.fromkeys(row))) for row in piece.rows]
            else:
                texts.append(piece.text.lstrip("# ") if piece.kind == "heading" else piece.text)
        return "\n".join(texts)

    def _paragraph(self, element: Element) -> Iterator[Piece]:
        if text := "".join(self._texts(element)).strip():
            properties = child(element, "pPr")
            style_level, style_number = self._styles.named(value(properties, "pStyle"))
            number = _number_of(properties) or style_number
            marker = self._numbering.marker(*number) if number else ""
            if level := _outline_level(properties) or style_level:
                yield heading(f"{marker} {text}" if marker not in ("", "-") else text, level)
            else:
                yield item(text, number[1], marker) if number and marker else Piece("text", text)
        boxes, self._boxes = self._boxes, []
        for box in boxes:
            yield from self.pieces(box)

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
                text, relation = "".join(self._texts(element)), self._relations.get(attribute(element, "id"))
                target = relation.target if relation else ""
                yield f"[{text}]({target})" if target.startswith(_WEB) and text.strip() not in ("", target) else text
            elif name == "docPr":
                label = attribute(element, "descr").strip()
                yield f"[image: {label}]" if label else ""
            elif name not in _LEFT_OUT and not (name == "r" and is_on(child(element, "rPr"), "vanish")):
                yield from self._texts(element)

    def _rows(self, element: Element) -> Iterator[list[str]]:
        above: list[str] = []
        for row in _nested(element, "tr"):
            if is_on(child(row, "trPr"), "del"):
                continue
            cells = [""] * min(whole_number(value(row, "trPr", "gridBefore"), 0), _WIDEST_SPAN)
            for cell in _nested(row, "tc"):
                properties = child(cell, "tcPr")
                merge = child(properties, "vMerge")
                continues = merge is not None and attribute(merge, "val") != "restart" and len(cells) < len(above)
                text = "".join(self._package.repeats.of(above[len(cells)])) if continues else self._text(cell)
                width = min(whole_number(value(properties, "gridSpan"), 1), _WIDEST_SPAN)
                cells += [text, *self._package.repeats.of(text, width - 1)]
            above = cells
            yield cells


def _nested(element: Element, name: str) -> Iterator[Element]:
    for inner in element:
        if local(inner) == name:
            yield inner
        elif local(inner) in _ROWS:
            yield from _nested(inner, name)


class _Styles:
    """Styles of paragraphs by id, each with what it inherits from the styles it is based on."""

    def __init__(self, root: Element | None) -> None:
        self._elements = {attribute(element, "styleId"): element for element in each(root, "{*}style")}
        self._known: dict[str, tuple[int, _Number | None]] = {}

    def named(self, style_id: str) -> tuple[int, _Number | None]:
        """A heading's level, else 0, and the list and its level, if the style has one."""
        if style_id not in self._known:
            level, number, ancestor = 0, None, style_id
            for _ in range(_DEEPEST_CHAIN):
                element = self._elements.get(ancestor)
                if element is None:
                    break
                name = value(element, "name").lower()
                word, _, ending = name.partition(" ")
                named = whole_number(ending, 0) if word == "heading" else int(name == "title")
                level = level or named or _outline_level(child(element, "pPr"))
                if number is None and (number := _number_of(child(element, "pPr"))):
                    depth = name.rpartition(" ")[2]
                    if number[1] == 0 and depth in ("2", "3", "4", "5"):
                        number = (number[0], int(depth) - 1)  # "List Bullet 2" is the first level of a list of its own
                ancestor = value(element, "basedOn")
            self._known[style_id] = level, number
        return self._known[style_id]


def _number_of(properties: Element | None) -> _Number | None:
    # The list a paragraph belongs to and its level in it; None outside of lists.
    found = child(properties, "numPr")
    list_id = value(found, "numId")
    return (list_id, whole_number(value(found, "ilvl"), 0)) if list_id else None


def _outline_level(properties: Element | None) -> int:
    # A heading's level, counted from 1; 0 for body text.
    level = whole_number(value(properties, "outlineLvl"), 9)
    return level + 1 if level < 9 else 0


class _Numbering:
    """Counts the entries of every list and renders their numbers as Word shows them."""

    def __init__(self, root: Element | None) -> None:
        abstract = {attribute(element, "abstractNumId"): element for element in each(root, "{*}abstractNum")}
        self._levels: dict[str, list[Element]] = {}
        self._counts: dict[str, list[int]] = {}
        for element in each(root, "{*}num"):
            found = abstract.get(value(element, "abstractNumId"))
            self._levels[attribute(element, "numId")] = list(each(found, "{*}lvl"))

    def marker(self, list_id: str, level: int) -> str:
        """The marker of the next entry: "-", or a number such as `2.1.`; "" when the list shows none."""
        levels = self._levels.get(list_id, [])
        level = min(level, len(levels) - 1)
        if level < 0:
            return "-" if list_id != "0" else ""
        shape = value(levels[level], "numFmt")
        if shape in ("bullet", "none", ""):
            return "-" if shape == "bullet" else ""
        counts = self._counts.setdefault(list_id, [])
        del counts[level + 1 :]
        while len(counts) <= level:
            start = whole_number(value(levels[len(counts)], "start"), 1)
            counts.append(start - (len(counts) == level))
        counts[level] += 1
        text = value(levels[level], "lvlText") or f"%{level + 1}."
        for index, count in enumerate(counts):
            text = text.replace(f"%{index + 1}", _numeral(count, value(levels[index], "numFmt")))
        return text.strip()


def _numeral(count: int, shape: str) -> str:
    text = str(count)
    if shape in ("lowerLetter", "upperLetter") and count > 0:
        text = chr(97 + (count - 1) % 26) * ((count - 1) // 26 + 1)
    elif shape in ("lowerRoman", "upperRoman") and 0 < count < 4000:
        text = ""
        for size, letters in _ROMAN:
            text += letters * (count // size)
            count %= size
    return text.upper() if shape.startswith("upper") else text


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
                    if local(element) == "tbl" and (made := table(_rows(element, self._package.repeats))):
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


def _rows(element: Element, repeats: Repeats) -> Iterator[list[str]]:
    above: list[str] = []
    for row in element.iterfind("{*}tr"):
        cells: list[str] = []
        for cell in row.iterfind("{*}tc"):
            if attribute(cell, "hMerge") in ("1", "true") and cells:
                cells += repeats.of(cells[-1])
            elif attribute(cell, "vMerge") in ("1", "true") and len(cells) < len(above):
                cells += repeats.of(above[len(cells)])
            else:
                cells.append(_body_text(cell))
        above = cells
        yield cells
