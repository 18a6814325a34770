"""A stand-in for DuckDuckGo's HTML page, in the shape of its markup; it knows only monuments and invented places."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from html import escape
from urllib.parse import quote

from aiohttp import web

from tests.support.mcp_wire import http_server

EIFFEL = ("Eiffel Tower", "https://tower.example/eiffel", "A wrought-iron lattice tower in Paris, 330 metres tall.")
QUILLHAVEN = (
    "Weather in Quillhaven",
    "https://weather.example/quillhaven",
    "Now 7 °C, light rain, wind from the west.",
)
FOUNDER = ("The lighthouse of Quillhaven", "https://light.example/history", "Founded in 1871 by the harbour council.")
PARIS = ("Weather in Paris", "https://weather.example/paris", "Now 12 °C, heavy rain, wind from the south.")
KNOWN: dict[str, list[tuple[str, str, str]]] = {
    "eiffel": [EIFFEL],
    "weather in paris": [PARIS],
    "weather": [QUILLHAVEN],
    "lighthouse": [FOUNDER],
    "quillhaven": [QUILLHAVEN, FOUNDER],
}


@dataclass
class Site:
    """`mood` is how the site answers; `queries` what it was asked."""

    url: str = ""
    mood: str = "ok"
    queries: list[str] = field(default_factory=list[str])


def page(results: list[tuple[str, str, str]], advertisement: bool = False) -> str:
    """A results page; links lead over the site's own redirect, as some of the real ones do."""
    blocks = [_block(title, f"//duckduckgo.com/l/?uddg={quote(url, safe='')}", text) for title, url, text in results]
    if advertisement:
        blocks.insert(0, _block("Cheap tickets", "https://duckduckgo.com/y.js?ad_domain=tickets.example", "Buy now"))
    return f"<html><body><div id='links' class='results'>{''.join(blocks)}</div></body></html>"


def _block(title: str, link: str, text: str) -> str:
    return (
        "<div class='result results_links web-result'><div class='links_main links_deep result__body'>"
        f"<h2 class='result__title'><a rel='nofollow' class='result__a' href='{escape(link)}'>{escape(title)}</a></h2>"
        f"<a class='result__snippet' href='{escape(link)}'>{escape(text)}</a></div></div>"
    )


EMPTY = "<html><body><div id='links' class='results'><div class='no-results'>No results.</div></div></body></html>"
CHALLENGE = "<html><body><form id='challenge-form' action='/anomaly.js'><div class='anomaly-modal'>Robots?</div></form>"
CHANGED = "<html><body><main><article data-kind='hit'><h3>Eiffel Tower</h3></article></main></body></html>"
OTHERS = {"challenge": CHALLENGE, "changed": CHANGED, "blank": ""}


@asynccontextmanager
async def search_site() -> AsyncGenerator[Site]:
    site = Site()

    async def answer(request: web.Request) -> web.Response:
        query = str((await request.post()).get("q", ""))
        site.queries.append(query)
        match site.mood:
            case "ok" | "ads":
                found = next((results for word, results in KNOWN.items() if word in query.casefold()), None)
                text = page(found, advertisement=site.mood == "ads") if found else EMPTY
                return web.Response(text=text, content_type="text/html")
            case "challenge" | "changed" | "blank":
                return web.Response(text=OTHERS[site.mood], content_type="text/html")
            case status:
                return web.Response(status=int(status))

    async with http_server(answer) as url:
        site.url = url.replace("/mcp", "/html/")
        yield site
