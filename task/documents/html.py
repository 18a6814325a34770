"""Reader of HTML: what a user reads on the page, without scripts, menus and banners. Nothing is fetched.

Of a web site's article only the main content is kept: trafilatura chooses it, and its choice is judged here.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Literal

from bs4 import BeautifulSoup, Tag
from bs4.element import NavigableString, PreformattedString

from task.documents.model import Extraction, Piece, blocks_of, code, heading, item, table
from task.documents.text import decode_html

_UNSEEN = frozenset(
    {
        *("script", "style", "template", "noscript", "iframe", "frame", "object", "embed", "svg", "canvas", "audio"),
        *("video", "map", "dialog", "button", "select", "title"),
    }
)
_ROLES = frozenset({"navigation", "banner", "contentinfo", "search", "menu", "menubar", "dialog", "alertdialog"})
_BANNER = re.compile(
    r"\b(cookies?|consent|gdpr|navbar|navigation|breadcrumbs?|sidebar|site-?footer|site-?header|advert\w*|newsletter)\b"
)
_ARTICLE = frozenset({"article", "main", "blockquote"})
_LINKED, _TITLE = 0.05, 200
_LARGE = 1_000_000  # characters beside scripts; trafilatura's time grows with their square
_PROSE, _LEAST, _SHARE = 60, 100, 0.3
_PER_CONTROL = 30
_COMPARED = 80
_MANY = 10_000  # elements; the time of the library's second extractor grows with their square
_FEW, _ENTRIES = 3, 0.75
_CONTROLS = "textarea, input:not([type]), input[type=text], input[type=radio], input[type=checkbox], input[type=email]"
_HIDDEN_TAGS = ("template", "dialog")
_HIDDEN = re.compile(r"display\s*:\s*none|visibility\s*:\s*hidden")
# trafilatura's names for HTML's, where they matter here
_TAGS = {"item": "li", "row": "tr", "quote": "blockquote", "lb": "br", "ref": "a", "graphic": "img"}
_MARKUP = re.compile(r"\]\((?:https?|mailto):[^)\s\]]*+\)|\[image: [^]\[]*+\]|^\s*\d+\.|[\W_]+")
Event = tuple[Literal["start", "end", "text"], "Tag", str]
HEADINGS = {f"h{level}": level for level in range(1, 7)}
_BLOCK = re.compile(
    "address|article|aside|blockquote|body|caption|center|d[dlt]|details|dialog|div|fieldset|figcaption|figure|footer|form|"
    "h[1-6]|header|hgroup|hr|html|legend|li|main|ol|p|pre|section|summary|table|tbody|td|tfoot|th|thead|tr|ul"
)
_SPACES = re.compile(r"[^\S\n]+")
_AROUND_BREAK = re.compile(r"(?<! ) *+\n *+")
_ABSOLUTE = ("http://", "https://", "mailto:")
_LANGUAGE = re.compile(r"(?:language|lang|highlight-source)-([\w+#-]+)")
_SOFT_HYPHEN = "\xad"
_LONG_CELL = 1_000  # characters; no cell of data is so long
_WIDEST_SPAN, _TALLEST_SPAN = 100, 10_000


def read_html(content: bytes, content_type: str = "") -> Extraction:
    """Headings, paragraphs, lists, code and tables as Markdown.

    A page with menus, banners, a footer or many links belongs to a web site. Of an article only the main content is
    kept; of a form, a list or another page everything but those parts. Any other file is kept whole.
    """
    decoded = decode_html(content, content_type)
    with warnings.catch_warnings():
        # BeautifulSoup warns about pages that look like an address or like XML.
        warnings.simplefilter("ignore")
        soup = BeautifulSoup(decoded.text, "html.parser")
    tag = soup.title
    title = "" if tag is None or (tag.parent and tag.parent.name == "svg") else " ".join(tag.get_text().split())
    size = len(decoded.text) - sum(len(tag.string or "") for tag in soup.find_all(("script", "style")))
    has_menus = _cleaned(soup)
    pieces = pieces_of(soup)
    notes = list(decoded.notes)
    linked, linked_headings = _links_of(soup)
    is_site = (has_menus or linked > _LINKED) and size <= _LARGE
    article = _article_of(decoded.text, soup, pieces, linked_headings) if is_site else []
    if has_menus or article:
        notes.append(f"menus and banners left out{', the main content kept' if article else ''}")
    pieces = article or pieces
    shown = (piece for piece in pieces if piece.kind == "heading")
    if title and pieces and not any(piece.level == 1 or letters(piece.text) == letters(title) for piece in shown):
        if article:
            notes.append(f'title "{title[:_TITLE]}"')
        else:
            pieces = [heading(title, 1), *pieces]
    return Extraction(blocks_of(pieces), tuple(notes))


def _cleaned(soup: BeautifulSoup) -> bool:
    # Takes out what is not seen, and menus; whether there were any of these.
    unseen: list[Tag] = []
    menus: list[Tag] = []
    skipped: Tag | None = None
    within = 0
    # What contains an article or the page's heading is not a menu, whatever it is called.
    holders: set[int] = set()
    for tag in soup.find_all(("main", "article", "h1")):
        for parent in tag.parents:
            if id(parent) in holders:
                break
            holders.add(id(parent))
    for kind, tag, _ in events(soup):
        if kind == "text":
            continue
        if tag.name in _ARTICLE:
            within += 1 if kind == "start" else -1
        if skipped is not None:
            skipped = None if kind == "end" and tag is skipped else skipped
        elif kind == "start" and (tag.name in _UNSEEN or _is_hidden(tag.name, tag.get("hidden"), tag.get("style"))):
            skipped = tag
            unseen.append(tag)
        elif kind == "start" and id(tag) not in holders and _is_menu(tag, within > 0):
            skipped = tag
            menus.append(tag)
    for tag in unseen:
        tag.extract()
    whole = len(letters(soup.get_text()))
    # A menu that is never closed contains the whole page: then nothing is treated as a menu.
    if not menus or sum(len(letters(tag.get_text())) for tag in menus) == whole:
        return False
    for tag in menus:
        tag.extract()
    return True


def _is_menu(tag: Tag, in_article: bool) -> bool:
    if tag.name == "nav" or str(tag.get("role") or "").lower() in _ROLES:
        return True
    if tag.name in ("body", "html", "main", "article"):
        return False
    if tag.name == "footer" and not in_article:
        return True
    named = f"{tag.get('id') or ''} {' '.join(tag.get_attribute_list('class')) if tag.get('class') else ''}".lower()
    return _BANNER.search(named.replace("_", "-")) is not None


def _is_hidden(name: str, hidden: object, style: object) -> bool:
    # By its attributes; of the whole page it is not asked, as scripts often show that only when it is complete.
    if name in ("html", "body"):
        return False
    return hidden is not None or (style is not None and _HIDDEN.search(str(style).lower()) is not None)


def _links_of(page: BeautifulSoup) -> tuple[float, set[str]]:
    # The share of a page's text that is in links, and the letters of the headings that are links.
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
    return linked / max(whole, 1), found


def _article_of(html: str, page: BeautifulSoup, pieces: Sequence[Piece], linked: set[str]) -> list[Piece]:
    # The page's main content, or nothing where the library finds no prose or would lose headings or rows. `page` is
    # the page without its menus, and `pieces` what it displays.
    found = _extracted(html)
    kept = frozenset(map(_start, _lines(found)))
    sizes = [len(letters(line)) for line in _lines(found)]
    prose = [size for size in sizes if size >= _PROSE]
    if sum(prose) < max(_LEAST, _SHARE * sum(sizes), _PER_CONTROL * len(page.select(_CONTROLS))):
        return []
    cells = (line for piece in pieces if piece.kind == "table" for line in _lines([piece]))
    # Headings that are lost, each with the text right under it, which was found.
    lost = [
        (one, after)
        for one, after in pairwise(pieces)
        if one.kind == "heading" and after.kind not in ("heading", "table")
        if _start(after.text) in kept and _start(one.text) not in kept
    ]
    # A list of links, each with a sentence: its headings are what it is about, and the library drops them.
    entries = sum(letters(one.text) in linked for one, _ in lost)
    if sum(len(letters(cell)) for cell in cells if _start(cell) not in kept) > sum(prose):
        return []
    if entries >= _FEW and entries >= _ENTRIES * len(prose):
        return []
    # A heading that is a link is another article's.
    above = {_start(after.text): one for one, after in lost if letters(one.text) not in linked}
    result: list[Piece] = []
    for piece in found:
        # Not above the first text: there it is the page's title.
        if result and (heading := above.get(_start(piece.text))):
            result.append(heading)
        result.append(piece)
    return result


def letters(text: str) -> str:
    """The text's letters and digits, to compare what two renderings of a page hold."""
    return _MARKUP.sub("", text).lower()


