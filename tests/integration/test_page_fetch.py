"""Fetching pages: through the guard, within bounds, as text. Public names lead to a server of the test's own."""

import asyncio
import gzip
import zlib
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import httpx2
import pytest
from aiohttp import web

from mcp_servers.addresses import is_public
from mcp_servers.duckduckgo.answers import UNTRUSTED, page_piece
from mcp_servers.duckduckgo.fetch import FetchFailed, PageFetcher
from mcp_servers.duckduckgo.guard import GuardedTransport
from tests.support.clock import FakeClock
from tests.support.mcp_wire import http_server
from tests.support.pdfs import bomb_pdf

PUBLIC = "93.184.215.14"
ARTICLE = """<html><head><title>The bridge of Quillhaven</title></head><body><nav>Home | About</nav><article>
<h1>The bridge</h1><p>The stone bridge crosses the river in five arches, and it has carried the market road for as long
as the town has kept its books.</p><p>It was widened once, when the tram came, and the lamps were added later on.</p>
<table><tr><th>Arch</th><th>Width</th></tr><tr><td>first</td><td>12 m</td></tr></table></article>
<script>alert('x')</script></body></html>"""


Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass
class Web:
    """Pages by path; `asked` are the hosts and paths that were really asked for."""

    pages: dict[str, Answer]
    names: dict[str, list[str]] = field(default_factory=lambda: {"docs.example": [PUBLIC]})
    asked: list[str] = field(default_factory=list[str])
    dialled: list[tuple[str, int]] = field(default_factory=list[tuple[str, int]])


@asynccontextmanager
async def fetching(seen: Web, seconds: float = 20, **more: Any) -> AsyncGenerator[PageFetcher]:
    """A fetcher whose names resolve as `seen` says, and whose public addresses all lead to one local server."""

    async def answer(request: web.Request) -> web.StreamResponse:
        seen.asked.append(f"{request.host}{request.path}")
        return await seen.pages[request.path](request)

    async def resolve_name(host: str, port: int) -> list[str]:
        return seen.names.get(host, [host])

    async with http_server(answer) as url:
        local = httpx2.URL(url)

        def dial(address: str, port: int) -> tuple[str, int]:
            seen.dialled.append((address, port))
            return local.host, local.port or 80

        pages = PageFetcher(
            GuardedTransport(resolve_name=resolve_name, dial=dial), seconds=seconds, clock=FakeClock().now, **more
        )
        try:
            yield pages
        finally:
            await pages.close()


def giving(body: bytes | str, kind: str = "text/html", **headers: str) -> Answer:
    async def answer(_: web.Request) -> web.Response:
        raw = body.encode() if isinstance(body, str) else body
        return web.Response(body=raw, headers={"Content-Type": kind, **headers})

    return answer


def leading_to(url: str) -> Answer:
    return refusing(302, Location=url)


def refusing(status: int, **headers: str) -> Answer:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(status=status, headers=headers)

    return answer


async def test_a_page_becomes_its_text_without_navigation_and_scripts() -> None:
    seen = Web({"/bridge": giving(ARTICLE)})
    async with fetching(seen) as pages:
        page = await pages.page("http://docs.example/bridge#arches")
    assert (page.title, page.url) == ("The bridge of Quillhaven", "http://docs.example/bridge")
    assert "five arches" in page.text
    assert "| first | 12 m |" in page.text
    assert "alert" not in page.text
    assert seen.asked == ["docs.example/bridge"]
    assert seen.dialled == [(PUBLIC, 80)]


async def test_later_pieces_of_a_page_cost_no_request() -> None:
    seen = Web({"/long": giving("word " * 5000, "text/plain")})
    async with fetching(seen) as pages:
        first = page_piece(await pages.page("http://docs.example/long"), 0, 100)
        far = page_piece(await pages.page("http://docs.example/long"), 24_990, 100)
        beyond = page_piece(await pages.page("http://docs.example/long"), 30_000, 100)
    assert UNTRUSTED in first
    assert "Characters 0 to 100 of 24,999. Go on with start=100." in first
    assert "Characters 24,990 to 24,999 of 24,999.]" in far
    assert "nothing from 30,000 on" in beyond
    assert len(seen.asked) == 1


