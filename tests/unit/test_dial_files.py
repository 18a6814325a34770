"""Files of DIAL for tools: contents, the user behind a key, and the sentences for failures."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from task.core_client.files import DialFiles
from task.errors import ToolError
from tests.support.core import local_core, served
from tests.support.core_files import CoreFiles
from tests.support.core_peers import ask, calling, config, peer

KEY, MEGABYTE = "key-one", 1 << 20
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@pytest.fixture
async def core(tmp_path: Path) -> AsyncGenerator[CoreFiles]:
    async with local_core(config(), tmp_path) as running, CoreFiles.of(running.url, KEY) as files:
        yield files


@pytest.fixture
def files(core: CoreFiles) -> DialFiles:
    return DialFiles(core.base_url)


@asynccontextmanager
async def answering(handler: Handler) -> AsyncGenerator[str]:
    """A Core of which only the fault matters."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handler)
    async with served(app) as url:
        yield url


async def test_a_file_is_found_by_every_spelling_of_its_url(files: DialFiles, core: CoreFiles) -> None:
    stored = await core.put("dir/my%20report%231.csv", b"1,2\n", type="text/csv")
    for prefix in ("", f"{core.base_url}/v1/", " "):
        url = prefix + core.url("dir/my%20report%231.csv")
        file, about = await files.download(url, KEY, MEGABYTE), await files.metadata(url, KEY)
        assert (file.content, about.size, about.url) == (b"1,2\n", 4, core.url("dir/my%20report%231.csv"))
        for found in (file, about):
            assert (found.name, found.content_type, found.etag) == ("my report#1.csv", "text/csv", stored.etag)
    await core.put("%D0%BE%D1%82%D1%87%D1%91%D1%82%20100%25.csv", b"x")
    assert (await files.download(core.url("отчёт 100%.csv"), KEY, MEGABYTE)).content == b"x"


async def test_an_upload_goes_home_under_a_unique_and_valid_name(files: DialFiles, core: CoreFiles) -> None:
    urls = [await files.upload("my chart #1.png", b"png", "image/png", KEY) for _ in range(2)]
    assert urls[0] != urls[1]
    for url in urls:
        assert url.startswith(core.url("my%20chart%20%231_"))
        file = await files.download(url, KEY, MEGABYTE)
        assert (file.content, file.content_type, file.name[-4:]) == (b"png", "image/png", ".png")
    for name in ("", "..", "a/b\\c{d}\n.", "x" * 500 + ".txt", "." * 10, "отчёт.csv", "a?b#c%41.txt"):
        url = await files.upload(name, name.encode(), "text/plain", KEY)
        assert (await files.download(url, KEY, MEGABYTE)).content == name.encode()


@pytest.mark.fault("gate: a chart that loads pictures, maps or addresses from elsewhere")
async def test_a_chart_is_stored_without_remote_sources(files: DialFiles) -> None:
    picture = b'{"data":[1.5],"layout":{"images":[{"source":"https://evil.example/p"}]}}'
    url = await files.upload("chart.json", picture, "application/vnd.plotly.v1+json", KEY)
    assert (await files.download(url, KEY, 1_000)).content == b'{"data":[1.5],"layout":{"images":[]}}'
    with pytest.raises(ToolError, match="is not a chart"):
        await files.upload("chart.json", b"text", "application/vnd.plotly.v1+json", KEY)


async def test_inside_a_request_files_go_where_the_user_reads_them(tmp_path: Path) -> None:
    endpoints: list[str] = []
    results: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        files, key = DialFiles(endpoints[0]), request.headers["Api-Key"]
        results.extend([await files.principal(key), await files.upload("chart.png", b"png", "image/png", key)])
        return web.json_response({"choices": []})

    async with peer(answer) as agent, local_core(config({"my agent": agent.url}), tmp_path) as core:
        endpoints.append(core.url)
        async with calling(core) as session:
            assert (await ask(session, "my%20agent")).status == 200
        files = DialFiles(core.url)
        principal, url = results
        assert principal == await files.principal(KEY)
        assert url.startswith(f"files/{principal}/appdata/my%20agent/chart_")
        assert (await files.download(url, KEY, MEGABYTE)).content == b"png"