def _start(line: str) -> str:
    return letters(line)[:_COMPARED]


def _lines(pieces: Iterable[Piece]) -> Iterator[str]:
    for piece in pieces:
        if piece.kind == "table":
            yield from (line for row in piece.rows for cell in row for line in cell.split("\n"))
        else:
            yield piece.text.partition("\n")[2] if piece.kind == "code" else piece.text


def _extracted(html: str) -> list[Piece]:
    from lxml.etree import tostring
    from trafilatura import bare_extraction, load_html
    from trafilatura.settings import Document

    tree = load_html(html)
    if tree is None:
        return []
    for element in list(tree.iter("*")):
        if element.tag in _HIDDEN_TAGS or _is_hidden(str(element.tag), element.get("hidden"), element.get("style")):
            element.tag = "script"  # which the library removes, and not the text after it
    # The library turns a listing without <code> into a quotation, and a caption into a row of its table.
    for listing in list(tree.iter("pre")):
        if listing.find(".//code") is None:
            listing.tag = "code"
    for caption in list(tree.iter("caption")):
        table = caption.getparent()
        if table is not None and table.tag == "table" and (parent := table.getparent()) is not None:
            caption.tag, caption.tail = "p", None
            parent.insert(parent.index(table), caption)
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
    for element in found.body.iter("*"):
        name = str(element.tag)
        if name == "head":
            level = element.get("rend", "")
            element.tag = level if level in HEADINGS else "h3"
        elif name == "cell":
            element.tag = "th" if element.get("role") == "head" else "td"
        elif name == "list":
            element.tag = "ol" if element.get("rend") == "ol" else "ul"
        elif name == "code":
            is_listing = element.getparent() is found.body or any("\n" in str(text) for text in element.itertext())
            element.tag = "pre" if is_listing else name
        else:
            element.tag = _TAGS.get(name, name)
        if target := element.get("target"):
            element.set("href", target)
    return pieces_of(BeautifulSoup(tostring(found.body, encoding="unicode"), "html.parser"))