@pytest.mark.fault("web search: a private address in any spelling, also behind a redirect")
@pytest.mark.fault("web search: a name with one good and one bad address", case="http://mixed.example/")
@pytest.mark.fault("web search: a cloud's own address outside the private networks", case="http://168.63.129.16/")
@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1/", "http://localhost/", "http://2130706433/", "http://0x7f.1/", "http://0177.0.0.1/",
        "http://127.1/", "http://①②⑦.⓪.⓪.①/", "http://[::1]/", "http://[::ffff:127.0.0.1]/",
        "http://[::ffff:7f00:1]/", "http://169.254.169.254/latest/meta-data", "http://10.0.0.5/", "http://0.0.0.0/",
        "http://[fe80::1]/", "http://[fd00::1]/", "http://100.100.100.200/", "http://[64:ff9b::7f00:1]/",
        "http://[2002:7f00:1::]/", "http://[fec0::1]/", "http://192.168.1.1/", "http://localhost./",
        "http://168.63.129.16/", "http://[::ffff:168.63.129.16]/metadata/", "http://2822734096/",
        "http://inside.example/", "http://mixed.example/", "http://mapped.example/", "ftp://docs.example/",
        "file:///etc/passwd", "gopher://docs.example/", "http://user:word@docs.example/", "http://docs.example:22/",
        "http://docs.example:6379/", "//docs.example/", "docs.example", "", "http://", "http:docs.example/",
        "http:/docs.example/", r"http:\\docs.example/", r"http://docs.example\@127.0.0.1/",
        r"http://127.0.0.1\@docs.example/", "http://docs.example'@127.0.0.1/",
        "http://docs.example\t@127.0.0.1/", "http://127.0.0.1\n.docs.example/", "http://docs.example\u200b/",
        "http://docs.example%2f@127.0.0.1/", "http://127.0.0.1%2e/", "http://docs.example@/", "http://@127.0.0.1/",
        "http://[::ffff:a9fe:a9fe]/", "http://[::127.0.0.1]/", "http://127.0.0.1:80:80/",
    ],
)  # fmt: skip
async def test_nothing_inside_is_reached_by_any_spelling(url: str) -> None:
    names = {
        "docs.example": [PUBLIC], "inside.example": ["127.0.0.1"], "mixed.example": [PUBLIC, "10.1.2.3"],
        "mapped.example": ["::ffff:10.0.0.1"], "localhost": ["127.0.0.1"], "localhost.": ["127.0.0.1"],
        "2130706433": ["127.0.0.1"], "0x7f.1": ["127.0.0.1"], "0177.0.0.1": ["127.0.0.1"], "127.1": ["127.0.0.1"],
        "2822734096": ["168.63.129.16"],
    }  # fmt: skip
    seen = Web({"/": giving("secret", "text/plain"), "/away": leading_to(url)}, names)
    async with fetching(seen) as pages:
        with pytest.raises(FetchFailed):
            await pages.page(url)
        assert seen.dialled == []
        if "://" in url and url != "http://":
            with pytest.raises(FetchFailed):
                await pages.page("http://docs.example/away")
            assert seen.asked == ["docs.example/away"]


@pytest.mark.fault(
    "gate: an address that the gate and the fetcher read differently: blanks, quotes, backslashes, hidden "
    "marks, user names"
)
@pytest.mark.parametrize(
    "url",
    [
        "http:///docs.example/", "http://docs.example/ @127.0.0.1/", "http://docs.example/p SECRET",
        "http://docs.example/\u200b", 'http://docs.example/"x', "http://docs.example/`x", "http://docs.example/<x",
        "http://docs.example/\nx", "http://docs.example/\\x", "http://docs.example/\u00a0x",
    ],
)  # fmt: skip
async def test_an_address_that_the_parser_would_rewrite_is_not_fetched(url: str) -> None:
    seen = Web({"/": giving("Hi", "text/plain")})
    async with fetching(seen) as pages:
        with pytest.raises(FetchFailed, match=r"cannot be fetched|InvalidURL"):
            await pages.page(url)
    assert seen.dialled == []


@pytest.mark.fault("web search: a private address in any spelling, also behind a redirect")
@pytest.mark.fault("web search: a cloud's own address outside the private networks", case="168.63.129.16")
@pytest.mark.parametrize(
    ("address", "public"),
    [
        (PUBLIC, True), ("2606:4700::1111", True), ("8.8.8.8", True), ("127.0.0.1", False), ("10.0.0.1", False),
        ("172.16.0.1", False), ("192.0.0.8", False), ("198.18.0.1", False), ("203.0.113.5", False),
        ("224.0.0.1", False), ("255.255.255.255", False), ("::", False), ("fe80::1%eth0", False), ("ff02::1", False),
        ("2001::1", False), ("2001:db8::1", False), ("64:ff9b:1::1", False), ("::127.0.0.1", False), ("x", False),
        ("168.63.129.16", False), ("::ffff:168.63.129.16", False), ("fd00:ec2::254", False), ("fd20:ce::254", False),
        ("100.100.100.200", False), ("192.0.0.192", False), ("169.254.169.254", False),
    ],
)  # fmt: skip
def test_only_addresses_of_the_public_internet_are_public(address: str, public: bool) -> None:
    assert is_public(address) is public


@pytest.mark.fault("web search: a redirect loop")
async def test_redirects_are_followed_to_public_pages_and_end() -> None:
    seen = Web({"/a": leading_to("/b"), "/b": leading_to("http://docs.example/c"), "/c": giving("Here.", "text/plain"),
                "/loop": leading_to("/loop")})  # fmt: skip
    async with fetching(seen) as pages:
        assert (await pages.page("http://docs.example/a")).url == "http://docs.example/c"
        with pytest.raises(FetchFailed, match="in circles"):
            await pages.page("http://docs.example/loop")
    assert seen.asked.count("docs.example/loop") == 6


