"""Reader of HTML: what a person reads on the page, without scripts, menus and banners. Nothing is fetched."""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from itertools import compress

from bs4 import BeautifulSoup, Tag

from task.documents.encoding import decode_html
from task.documents.html_pieces import events, pieces_of
from task.documents.markdown import Piece, blocks_of, heading
from task.documents.model import Extraction

_UNSEEN = frozenset({
    "script", "style", "template", "noscript", "iframe", "frame", "object", "embed", "svg", "canvas", "audio", "video",
    "map", "dialog", "button", "select", "title",
})  # fmt: skip
_MENUS = frozenset({"nav"})
_ROLES = frozenset({"navigation", "banner", "contentinfo", "search", "menu", "menubar", "dialog", "alertdialog"})
_BANNER = re.compile(
    r"\b(cookies?|consent|gdpr|navbar|navigation|breadcrumbs?|sidebar|site-?footer|site-?header|advert\w*|newsletter)\b"
)
_HIDDEN = re.compile(r"display\s*:\s*none|visibility\s*:\s*hidden")
_ARTICLE = frozenset({"article", "main", "blockquote"})
_LARGE = 1_000_000  # characters; trafilatura's time grows with their square
_LITTLE = 0.3
_COMPARED, _SHORT, _CLOSE = 120, 12, 200  # letters
_NUMBER = re.compile(r"^\s*\d+\.")
_MARKUP = re.compile(r"\]\((?:https?|mailto):[^)\s\]]*+\)|\[image: [^]\[]*+\]|[\W_]+")


def read_html(content: bytes, content_type: str = "") -> Extraction:
    """Headings, paragraphs, lists, code and tables as Markdown.

    A page with menus, banners or a footer belongs to a web site: only its main content, found by trafilatura, is kept,
    or everything but those parts where trafilatura finds little. Any other file is kept whole.
    """
    decoded = decode_html(content, content_type)
    with warnings.catch_warnings():
        # BeautifulSoup warns about pages that look like an address or like XML.
        warnings.simplefilter("ignore")
        soup = BeautifulSoup(decoded.text, "html.parser")
    title = _title(soup)
    is_site = _cleaned(soup)
    pieces = pieces_of(soup)
    notes = list(decoded.notes)
    if is_site:
        main = _main(soup, pieces)
        notes.append(f"menus and banners left out{', the main content kept' if main else ''}")
        pieces = main or pieces
    if title.strip() and pieces and not any(piece.kind == "heading" and piece.level == 1 for piece in pieces):
        pieces = [heading(title, 1), *pieces]
    return Extraction(blocks_of(pieces), tuple(notes))


def _title(soup: BeautifulSoup) -> str:
    tag = soup.title
    return "" if tag is None or (tag.parent and tag.parent.name == "svg") else tag.get_text()


def _cleaned(soup: BeautifulSoup) -> bool:
    unseen: list[Tag] = []
    menus: list[Tag] = []
    skipped: Tag | None = None
    within = 0
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
        elif kind == "start" and _is_menu(tag, within > 0):
            skipped = tag
            menus.append(tag)
    for tag in unseen:
        tag.extract()
    return _without(soup, menus)


def _without(soup: BeautifulSoup, menus: Sequence[Tag]) -> bool:
    whole = len(_letters(soup.get_text()))
    # A menu that is never closed contains the whole page: then nothing is treated as a menu.
    if not menus or sum(len(_letters(tag.get_text())) for tag in menus) == whole:
        return False
    for tag in menus:
        tag.extract()
    return True


def _is_unseen(tag: Tag) -> bool:
    return (
        tag.name in _UNSEEN or tag.has_attr("hidden") or _HIDDEN.search(str(tag.get("style") or "").lower()) is not None
    )


def _is_menu(tag: Tag, in_article: bool) -> bool:
    if tag.name in _MENUS or str(tag.get("role") or "").lower() in _ROLES:
        return True
    if tag.name in ("body", "html", "main", "article"):
        return False
    if tag.name == "footer" and not in_article:
        return True
    named = f"{tag.get('id') or ''} {' '.join(tag.get_attribute_list('class')) if tag.get('class') else ''}".lower()
    return _BANNER.search(named.replace("_", "-")) is not None


def _main(soup: BeautifulSoup, pieces: Sequence[Piece]) -> list[Piece]:
    from trafilatura import extract

    source = str(soup)
    if len(source) > _LARGE:
        return []
    found = _letters(
        extract(source, output_format="txt", include_comments=True, include_tables=True, favor_recall=True) or ""
    )
    kept = list(compress(pieces, _kept(pieces, found)))
    size = sum(len(_words(piece)) for piece in pieces)
    return kept if sum(len(_words(piece)) for piece in kept) > size * _LITTLE else []


def _kept(pieces: Sequence[Piece], found: str) -> list[bool]:
    kept: list[bool] = []
    place = last = 0
    for piece in pieces:
        words = _words(piece)
        sample = _letters("".join(piece.rows[0])) if piece.kind == "table" else words[:_COMPARED]
        # A word or two occur anywhere: they count only close to the previous match.
        end = len(found) if len(sample) >= _SHORT else place + last + _CLOSE
        start = found.find(sample, place, end)
        kept.append(start >= 0)
        if start >= 0:
            place, last = start + len(sample), len(words)
    for index in range(len(pieces) - 2, -1, -1):
        kept[index] = kept[index] or (kept[index + 1] and pieces[index].kind == "heading")
    return kept


def _words(piece: Piece) -> str:
    if piece.kind == "table":
        return _letters("".join(map("".join, piece.rows)))
    if piece.kind == "code":
        return _letters(piece.text.partition("\n")[2])
    return _letters(_NUMBER.sub("", piece.text) if piece.kind == "item" else piece.text)


def _letters(text: str) -> str:
    return _MARKUP.sub("", text).lower()