NOT_FILES = """
    files/report.csv report.csv /files/b/a.csv v1/files/b/a.csv conversations/b/a metadata/files/b/dir/ files/b/
    files/b/dir/ files/b/../c/a.csv files/b/%2e%2e/a.csv files/b/a%2Fb.csv files/b/a%00.csv files/b//a.csv
    files/b/a.csv?x=1 files/b/a.csv#y data:text/csv,1 file:///etc/passwd http://[broken/v1/files/b/a.csv
    http://127.0.0.1:notaport/v1/files/b/a.csv
"""


@pytest.mark.fault("file: path tricks in a file's address")
async def test_what_is_not_a_dial_file_is_refused_with_the_valid_form() -> None:
    files = DialFiles("http://127.0.0.1:9")
    for url in ("", *NOT_FILES.split()):
        for call in (files.download(url, KEY, MEGABYTE), files.metadata(url, KEY)):
            with pytest.raises(ToolError, match=r"files/\{bucket\}/\{path\}"):
                await call


@pytest.mark.fault("file: a foreign host in file_url")
async def test_a_key_is_never_sent_to_another_host(files: DialFiles, core: CoreFiles) -> None:
    reached: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        reached.append(request.path)
        return web.Response(text="caught")

    async with answering(answer) as evil:
        host = evil.removeprefix("http://")
        path = f"/v1/{core.url('a.csv')}"
        own = core.base_url
        starts = (evil, f"{own}@{host}", f"http://user:password@{host}", f"{own}.{host}", f"//{host}", f"{own}/other")
        for start in (*starts, f"{own}\\@{host}", f"{own}/v1/files/b/../../..//{host}"):
            with pytest.raises(ToolError, match=r"files/\{bucket\}/\{path\}"):
                await files.download(start + path, KEY, MEGABYTE)
    assert reached == []


async def test_an_endpoint_below_a_path_is_part_of_its_urls() -> None:
    async def answer(request: web.Request) -> web.Response:
        return web.Response(text=request.raw_path)

    async with answering(answer) as url:
        files = DialFiles(f"{url}/dial/")
        for given in ("files/b/a.txt", f"{url}/dial/v1/files/b/a.txt"):
            assert (await files.download(given, KEY, MEGABYTE)).content == b"/dial/v1/files/b/a.txt"
        with pytest.raises(ToolError, match="not on this DIAL Core"):
            await files.download(f"{url}/v1/files/b/a.txt", KEY, MEGABYTE)


@pytest.mark.fault("file: an attachment that cannot be read")
async def test_a_file_that_cannot_be_read_says_what_to_do(files: DialFiles, core: CoreFiles) -> None:
    async with CoreFiles.of(core.base_url, "key-two") as other:
        theirs = (await other.put("a.csv")).json["url"]
    advice = {
        core.url("missing.csv"): r"There is no .*attach the file again",
        theirs: r"No access to .*attach it to the message",
        "files/nobody0/a.csv": r"refuses .*exactly as it stands",
    }
    for url, sentence in advice.items():
        for call in (files.download(url, KEY, MEGABYTE), files.metadata(url, KEY)):
            with pytest.raises(ToolError, match=sentence):
                await call
    await core.put("a", b"x" * 1000)
    assert len((await files.download(core.url("a"), KEY, 1000)).content) == 1000
    with pytest.raises(ToolError, match="larger than 999 bytes"):
        await files.download(core.url("a"), KEY, 999)


async def test_a_dead_key_is_explained_without_showing_it(files: DialFiles, core: CoreFiles) -> None:
    one, more, two = [await files.principal(key) for key in ("key-one", "key-one-more", "key-two")]
    assert one == more != two
    await core.put("a", b"content")
    async with asyncio.timeout(20):
        answers = await asyncio.gather(
            *(files.download(core.url("a"), key, 10) for key in ("key-one", "key-two") * 10), return_exceptions=True
        )
    assert [isinstance(answer, ToolError) for answer in answers] == [False, True] * 10
    dead = "dead-key-of-a-past-request"
    calls = (
        files.download(core.url("a"), dead, 1), files.metadata(core.url("a"), dead),
        files.upload("a", b"", "text/plain", dead), files.principal(dead),
    )  # fmt: skip
    for call in calls:
        with pytest.raises(ToolError, match="does not accept this request's key") as refused:
            await call
        assert dead not in str(refused.value)