@pytest.mark.fault("web search: a gzip bomb")
async def test_a_gzip_bomb_is_read_no_further_than_its_bound() -> None:
    bomb = gzip.compress(b"0" * 50_000_000)
    seen = Web({"/bomb": giving(bomb, "text/plain", **{"Content-Encoding": "gzip"})})
    async with fetching(seen, max_bytes=100_000) as pages:
        page = await pages.page("http://docs.example/bomb")
    assert (len(page.text), page.cut) == (100_000, True)
    assert "larger than what is read of a page" in page_piece(page, 99_990, 100)


@pytest.mark.fault("web search: a PDF of a kilobyte that is gigabytes of text")
@pytest.mark.system
async def test_a_pdf_bomb_is_reported_and_the_next_page_is_read() -> None:
    seen = Web({"/bomb": giving(bomb_pdf(1_000_000), "application/pdf"), "/bridge": giving(ARTICLE)})
    async with fetching(seen) as pages:
        with pytest.raises(FetchFailed, match="takes too much memory"):
            await pages.page("http://docs.example/bomb")
        assert "five arches" in (await pages.page("http://docs.example/bridge")).text


@pytest.mark.parametrize(
    ("encoding", "body"),
    [
        ("gzip", gzip.compress(b"plain words", mtime=0)), ("deflate", zlib.compress(b"plain words")),
        ("deflate", zlib.compress(b"plain words")[2:-4]), ("identity", b"plain words"),
    ],
    ids=["gzip", "deflate", "bare deflate", "identity"],
)  # fmt: skip
async def test_usual_encodings_are_read(encoding: str, body: bytes) -> None:
    seen = Web({"/": giving(body, "text/plain; charset=utf-8", **{"Content-Encoding": encoding})})
    async with fetching(seen) as pages:
        assert (await pages.page("http://docs.example/")).text == "plain words"


@pytest.mark.fault("web search: a page of a type that is not read")
@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (giving(b"\0\1", "application/zip"), "application/zip"), (giving(b"\0\1", "image/png"), "image/png"),
        (giving(b"\0\1", ""), "unknown type"), (giving(b"\0", **{"Content-Encoding": "br"}), "compressed"),
        (giving(b"\0\1 binary", **{"Content-Encoding": "gzip"}), "damaged"),
        (giving(b"\0", **{"Content-Encoding": "gzip, gzip"}), "compressed"),
        (giving(b""), "no readable text"), (giving(b"<html><body></body></html>"), "no readable text"),
        (giving(b"<script>render()</script>"), "no readable text"),
        *((refusing(status), f"status {status}") for status in (403, 404, 500)),
    ],
)  # fmt: skip
async def test_what_is_no_readable_page_is_reported(answer: Answer, sentence: str) -> None:
    async with fetching(Web({"/": answer}, {"nowhere.example": [], "docs.example": [PUBLIC]})) as pages:
        with pytest.raises(FetchFailed, match=sentence):
            await pages.page("http://docs.example/")
        with pytest.raises(FetchFailed, match="there is no such host"):
            await pages.page("http://nowhere.example/")


@pytest.mark.fault("web search: a slow server")
async def test_a_slow_page_is_given_up_in_time() -> None:
    async def drip(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse(headers={"Content-Type": "text/plain"})
        await answer.prepare(request)
        for _ in range(1000):
            await answer.write(b"drop ")
            await asyncio.sleep(0.05)
        return answer

    async with fetching(Web({"/slow": drip}), seconds=0.3) as pages:
        started = perf_counter()
        with pytest.raises(FetchFailed, match=r"took longer than 0\.3 s"):
            await pages.page("http://docs.example/slow")
        assert perf_counter() - started < 10


async def test_json_is_laid_out_and_other_charsets_are_read() -> None:
    page = "<html><head><meta charset=koi8-r></head><body><p>Каменный мост</p></body></html>"
    pages_by_path = {
        "/j": giving('{"a":[1,2]}', "application/json"),
        "/r": giving("Мост".encode("cp1251"), "text/plain; charset=windows-1251"),
        "/m": giving(page.encode("koi8-r")),
    }
    async with fetching(Web({**pages_by_path})) as pages:
        assert '"a": [\n' in (await pages.page("http://docs.example/j")).text
        assert (await pages.page("http://docs.example/r")).text == "Мост"
        assert "Каменный мост" in (await pages.page("http://docs.example/m")).text


async def test_the_rate_of_fetches_is_bounded() -> None:
    async with fetching(Web({f"/{n}": giving("Hi", "text/plain") for n in range(3)}), per_minute=2) as pages:
        await pages.page("http://docs.example/0")
        await pages.page("http://docs.example/1")
        with pytest.raises(FetchFailed, match="Too many pages"):
            await pages.page("http://docs.example/2")
