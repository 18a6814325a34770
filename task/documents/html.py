"""Reader of HTML: what a user reads on the page, without scripts, menus and banners. Nothing is fetched.

Of a web site's article only the main content is kept: trafilatura chooses it, and its choice is judged here.
"""

import re
import warnings
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

from bs4 import BeautifulSoup, Tag

from task.documents.html_pieces import HEADINGS, events, pieces_of
from task.documents.model import Extraction, Piece, blocks_of, heading
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
_ARTICLE = ("article", "main", "blockquote")
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
    # What contains an article or the page's heading is not a menu, whatever it is called.
    holders: set[int] = set()
    for tag in soup.find_all(("main", "article", "h1")):
        for parent in tag.parents:
            if id(parent) in holders:
                break
            holders.add(id(parent))
    for kind, tag, _ in events(soup):
        if skipped is not None:
            skipped = None if kind == "end" and tag is skipped else skipped
        elif kind == "start":
            is_unseen = tag.name in _UNSEEN or _is_hidden(tag.name, tag.get("hidden"), tag.get("style"))
            if is_unseen or (id(tag) not in holders and _is_menu(tag)):
                skipped = tag
                (unseen if is_unseen else menus).append(tag)
    for tag in unseen:
        tag.extract()
    whole = len(letters(soup.get_text()))
    # A menu that is never closed contains the whole page: then nothing is treated as a menu.
    if not menus or sum(len(letters(tag.get_text())) for tag in menus) == whole:
        return False
    for tag in menus:
        tag.extract()
    return True


def _is_menu(tag: Tag) -> bool:
    if tag.name == "nav" or str(tag.get("role") or "").lower() in _ROLES:
        return True
    if tag.name in ("body", "html", "main", "article"):
        return False
    if tag.name == "footer" and tag.find_parent(_ARTICLE) is None:
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