@asynccontextmanager
async def homes(*answers: web.Response) -> AsyncGenerator[tuple[DialFiles, list[str], str]]:
    """A Core that gives these answers about a key's home in turn; the keys it was asked with, and its address."""
    keys: list[str] = []

    async def bucket(request: web.Request) -> web.Response:
        keys.append(request.headers["Api-Key"])
        return answers[len(keys) - 1]

    async with answering(bucket) as url, aiohttp.ClientSession() as session:
        yield DialFiles(url, session=session), keys, url


@pytest.mark.parametrize(
    ("answers", "principal"),
    [
        ([{"bucket": "user"}], "user"),
        ([{"bucket": "agent", "appdata": "user/appdata/agent"}], "user"),
        ([401], None),
        ([500], None),
    ],
)
async def test_the_principal_is_the_users_bucket(answers: list[Any], principal: str | None) -> None:
    given = [web.Response(status=a) if isinstance(a, int) else web.json_response(a) for a in answers]
    async with homes(*given) as (files, keys, _):
        with nullcontext() if principal else pytest.raises(ToolError):
            assert await files.principal("k") == principal
    assert keys == ["k"] * len(answers)


async def test_the_key_does_not_follow_to_another_host() -> None:
    async with homes(web.json_response({"bucket": "another"})) as (_, keys, other):
        away = web.Response(status=302, headers={"Location": f"{other}/v1/bucket"})
        async with homes(away) as (files, *_):
            with pytest.raises(ToolError, match="status 302"):
                await files.principal("k")
    assert keys == []


@pytest.mark.fault("file: a download over the limit")
@pytest.mark.parametrize("packed", [False, True])
async def test_reading_stops_when_the_limit_is_passed(packed: bool) -> None:
    sent: list[int] = []
    gone = asyncio.Event()

    async def endless(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse(headers={"Content-Encoding": "gzip"} if packed else {})
        await answer.prepare(request)
        chunk = gzip.compress(b"x" * MEGABYTE) if packed else b"x" * 65536
        try:
            while True:
                await answer.write(chunk)
                sent.append(len(chunk))
        finally:
            gone.set()

    async with answering(endless) as url, asyncio.timeout(20):
        with pytest.raises(ToolError, match="larger than 1,000,000 bytes"):
            await DialFiles(url).download("files/b/a", KEY, 1_000_000)
        await gone.wait()
    assert sum(sent) < 64 * MEGABYTE


def saying(text: str, status: int = 200) -> Handler:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(status=status, text=text)

    return answer


async def silent(_: web.Request) -> web.Response:
    await asyncio.Event().wait()
    return web.Response()


async def broken_off(request: web.Request) -> web.StreamResponse:
    answer = web.StreamResponse(headers={"Content-Length": "1000"})
    await answer.prepare(request)
    await answer.write(b"x" * 10)
    assert request.transport is not None
    request.transport.close()
    return answer


@pytest.mark.parametrize(
    ("core", "calls", "sentence"),
    [
        *((saying("secret", status), "download metadata principal", f"status {status}") for status in (500, 503, 418)),
        (saying("<html> secret"), "metadata principal", "could not be understood"),
        (broken_off, "download", "broke off"),
        (silent, "download metadata upload principal", "took too long"),
        (None, "download principal", "could not be reached"),
    ],
)
async def test_whatever_core_does_is_a_sentence_soon(
    core: Handler | None, calls: str, sentence: str, unused_tcp_port: int
) -> None:
    nowhere = f"http://127.0.0.1:{unused_tcp_port}"
    async with answering(core) if core else nullcontext(nowhere) as url, asyncio.timeout(20):
        files = DialFiles(url, seconds=0.1 if core is silent else 10)
        asked = {
            "download": lambda: files.download("files/b/a", KEY, 10_000),
            "metadata": lambda: files.metadata("files/b/a", KEY),
            "upload": lambda: files.upload("a", b"", "text/plain", KEY),
            "principal": lambda: files.principal(KEY),
        }
        for call in calls.split():
            with pytest.raises(ToolError, match=sentence) as refused:
                await asked[call]()
            assert "secret" not in str(refused.value)
