"""The article of a web page: trafilatura chooses it, and what it chose is judged and turned into pieces."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from bs4 import BeautifulSoup

from task.documents.html_pieces import HEADINGS, events, pieces_of
from task.documents.markdown import Piece

if TYPE_CHECKING:
    from lxml.etree import _Element

_PROSE, _LEAST, _SHARE = 60, 100, 0.3
_PER_CONTROL = 30
_COMPARED = 80
_MANY = 10_000  # elements; the time of the library's second extractor grows with their square
_FEW, _ENTRIES = 3, 0.75
_CONTROLS = "textarea, input:not([type]), input[type=text], input[type=radio], input[type=checkbox], input[type=email]"
_UNSEEN = ("template", "dialog")
_HIDDEN = re.compile(r"display\s*:\s*none|visibility\s*:\s*hidden")
_TAGS = {
    "item": "li", "row": "tr", "quote": "blockquote", "lb": "br", "ref": "a", "graphic": "img", "hi": "b", "del": "s",
}  # fmt: skip
_MARKUP = re.compile(r"\]\((?:https?|mailto):[^)\s\]]*+\)|\[image: [^]\[]*+\]|^\s*\d+\.|[\W_]+")


@dataclass(frozen=True, slots=True)
class Links:
    """How much of a page's text is in links, and the headings that are links."""

    share: float
    headings: frozenset[str]


def links_of(page: BeautifulSoup) -> Links:
    whole = linked = 0
    open_links = open_headings = 0
    heading: list[str] = []
    is_linked = False
    found: set[str] = set()
    for kind, tag, text in events(page):
        if kind == "text":
            size = len(text.strip())
            whole, linked = whole + size, linked + size * (open_links > 0)
            if open_headings:
                heading.append(text)
                is_linked = is_linked or open_links > 0
        elif tag.name == "a" and tag.get("href"):
            open_links += 1 if kind == "start" else -1
        elif tag.name in HEADINGS:
            open_headings += 1 if kind == "start" else -1
            if not open_headings:
                found.update([letters("".join(heading))] * is_linked)
                heading.clear()
                is_linked = False
    return Links(linked / max(whole, 1), frozenset(found))


def article_of(html: str, page: BeautifulSoup, pieces: Sequence[Piece], links: Links) -> list[Piece]:
    """The page's main content, or nothing where the library finds no prose or would lose headings or rows.

    `page` is the page without its menus and `pieces` what it displays.
    """
    found = _found(html)
    kept = frozenset(map(_start, _lines(found)))
    controls = len(page.select(_CONTROLS))
    if not _is_prose(found, controls) or not _is_whole(found, pieces, kept, links):
        return []
    return _with_headings(found, pieces, kept, links)


def letters(text: str) -> str:
    """The text's letters and digits, to compare what two renderings of a page hold."""
    return _MARKUP.sub("", text).lower()


def _is_prose(found: Sequence[Piece], controls: int) -> bool:
    prose, whole = _prose(found), sum(len(letters(line)) for line in _lines(found))
    return sum(prose) >= max(_LEAST, _SHARE * whole, _PER_CONTROL * controls)


def _is_whole(found: Sequence[Piece], pieces: Sequence[Piece], kept: Set[str], links: Links) -> bool:
    prose = _prose(found)
    cells = (line for piece in pieces if piece.kind == "table" for line in _lines([piece]))
    lost = sum(len(letters(cell)) for cell in cells if _start(cell) not in kept)
    # A list of links, each with a sentence: its headings are what it is about, and the library drops them.
    entries = sum(letters(one.text) in links.headings for one, _ in _lost_headings(pieces, kept))
    return lost <= sum(prose) and (entries < _FEW or entries < _ENTRIES * len(prose))


def _prose(found: Sequence[Piece]) -> list[int]:
    return [size for line in _lines(found) if (size := len(letters(line))) >= _PROSE]


def _lines(pieces: Iterable[Piece]) -> Iterator[str]:
    for piece in pieces:
        if piece.kind == "table":
            yield from (line for row in piece.rows for cell in row for line in cell.split("\n"))
        else:
            yield piece.text.partition("\n")[2] if piece.kind == "code" else piece.text


def _start(line: str) -> str:
    return letters(line)[:_COMPARED]


def _lost_headings(pieces: Sequence[Piece], kept: Set[str]) -> Iterator[tuple[Piece, Piece]]:
    # Each with the text right under it, which was found.
    for one, after in pairwise(pieces):
        if one.kind == "heading" and after.kind not in ("heading", "table") and _start(after.text) in kept:
            yield from [(one, after)] * (_start(one.text) not in kept)


def _with_headings(found: Sequence[Piece], pieces: Sequence[Piece], kept: Set[str], links: Links) -> list[Piece]:
    lost = {
        _start(after.text): one
        for one, after in _lost_headings(pieces, kept)
        if letters(one.text) not in links.headings  # of another article
    }
    result: list[Piece] = []
    for piece in found:
        # Not above the first text: there it is the page's title.
        if result and (heading := lost.get(_start(piece.text))):
            result.append(heading)
        result.append(piece)
    return result


def _found(html: str) -> list[Piece]:
    from lxml.etree import tostring
    from trafilatura import bare_extraction, load_html
    from trafilatura.settings import Document

    tree = load_html(html)
    if tree is None:
        return []
    _drop_hidden(tree)
    _prepare(tree)
    found = bare_extraction(
        tree,
        output_format="xml",
        include_links=True,
        include_formatting=True,
        include_comments=False,
        fast=sum(1 for _ in tree.iter("*")) > _MANY,
    )
    if not isinstance(found, Document):
        return []
    _rename(found.body)
    return pieces_of(BeautifulSoup(tostring(found.body, encoding="unicode"), "html.parser"))


def is_hidden(name: str, hidden: object, style: object) -> bool:
    """Whether a person does not see the element, by its attributes; scripts often show a page only when complete."""
    if name in ("html", "body"):
        return False
    return hidden is not None or (style is not None and _HIDDEN.search(str(style).lower()) is not None)


def _drop_hidden(tree: _Element) -> None:
    for element in list(tree.iter("*")):
        if element.tag in _UNSEEN or is_hidden(str(element.tag), element.get("hidden"), element.get("style")):
            element.tag = "script"  # which the library removes, and not the text after it


def _prepare(tree: _Element) -> None:
    # The library turns a listing without <code> into a quotation, and a caption into a row of its table.
    for listing in list(tree.iter("pre")):
        if listing.find(".//code") is None:
            listing.tag = "code"
    for caption in list(tree.iter("caption")):
        table = caption.getparent()
        if table is not None and table.tag == "table" and (parent := table.getparent()) is not None:
            caption.tag, caption.tail = "p", None
            parent.insert(parent.index(table), caption)


def _rename(body: _Element) -> None:
    for element in body.iter("*"):
        name = str(element.tag)
        if name == "head":
            level = element.get("rend", "")
            element.tag = level if level in HEADINGS else "h3"
        elif name == "cell":
            element.tag = "th" if element.get("role") == "head" else "td"
        elif name == "list":
            element.tag = "ol" if element.get("rend") == "ol" else "ul"
        elif name == "code" and (element.getparent() is body or any("\n" in str(text) for text in element.itertext())):
            element.tag = "pre"
        elif name in _TAGS:
            element.tag = _TAGS[name]
        if target := element.get("target"):
            element.set("href", target)
