"""Reader of HTML: what a person reads on the page, without scripts, menus and banners. Nothing is fetched."""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence

from bs4 import BeautifulSoup, Tag

from task.documents.encoding import decode_html
from task.documents.html_article import article_of, is_hidden, letters, links_of
from task.documents.html_pieces import events, pieces_of
from task.documents.markdown import Piece, blocks_of, heading
from task.documents.model import Extraction

_UNSEEN = frozenset({
    "script", "style", "template", "noscript", "iframe", "frame", "object", "embed", "svg", "canvas", "audio", "video",
    "map", "dialog", "button", "select", "title",
})  # fmt: skip
_ROLES = frozenset({"navigation", "banner", "contentinfo", "search", "menu", "menubar", "dialog", "alertdialog"})
_BANNER = re.compile(
    r"\b(cookies?|consent|gdpr|navbar|navigation|breadcrumbs?|sidebar|site-?footer|site-?header|advert\w*|newsletter)\b"
)
_ARTICLE = frozenset({"article", "main", "blockquote"})
_LINKED, _TITLE = 0.05, 200
_LARGE = 1_000_000  # characters beside scripts; trafilatura's time grows with their square


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
    title = " ".join(_title(soup).split())
    size = len(decoded.text) - sum(len(tag.string or "") for tag in soup.find_all(("script", "style")))
    has_menus = _cleaned(soup)
    pieces = pieces_of(soup)
    notes = list(decoded.notes)
    links = links_of(soup)
    is_site = (has_menus or links.share > _LINKED) and size <= _LARGE
    article = article_of(decoded.text, soup, pieces, links) if is_site else []
    if has_menus or article:
        notes.append(f"menus and banners left out{', the main content kept' if article else ''}")
    pieces = article or pieces
    if title and pieces and not any(_is_title(piece, title) for piece in pieces):
        if article:
            notes.append(f'title "{title[:_TITLE]}"')
        else:
            pieces = [heading(title, 1), *pieces]
    return Extraction(blocks_of(pieces), tuple(notes))


def _title(soup: BeautifulSoup) -> str:
    tag = soup.title
    return "" if tag is None or (tag.parent and tag.parent.name == "svg") else tag.get_text()


def _is_title(piece: Piece, title: str) -> bool:
    return piece.kind == "heading" and (piece.level == 1 or letters(piece.text) == letters(title))


def _cleaned(soup: BeautifulSoup) -> bool:
    unseen: list[Tag] = []
    menus: list[Tag] = []
    skipped: Tag | None = None
    within = 0
    holders = _holders(soup)
    for kind, tag, _ in events(soup):
        if kind == "text":
            continue
        if tag.name in _ARTICLE:
            within += 1 if kind == "start" else -1
        if skipped is not None:
            skipped = None if kind == "end" and tag is skipped else skipped
        elif kind == "start" and _is_unseen(tag):
            skipped = tag
            unseen.append(tag)
        elif kind == "start" and id(tag) not in holders and _is_menu(tag, within > 0):
            skipped = tag
            menus.append(tag)
    for tag in unseen:
        tag.extract()
    return _without(soup, menus)


def _without(soup: BeautifulSoup, menus: Sequence[Tag]) -> bool:
    whole = len(letters(soup.get_text()))
    # A menu that is never closed contains the whole page: then nothing is treated as a menu.
    if not menus or sum(len(letters(tag.get_text())) for tag in menus) == whole:
        return False
    for tag in menus:
        tag.extract()
    return True


def _is_unseen(tag: Tag) -> bool:
    return tag.name in _UNSEEN or is_hidden(tag.name, tag.get("hidden"), tag.get("style"))


def _is_menu(tag: Tag, in_article: bool) -> bool:
    if tag.name == "nav" or str(tag.get("role") or "").lower() in _ROLES:
        return True
    if tag.name in ("body", "html", "main", "article"):
        return False
    if tag.name == "footer" and not in_article:
        return True
    named = f"{tag.get('id') or ''} {' '.join(tag.get_attribute_list('class')) if tag.get('class') else ''}".lower()
    return _BANNER.search(named.replace("_", "-")) is not None


def _holders(soup: BeautifulSoup) -> set[int]:
    # Ids of what contains an article or the page's heading, and so is no menu whatever it is called.
    found: set[int] = set()
    for tag in soup.find_all(("main", "article", "h1")):
        parent = tag.parent
        while parent is not None and id(parent) not in found:
            found.add(id(parent))
            parent = parent.parent
    return found