def pieces_of(root: Tag) -> list[Piece]:
    """What the tree displays, in reading order."""
    writer = _Writer(_layout_tables(root))
    for kind, tag, text in events(root):
        if kind == "text":
            writer.write(text)
        elif kind == "start":
            writer.open(tag)
        else:
            writer.close(tag)
    writer.flush()
    return writer.pieces


def events(root: Tag) -> Iterator[Event]:
    """Starts, ends and texts below the root, without recursion: pages nest deeper than Python's stack."""
    stack = [(root, iter(root.contents))]
    while stack:
        tag, children = stack[-1]
        child = next(children, None)
        if child is None:
            stack.pop()
            if stack:
                yield "end", tag, ""
        elif isinstance(child, Tag):
            yield "start", child, ""
            stack.append((child, iter(child.contents)))
        elif isinstance(child, NavigableString) and not isinstance(child, PreformattedString):
            yield "text", tag, str(child)


def _layout_tables(root: Tag) -> set[int]:
    # Ids of the tables that hold other tables or long texts, or are marked as mere layout.
    found: set[int] = set()
    open_tables: list[int] = []
    length = 0
    for kind, tag, text in events(root):
        if kind == "text":
            length += len(text)
        elif tag.name in ("td", "th", "table"):
            if length > _LONG_CELL:
                found.update(open_tables[-1:])
            length = 0
        if tag.name != "table" or kind == "text":
            continue
        if kind == "end":
            open_tables.pop()
            continue
        if tag.get("role") == "presentation":
            found.add(id(tag))
        found.update(open_tables[-1:])
        open_tables.append(id(tag))
    return found


