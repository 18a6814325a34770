"""The Markdown of messages as HTML in which nothing acts, with its formulas."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, MutableMapping, Sequence
from functools import cache
from html import escape
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from pydantic import BaseModel

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.renderer import RendererHTML
    from markdown_it.rules_block import StateBlock
    from markdown_it.rules_core import StateCore
    from markdown_it.rules_inline import StateInline
    from markdown_it.token import Token

MOST_CHARACTERS = 4000  # the bounds also keep the search for closing marks linear
MOST_LINES = 100
MOST_RENDERED = 200_000  # characters of a text
MOST_INLINE, MOST_STEPS = 4000, 75_000  # characters of a paragraph, and those that its marks are searched over
_CLOSING = {"$$": "$$", "\\[": "\\]"}  # of displayed formulas
_CLOSES = {**_CLOSING, "\\(": "\\)"}
_DOLLARS = r"\$\$((?>(?:[^$\\]++|\\(?:.|\Z)|\$(?!\$))*))"  # a dollar behind a backslash closes nothing
_BRACKETS = r"\\\[((?>(?:[^\\]++|\\(?!\]))*))"
_PARENTHESES = r"\\\(((?>(?:[^\\]++|\\(?!\)))*))\\\)"
# A price has letters around it, spaces inside, or words behind its amount.
_PRICE = r"\s|\$|\d[\d.,]*[kKMB]?[\s(]+[A-Za-z]{2,}\b"
_DOLLAR = rf"(?<![^\W_])\$(?!{_PRICE})((?>(?:[^$\\]++|\\.)*))(?<!\s)\$(?![^\W_])"
_INLINE = re.compile(rf"{_DOLLARS}\$\$|{_BRACKETS}\\\]|{_PARENTHESES}|{_DOLLAR}", re.DOTALL)
_BLOCK = re.compile(rf"(?:{_DOLLARS}(?:\$\$|\Z)|{_BRACKETS}(?:\\\]|\Z))[ \t]*(?=\n|\Z)", re.DOTALL)


def _inline(state: StateInline, silent: bool) -> bool:
    end = min(state.posMax, state.pos + MOST_CHARACTERS)
    closing = _CLOSES.get(state.src[state.pos : state.pos + 2], "")
    if state.src.find(closing, state.pos + 2, end) < 0:  # much faster than the pattern, for thousands of openings
        return False
    found = _INLINE.match(state.src, state.pos, end)
    if found is None or not (tex := found[found.lastindex or 0].strip()):
        return False
    if not silent:
        token = state.push("formula", "span", 0)
        token.content, token.markup = tex, found[0][:2]
    state.pos = found.end()
    return True


def _block(state: StateBlock, first: int, stop: int, silent: bool) -> bool:
    start = state.bMarks[first] + state.tShift[first]
    if state.src[start : start + 2] not in _CLOSING or state.is_code_block(first):
        return False
    last, most = first + 1, min(stop, first + MOST_LINES + 1)
    while last < most and not state.isEmpty(last) and state.sCount[last] >= state.blkIndent:
        last += 1
    found = _BLOCK.match(state.getLines(first, last, state.blkIndent, False).strip())
    if found is None or len(found[0]) > MOST_CHARACTERS:
        return False
    # Without its end more of it may follow; until then it is text, and its lines do not become lists or headings.
    is_open = not found[0][2:].rstrip().endswith(_CLOSING[found[0][:2]])
    if is_open and last < stop:
        return False
    if not silent:
        state.line = first + found[0].count("\n") + 1
        token = state.push("formula", "p", 0)
        token.block, token.map, token.hidden = True, [first, state.line], is_open
        token.content, token.markup = found[found.lastindex or 0].strip(), found[0][:2]
    return True


def _rendered(_: Any, tokens: Sequence[Token], place: int, *__: Any) -> str:
    token = tokens[place]
    if token.hidden:
        return f"<p>{escape(token.markup + token.content)}</p>\n"
    kind = "math display" if token.markup in _CLOSING else "math"
    made = f'<span class="{kind}">{escape(token.content)}</span>'
    return f"<p>{made}</p>\n" if token.block else made


TEXT_TAGS = "p br hr h1 h2 h3 h4 h5 h6 strong em s code pre blockquote ul ol li a img span"
TAGS = {*TEXT_TAGS.split(), "table", "thead", "tbody", "tr", "th", "td", "input"}
ATTRIBUTES = {
    "a": {"href", "title"},
    "img": {"src", "alt", "title"},
    "code": {"class"},
    "span": {"class", "title"},
    "ol": {"start"},
    "th": {"align"},
    "td": {"align"},
    "input": {"type", "checked", "disabled"},
}
_LINK = re.compile(r"(https?:|mailto:)", re.IGNORECASE)
_FILE = re.compile(r"files/[^\s\"'<>\\]+\Z")
_BARE_FILE = re.compile(r"[^\s/]{1,200}/[^\s\"'<>\\]{0,500}[^\s\"'<>\\.,;:!?()\[\]{}*_]")
_PICTURE = re.compile(r"data:image/(png|jpeg|gif|webp);base64,", re.IGNORECASE)
# Marks from which the rest of a paragraph is searched: brackets that nothing near closes, addresses that are no links.
_SEARCHED = re.compile(
    r"\[(?![^\[\]]{0,200}\])|<(?![^<>]{0,200}>)|\((?![^()]{0,200}\))|(?<!https)(?<!http)://|mailto:", re.IGNORECASE
)
_CHECKBOX = re.compile(r"\[[ xX]]\s")
_ALIGNED = re.compile(r' style="text-align:(left|right|center)"')


class BlockBody(BaseModel):
    """A block: the line of its text in which it begins, counted from 0, and its HTML."""

    line: int
    html: str


def blocks_of(text: str) -> list[BlockBody]:
    """The text's blocks in their order.

    Raw HTML is shown as text, and pictures from elsewhere are only named. Formulas are a `span` of the class `math`;
    code whose block has not ended yet has the class `open`.
    """
    if len(text) > MOST_RENDERED:
        return [BlockBody(line=0, html=f"<pre>{escape(text)}</pre>")]
    reader, environment = _reader(), dict[str, Any]()
    return [
        BlockBody(
            line=tokens[0].map[0] if tokens[0].map else 0,
            html=_clean(reader.renderer.render(tokens, reader.options, environment)),
        )
        for tokens in _grouped(reader.parse(text, environment))
    ]


def _grouped(tokens: Sequence[Token]) -> Iterator[list[Token]]:
    group: list[Token] = []
    depth = 0
    for token in tokens:
        if token.type == "fence":
            first, end = token.map or (0, 0)
            lines = token.content.count("\n") + (not token.content.endswith("\n") and token.content != "")
            if end - first < lines + 2:
                token.attrJoin("class", "open")
        group.append(token)
        depth += token.nesting
        if depth == 0:
            yield group
            group = []


@cache
def _reader() -> MarkdownIt:
    from markdown_it import MarkdownIt

    # Cells that a table's rows lack and get: with the library's own 65,536, 1.5 kB of text become as many.
    sys.modules["markdown_it.rules_block.table"].__dict__["MAX_AUTOCOMPLETED_CELLS"] = 1000
    reader = MarkdownIt("commonmark", {"html": False, "linkify": True}).enable(["table", "strikethrough", "linkify"])
    if reader.linkify is not None:
        reader.linkify.set({"fuzzy_link": False, "fuzzy_email": False})
        reader.linkify.add("files/", {"validate": _file_length})
    reader.validateLink = lambda url: bool(_LINK.match(url) or _FILE.match(url) or _PICTURE.match(url))
    reader.add_render_rule("image", _image)
    # A formula becomes a `span` of the class `math` or `math display` that holds its TeX.
    reader.inline.ruler.before("escape", "formula", _inline)
    reader.block.ruler.before("fence", "formula", _block, {"alt": ["paragraph", "reference", "blockquote", "list"]})
    reader.add_render_rule("formula", _rendered)
    reader.core.ruler.at("inline", _inlines)
    return reader


def _inlines(state: StateCore) -> None:
    from markdown_it.token import Token

    before = ["", ""]
    for token in state.tokens:
        if token.type == "inline":
            checkbox = _CHECKBOX.match(token.content) if before == ["list_item_open", "paragraph_open"] else None
            token.content, token.children = token.content[3 if checkbox else 0 :], []
            size = len(token.content)
            if size <= MOST_INLINE and size * len(_SEARCHED.findall(token.content)) <= MOST_STEPS:
                state.md.inline.parse(token.content, state.md, state.env, token.children)
            else:
                token.children.append(Token("text_special", "", 0, content=token.content))
            if checkbox:
                checked = ' checked="checked"' * (checkbox[0][1] != " ")
                html = f'<input{checked} disabled="disabled" type="checkbox">'
                token.children.insert(0, Token("html_inline", "", 0, content=html))
        before = [before[1], token.type]


def _file_length(_: Any, text: str, place: int) -> int:
    before = place - len("files/") - 1
    if before >= 0 and text[before] in "/.-":
        return 0
    found = _BARE_FILE.match(text, place)
    return len(found[0]) if found else 0


def _image(
    renderer: RendererHTML, tokens: Sequence[Token], place: int, options: Any, environment: MutableMapping[str, Any]
) -> str:
    token = tokens[place]
    address = str(token.attrs.get("src", ""))
    name = renderer.renderInlineAsText(token.children or [], options, environment)
    if _PICTURE.match(address):
        return f'<img src="{escape(address)}" alt="{escape(name)}">'
    if _FILE.match(address):
        return f'<a href="{escape(address)}">{escape(name or address.rsplit("/", 1)[-1])}</a>'
    try:
        host = urlsplit(address).netloc or address
    except ValueError:
        host = address
    text = f"{name or 'Picture'} (a picture at {host}, not loaded)"
    return f'<span class="unloaded" title="{escape(address)}">{escape(text)}</span>'


def _clean(html: str) -> str:
    import nh3

    return nh3.clean(
        _ALIGNED.sub(r' align="\1"', html),
        tags=TAGS,
        attributes=ATTRIBUTES,
        attribute_filter=_allowed,
        url_schemes={"http", "https", "mailto", "data"},
        link_rel="noopener noreferrer nofollow",
    )


def _allowed(tag: str, name: str, value: str) -> str | None:
    if name == "href":
        return value if _LINK.match(value) or _FILE.match(value) else None
    if name == "src":
        return value if _PICTURE.match(value) else None
    if tag == "input" and name == "type":
        return "checkbox"
    if name == "class" and tag == "span":
        return value if value in ("unloaded", "math", "math display") else None
    return value
