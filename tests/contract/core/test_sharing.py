"""Automatic sharing: the application may read what a request attaches, the caller what the application returns."""

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession, web

from tests.support.core import RunningCore, local_core
from tests.support.core_files import CoreFiles
from tests.support.core_peers import DONE, Handler, answers, application, ask, calling, chunk, config, peer, streams
from tests.support.replies import Reply

pytestmark = pytest.mark.local_core


def attaching(*attachments: dict[str, Any]) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "", "custom_content": {"attachments": list(attachments)}}]}


SHAPES = {  # where a file may be attached
    "message": attaching({"url": "{url}"}),
    "image": {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "{url}"}}]}]},
    "text": {"messages": [{"role": "user", "content": [{"type": "text", "text": "x", "image_url": {"url": "{url}"}}]}]},
    "stage": {"messages": [{"custom_content": {"stages": [{"attachments": [{"url": "{url}"}]}]}}]},
    "input": {"custom_input": [[{"url": "{url}"}], "text"]},
}


@asynccontextmanager
async def asking(
    answer: Handler, tmp_path: Path
) -> AsyncGenerator[tuple[RunningCore, ClientSession, CoreFiles, CoreFiles]]:
    """A Core, a caller of its application, the caller's files, and the files of another caller."""
    async with (
        application(answer, tmp_path) as (_, core, session),
        CoreFiles.of(core.url, "key-one") as mine,
        CoreFiles.of(core.url, "key-two") as theirs,
    ):
        yield core, session, mine, theirs


@pytest.mark.parametrize("shape", SHAPES)
async def test_13_9_an_inaccessible_file_is_refused_wherever_it_is_attached(tmp_path: Path, shape: str) -> None:
    async with asking(answers(), tmp_path) as (_, session, _, theirs):
        url = theirs.url("secret%20plan.csv")
        await theirs.put("secret%20plan.csv")
        answer = await ask(session, body=json.dumps(SHAPES[shape]).replace("{url}", url).encode())
        assert (answer.status, answer.text) == (403, f"Access denied to the file {url}")


@pytest.mark.parametrize(
    "url",
    [
        *("files//x", "/files/{b}/a.csv", "v1/files/{b}/a.csv", "files/{b}/a.csv?x=1", "files/{b}/a.csv#x"),
        *("files/{b}/../a.csv", "files/{b}/%2e%2e/a.csv", "files/{b}/a%2Fb.csv", "a.csv", "files/{b}/dir/"),
    ],
)
async def test_13_9_a_malformed_url_is_an_empty_400(tmp_path: Path, url: str) -> None:
    async with asking(answers(), tmp_path) as (_, session, mine, _):
        answer = await ask(session, body=attaching({"url": url.format(b=mine.bucket)}))
        assert (answer.status, answer.text) == (400, "")


@pytest.mark.parametrize(
    "odd",
    [
        {"messages": ["text", {"content": [None, {"image_url": "x"}], "custom_content": 1}, None]},
        {"messages": 5, "custom_input": "text"},
        {"messages": [{"content": json.loads("[" * 900 + "]" * 900)}]},
    ],
    ids=["messages", "no messages", "deep"],
)
async def test_13_9_unexpected_shapes_are_left_to_the_application(tmp_path: Path, odd: dict[str, Any]) -> None:
    async with asking(answers(), tmp_path) as (_, session, _, _):
        assert (await ask(session, body=odd)).status == 200


def attached_url(answer: Reply) -> str:
    choice = (answer.chunks or [answer.json])[0]["choices"][0]
    return (choice.get("delta") or choice["message"])["custom_content"]["attachments"][0]["url"]


@pytest.mark.parametrize("stream", [True, False])
async def test_13_11_files_the_inner_application_returns_are_shared_with_the_outer_one_and_the_user(
    tmp_path: Path, stream: bool
) -> None:
    async def inner(request: web.Request) -> web.StreamResponse:
        async with CoreFiles.of(core.url, request.headers["Api-Key"]) as files:
            home = (await files.call("GET", "/v1/bucket")).json["appdata"]
            await files.put(f"files/{home}/made%20here.md", b"result")
        content = {"custom_content": {"attachments": [{"title": "x" * 500, "url": f"files/{home}/made%20here.md"}]}}
        if not stream:
            document = {"choices": [{"index": 0, "message": {"content": "", **content}}]}
            return web.json_response(text=json.dumps(document, indent=2))
        event = chunk(content)
        return await streams(event[:30], event[30:600], event[600:], DONE, seconds=0.002)(request)

    async def outer(request: web.Request) -> web.Response:
        key = request.headers["Api-Key"]
        async with calling(core, key) as session, CoreFiles.of(core.url, key) as files:
            url = attached_url(await ask(session, "inner"))
            return web.json_response([url, (await files.get(url)).status, (await files.put(url, b"changed")).status])

    async with (
        peer(inner) as inner_app,
        peer(outer) as outer_app,
        local_core(config({"inner": inner_app.url, "outer": outer_app.url}), tmp_path) as core,
        calling(core) as session,
        CoreFiles.of(core.url, "key-one") as mine,
    ):
        url = mine.url("appdata/inner/made%20here.md")
        assert (await ask(session, "outer")).json == [url, 200, 200]
        assert (await mine.get(url)).body == b"changed"


async def test_13_11_only_the_inner_applications_own_folder_is_shared(tmp_path: Path) -> None:
    async def inner(_: web.Request) -> web.Response:
        attachments = [{"url": mine.url("private.csv")}, {"url": "nonsense"}]
        return web.json_response({"choices": [{"message": {"custom_content": {"attachments": attachments}}}]})

    async def outer(request: web.Request) -> web.Response:
        key = request.headers["Api-Key"]
        async with calling(core, key) as session, CoreFiles.of(core.url, key) as files:
            await ask(session, "inner")
            return web.json_response((await files.get(mine.url("private.csv"))).status)

    async with (
        peer(inner) as inner_app,
        peer(outer) as outer_app,
        local_core(config({"inner": inner_app.url, "outer": outer_app.url}), tmp_path) as core,
        calling(core) as session,
        CoreFiles.of(core.url, "key-one") as mine,
    ):
        await mine.put("private.csv")
        assert (await ask(session, "outer")).json == 403