class _Writer:
    def __init__(self, layout: set[int]) -> None:
        self.pieces: list[Piece] = []
        self._layout = layout
        self._line: list[str] = []
        self._links: list[tuple[int, int, str]] = []
        self._flushes = 0
        self._lists: list[int | None] = []  # the next number; None in a list without numbers
        self._marker: str | None = None
        self._heading = 0
        self._listing: list[str] | None = None
        self._grid: _TableGrid | None = None

    def write(self, text: str) -> None:
        if self._listing is not None:
            self._listing.append(text)
        else:
            self._line.append(text.replace("\n", " ").replace(_SOFT_HYPHEN, ""))

    def open(self, tag: Tag) -> None:
        name = tag.name
        if self._listing is not None:
            if name == "br":
                self._listing.append("\n")
        elif name == "br":
            self._line.append("\n")
        elif name == "a":
            self._links.append((self._flushes, len(self._line), str(tag.get("href") or "")))
        elif name == "img" and (label := str(tag.get("alt") or "").strip()):
            self._line.append(f" [image: {label}] ")
        elif name == "code":
            self._line.append("`")
        elif name == "table" and id(tag) not in self._layout:
            self.flush()
            self._grid = _TableGrid()
        elif self._grid is not None and name in ("tr", "td", "th"):
            self.flush()
            self._grid.open(tag)
        elif _BLOCK.fullmatch(name):
            self.flush()
            if name in HEADINGS:
                self._heading = HEADINGS[name]
            elif name == "pre":
                self._listing = []
            elif name in ("ul", "ol"):
                self._lists.append(_number(tag, "start") if name == "ol" else None)
            elif name == "li":
                number = self._lists[-1] if self._lists else None
                self._marker = "-" if number is None else f"{number}."
                if number is not None:
                    self._lists[-1] = number + 1

    def close(self, tag: Tag) -> None:
        name = tag.name
        if self._listing is not None:
            if name == "pre":
                text, self._listing = "".join(self._listing), None
                if text.strip() and self._grid is not None and self._grid.in_cell:
                    self._grid.write(text.strip("\n"))
                elif text.strip():
                    named = tag if tag.get("class") else tag.find("code")
                    classes = " ".join(named.get_attribute_list("class")) if named and named.get("class") else ""
                    match = _LANGUAGE.search(classes)
                    self.pieces.append(code(text, match.group(1) if match else ""))
        elif name == "a" and self._links:
            flushes, start, target = self._links.pop()
            text = " ".join("".join(self._line[start:]).split())
            if flushes == self._flushes and target.startswith(_ABSOLUTE) and text not in ("", target):
                self._line[start:] = [f"[{text}]({target})"]
        elif name == "code":
            self._line.append("`")
        elif name == "table" and self._grid is not None:  # a data table holds no other
            self.flush()
            grid, self._grid = self._grid, None
            if made := table(grid.rows()):
                self.pieces.append(made)
        elif name in ("ul", "ol"):
            self.flush()
            if self._lists:
                self._lists.pop()
        elif name in HEADINGS:
            self.flush()
            self._heading = 0
        elif _BLOCK.fullmatch(name) and name not in ("pre", "table"):
            self.flush()
            self._marker = None

    def flush(self) -> None:
        """End the current paragraph, item or heading."""
        text = _AROUND_BREAK.sub("\n", _SPACES.sub(" ", "".join(self._line)).replace("``", "")).strip()
        self._line.clear()
        self._flushes += 1
        if not text:
            return
        marker, self._marker = self._marker, None
        if self._grid is not None and self._grid.in_cell:
            self._grid.write(f"{marker} {text}" if marker else text)
        elif self._heading:
            self.pieces.append(heading(text, self._heading))
        elif marker or self._lists:
            self.pieces.append(item(text, max(len(self._lists) - 1, 0), marker or " "))
        else:
            self.pieces.append(Piece("text", text))


class _TableGrid:
    """The cells of one table while it is read; a spanning cell's text is repeated in every place it covers."""

    def __init__(self) -> None:
        self._rows: list[list[str]] = []
        self._hanging: dict[int, tuple[int, str]] = {}  # column -> rows still covered, text
        self._cell: list[str] = []
        self._span: tuple[int, int] | None = None

    @property
    def in_cell(self) -> bool:
        return self._span is not None

    def open(self, tag: Tag) -> None:
        """Start a row or a cell, whether or not the one before was ended."""
        self._end_cell()
        if tag.name == "tr":
            self._fill()
            self._rows.append([])
        else:
            width, height = max(_number(tag, "colspan"), 1), max(_number(tag, "rowspan"), 1)
            self._span = (min(width, _WIDEST_SPAN), min(height, _TALLEST_SPAN))

    def write(self, text: str) -> None:
        self._cell.append(text)

    def rows(self) -> list[list[str]]:
        self._end_cell()
        self._fill()
        return self._rows

    def _end_cell(self) -> None:
        text = "\n".join(self._cell)
        self._cell.clear()
        if self._span is None:
            return
        (width, height), self._span = self._span, None
        if not self._rows:
            self._rows.append([])
        self._fill()
        row = self._rows[-1]
        if height > 1:
            self._hanging.update(dict.fromkeys(range(len(row), len(row) + width), (height - 1, text)))
        row += [text] * width

    def _fill(self) -> None:
        row = self._rows[-1] if self._rows else []
        while (covered := self._hanging.pop(len(row), None)) is not None:
            left, text = covered
            if left > 1:
                self._hanging[len(row)] = (left - 1, text)
            row.append(text)


def _number(tag: Tag, name: str) -> int:
    value = str(tag.get(name) or "")
    return int(value) if value.isascii() and value.isdigit() and len(value) < 9 else 1
