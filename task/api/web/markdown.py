"""`/markdown`: Markdown that a model wrote, as HTML that can do nothing: no script, and no request to anywhere."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator, MutableMapping, Sequence
from functools import cache
from html import escape
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field

from task.api.edge.failures import failures
from task.api.edge.schemas import Text
from task.api.service import CurrentCaller, router

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.renderer import RendererHTML
    from markdown_it.token import Token

MAX_TEXTS = 100
TAGS = frozenset({
    "p", "br", "hr", "h1", "h2", "h3", "h4", "h5", "h6", "strong", "em", "s", "code", "pre", "blockquote", "ul", "ol",
    "li", "a", "img", "span", "table", "thead", "tbody", "tr", "th", "td",
})  # fmt: skip
ATTRIBUTES = {
    "a": {"href", "title"},
    "img": {"src", "alt", "title"},
    "code": {"class"},
    "span": {"class", "title"},
    "ol": {"start"},
    "th": {"align"},
    "td": {"align"},
}
_LINK = re.compile(r"(https?:|mailto:)", re.IGNORECASE)
_PICTURE = re.compile(r"data:image/(png|jpeg|gif|webp);base64,", re.IGNORECASE)
_ALIGNED = re.compile(r' style="text-align:(left|right|center)"')


class BlockBody(BaseModel):
    """A block: the line of its text in which it begins, counted from 0, and its HTML."""

    line: int
    html: str


def blocks_of(text: str) -> list[BlockBody]:
    """The text's blocks in their order. Raw HTML is shown as text, and pictures from elsewhere are only named."""
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
        group.append(token)
        depth += token.nesting
        if depth == 0:
            yield group
            group = []


@cache
def _reader() -> MarkdownIt:
    from markdown_it import MarkdownIt

    reader = MarkdownIt("commonmark", {"html": False, "linkify": True}).enable(["table", "strikethrough", "linkify"])
    if reader.linkify is not None:
        reader.linkify.set({"fuzzy_link": False, "fuzzy_email": False})
    reader.validateLink = lambda url: bool(_LINK.match(url) or _PICTURE.match(url))
    reader.add_render_rule("image", _image)
    return reader


def _image(
    renderer: RendererHTML, tokens: Sequence[Token], place: int, options: Any, environment: MutableMapping[str, Any]
) -> str:
    token = tokens[place]
    address = str(token.attrs.get("src", ""))
    name = renderer.renderInlineAsText(token.children or [], options, environment)
    if _PICTURE.match(address):
        return f'<img src="{escape(address)}" alt="{escape(name)}">'
    text = f"{name or 'Picture'} (a picture at {_host(address)}, not loaded)"
    return f'<span class="unloaded" title="{escape(address)}">{escape(text)}</span>'


def _host(address: str) -> str:
    try:
        return urlsplit(address).netloc or address
    except ValueError:
        return address


def _clean(html: str) -> str:
    import nh3

    return nh3.clean(
        _ALIGNED.sub(r' align="\1"', html),
        tags=set(TAGS),
        attributes=ATTRIBUTES,
        attribute_filter=_allowed,
        url_schemes={"http", "https", "mailto", "data"},
        link_rel="noopener noreferrer nofollow",
    )


def _allowed(tag: str, name: str, value: str) -> str | None:
    if name == "href":
        return value if _LINK.match(value) else None
    if name == "src":
        return value if _PICTURE.match(value) else None
    if tag == "span" and name == "class":
        return "unloaded" if value == "unloaded" else None
    return value


class MarkdownRequest(BaseModel):
    """Texts that were written as Markdown."""

    model_config = ConfigDict(extra="forbid")

    texts: Annotated[list[Text], Field(max_length=MAX_TEXTS)]


class MarkdownBody(BaseModel):
    """The blocks of each text, in the order of the texts."""

    texts: list[list[BlockBody]]


routes = router("Web page")


@routes.post("/markdown", response_model=MarkdownBody, responses=failures(413, 415))
async def render(body: MarkdownRequest, _: CurrentCaller) -> Any:
    """Render texts as HTML in which nothing acts: no scripts, no HTML of the text's own, no remote pictures."""
    return {"texts": await asyncio.to_thread(lambda: list(map(blocks_of, body.texts)))}
