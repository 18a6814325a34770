"""The tools for a user's files in DIAL, before a local Core: paths, bounds, guarded changes, and taking them back."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from task.conversation.messages import Message
from task.core_client.files import DialFiles
from task.core_client.user_files import KEPT, KEPT_FILES, UserFiles
from task.errors import ToolError
from task.llm.transport import new_session
from task.permissions.decisions import Effect
from task.tools.base import BaseTool
from task.tools.dial_files.tools import dial_file_tools
from tests.support.core import local_core, served
from tests.support.core_files import CoreFiles
from tests.support.core_peers import ask, calling, config, peer
from tests.support.tool_calls import call_of, params_of

KEY = "key-one"


@dataclass
class Desk:
    """One conversation with the tools; `files` are the user's own, as the user sees them, `before` its results."""

    tools: dict[str, BaseTool]
    files: CoreFiles
    key: str = KEY
    before: list[Message] = field(default_factory=list[Message])

    async def call(self, name: str, **arguments: Any) -> str:
        tool = self.tools[f"files_{name}"]
        params = params_of(call_of(tool.name, arguments), api_key=self.key)
        params.earlier = tuple(self.before)
        result = await tool.execute(params)
        self.before.append(result)
        return result.text()

    async def content(self, path: str) -> str | int:
        answer = await self.files.get(f"files/{self.files.bucket}/{path}")
        return answer.text if answer.status == 200 else answer.status

    async def kept(self) -> list[str]:
        return [item["url"] for item in (await self.files.metadata(KEPT, "limit=1000")).json["items"]]


@asynccontextmanager
async def tools_at(url: str) -> AsyncGenerator[dict[str, BaseTool]]:
    session = new_session()
    files = DialFiles(url, session=session)
    try:
        yield {tool.name: tool for tool in dial_file_tools(files)}
    finally:
        await session.close()


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncGenerator[Desk]:
    async with (
        local_core(config(), tmp_path) as core,
        CoreFiles.of(core.url, KEY) as files,
        tools_at(core.url) as tools,
    ):
        yield Desk(tools, files)


def test_only_reading_runs_without_a_question() -> None:
    effects = {tool.name: tool.effects for tool in dial_file_tools(DialFiles("http://127.0.0.1:9"))}
    reading = {name for name, found in effects.items() if found <= {Effect.READ}}
    assert reading == {"files_list", "files_search", "files_read"}
    assert all(found <= {Effect.WRITE} for name, found in effects.items() if name not in reading)


@pytest.mark.fault("DIAL files: names with blanks, percent signs, %2F, marks of URLs and other scripts")
@pytest.mark.parametrize(
    ("path", "stored"),
    [
        ("my notes/to do.md", "my%20notes/to%20do.md"),
        ("100%.md", "100%25.md"),
        ("a%2Fb.md", "a%252Fb.md"),
        ("what?#1.md", "what%3F%231.md"),
        ("./отчёт.md", "%D0%BE%D1%82%D1%87%D1%91%D1%82.md"),
        ("./files/b/x.md", "files/b/x.md"),
        ("metadata", "metadata"),
    ],
)
async def test_a_name_is_what_it_says(desk: Desk, path: str, stored: str) -> None:
    assert "wrote" in await desk.call("write", path=path, content="a\n")
    assert await desk.content(stored) == "a\n"
    assert await desk.call("read", path=path) == "a\n"
    shown = path if path.startswith("./files") else path.removeprefix("./")
    assert await desk.call("list", glob="*") == shown


@pytest.mark.fault("DIAL files: a path with '..', blank names, a slash in front, or half a character")
@pytest.mark.parametrize(
    "path",
    [
        *("../x", "a/../../x", "a//b", "/etc/passwd", " ", "a/ /b", "a\nb", "\ud800", "{x}", "https://evil.example/x"),
        *("files/{other}/../x", "files/b/%2e%2e/x", "files/b/a%2Fb", "file:///etc/passwd"),
        *(".undo/x", ".undo", "./.undo/x", "approvals/x"),
    ],
)
async def test_a_path_that_leads_elsewhere_is_refused(desk: Desk, path: str) -> None:
    for name, more in (("read", {}), ("write", {"content": "x"}), ("delete", {})):
        assert (await desk.call(name, path=path, **more)).startswith("Error: ")
    assert await desk.call("list", glob="*") == "[no files]"


@pytest.mark.fault("memory: the file of another door in the same bucket, by its URL")
def test_no_memory_in_the_bucket_is_a_file_for_the_model() -> None:
    files = UserFiles(DialFiles("http://127.0.0.1:9"), "key", "files/b/http/")
    for place in ("files/b/appdata/agent/.memory/memory.json", "files/b/.memory/memory.json", ".memory/memory.json"):
        with pytest.raises(ToolError, match="kept for other purposes"):
            files.url(place)


@pytest.mark.fault("DIAL files: a file changed between read and write")
async def test_a_file_that_changed_since_it_was_read_is_left_alone(desk: Desk) -> None:
    await desk.files.put("a.md", b"one\n")
    assert "is there already. Read it" in await desk.call("write", path="a.md", content="mine")
    assert await desk.call("read", path="a.md") == "one\n"
    await desk.files.put("a.md", b"two\n")
    for name, more in (
        ("write", {"content": "mine"}),
        ("edit", {"old_text": "two", "new_text": "mine"}),
        ("move", {"new_path": "b.md"}),
        ("delete", {}),
    ):
        assert "changed since you read it" in await desk.call(name, path="a.md", **more)
    assert await desk.content("a.md") == "two\n"
    await desk.call("read", path="a.md")
    assert "wrote a.md" in await desk.call("write", path="a.md", content="mine")
    assert "edited a.md (line 1)" in await desk.call("edit", path="a.md", old_text="mine", new_text="ours")
    assert await desk.content("a.md") == "ours"


@pytest.mark.fault("DIAL files: a file changed in the moment before a write reaches Core")
async def test_core_refuses_what_changed_in_the_last_moment(tmp_path: Path) -> None:
    async with local_core(config(), tmp_path) as core, CoreFiles.of(core.url, KEY) as files:

        async def overtake(request: web.Request) -> None:
            if request.method == "PUT" and request.path.endswith(("a.md", "new.md")):
                await files.put(request.path.rpartition("/")[2], b"theirs")

        async with passing(core.url, overtake) as url, tools_at(url) as tools:
            desk = Desk(tools, files)
            await files.put("a.md", b"one")
            await desk.call("read", path="a.md")
            for path in ("a.md", "new.md"):
                assert "Nothing was done" in await desk.call("write", path=path, content="mine")
                assert await desk.content(path) == "theirs"


@pytest.mark.fault("DIAL files: a file that is changed while it is moved or deleted")
async def test_what_is_changed_in_the_moment_of_a_move_stays_where_it_is(tmp_path: Path) -> None:
    async with local_core(config(), tmp_path) as core, CoreFiles.of(core.url, KEY) as files:
        overtaken: list[str] = []

        async def overtake(request: web.Request) -> None:
            if request.path.endswith("/move") and not overtaken:
                overtaken.append(request.path)
                await files.put("a.md", b"theirs")

        async with passing(core.url, overtake) as url, tools_at(url) as tools:
            desk = Desk(tools, files)
            for name, more in (("delete", {}), ("move", {"new_path": "b.md"})):
                await files.put("a.md", b"one")
                overtaken.clear()
                await desk.call("read", path="a.md")
                assert "changed in this moment" in await desk.call(name, path="a.md", **more)
                assert await desk.content("a.md") == "theirs"


async def test_every_change_is_taken_back_newest_first(desk: Desk) -> None:
    await desk.files.put("old.md", b"one\n", type="text/markdown")
    await desk.call("write", path="new.md", content="new")
    await desk.call("edit", path="old.md", old_text="one", new_text="two")
    await desk.call("move", path="old.md", new_path="sub/moved.md")
    await desk.call("delete", path="sub/moved.md")
    assert [await desk.content(path) for path in ("new.md", "old.md", "sub/moved.md")] == ["new", 404, 404]
    assert await desk.call("undo") == "undone: sub/moved.md is as it was before"
    assert await desk.content("sub/moved.md") == "two\n"
    assert await desk.call("undo", path="new.md") == "undone: new.md is gone again"
    assert await desk.call("undo") == "undone: old.md is as it was before"
    assert await desk.call("undo") == "undone: old.md is as it was before"
    assert (await desk.files.metadata("old.md")).json["contentType"] == "text/markdown"
    assert [await desk.content(path) for path in ("new.md", "old.md", "sub/moved.md")] == [404, "one\n", 404]
    assert "No change of this conversation is left" in await desk.call("undo")


@pytest.mark.fault("DIAL files: a change that is to be taken back, of a file that was changed since")
async def test_only_our_own_version_is_taken_back(desk: Desk) -> None:
    await desk.files.put("a.md", b"one")
    await desk.call("edit", path="a.md", old_text="one", new_text="two")
    await desk.call("write", path="b.md", content="b")
    await desk.call("move", path="b.md", new_path="c.md")
    for path in ("a.md", "c.md"):
        await desk.files.put(path, b"theirs")
        assert (await desk.call("undo", path=path)).startswith("Error: ")
        assert await desk.content(path) == "theirs"
    desk.before.clear()
    assert "No change of this conversation" in await desk.call("undo")


async def test_what_was_replaced_is_kept_within_bounds_and_out_of_sight(desk: Desk) -> None:
    await desk.call("write", path="a.md", content="version 0")
    for number in range(KEPT_FILES + 3):
        await desk.call("write", path="a.md", content=f"version {number + 1}")
    assert len(await desk.kept()) == KEPT_FILES
    assert await desk.call("list") == "a.md"
    assert "[1 lines]" in await desk.call("search", pattern="version")
    assert "as it was before" in await desk.call("undo")
    assert await desk.content("a.md") == f"version {KEPT_FILES + 2}"


async def test_lines_are_listed_found_and_read(desk: Desk) -> None:
    for path in ("a.md", "notes/b.md", "notes/deep/c.txt"):
        await desk.files.put(path, b"first\nThe Tray costs 40 euros\nlast\n")
    await desk.files.put("notes/picture.png", b"\x89PNG\0tray")
    assert await desk.call("list") == "a.md\nnotes/"
    assert await desk.call("list", path="notes/") == "notes/b.md\nnotes/deep/\nnotes/picture.png"
    assert await desk.call("list", glob="*.txt") == "notes/deep/c.txt"
    hit = ":2: The Tray costs 40 euros"
    assert await desk.call("search", pattern="tray", ignore_case=True, path="notes") == (
        f"notes/b.md{hit}\nnotes/deep/c.txt{hit}\n[2 lines]"
    )
    assert await desk.call("search", pattern=r"\d+ eur", regex=True, glob="a*") == f"a.md{hit}\n[1 lines]"
    assert (
        await desk.call("read", path="a.md", first_line=2, last_line=2)
        == "The Tray costs 40 euros\n[lines 2-2 of 3; go on with first_line=3]"
    )
    own = desk.files.url("a.md")
    assert "first" in await desk.call("read", path=own)
    assert "Name this file by its path: 'a.md'" in await desk.call("edit", path=own, old_text="first", new_text="x")


@pytest.mark.fault("DIAL files: a binary file, or one of 2 GB")
async def test_what_is_no_text_or_too_large_is_said(desk: Desk, tmp_path: Path) -> None:
    await desk.files.put("a.pdf", b"%PDF\xff\xfe", type="application/pdf")
    assert "file_content_extraction_tool" in await desk.call("read", path="a.pdf")

    async def answer(request: web.Request) -> web.StreamResponse:
        if request.path == "/v1/bucket":
            return web.json_response({"bucket": "b"})
        if request.path.startswith("/v1/metadata"):
            item = {"url": "files/b/big.log", "name": "big.log", "contentLength": 2**31}
            return web.json_response({"items": [item]})
        response = web.StreamResponse(headers={"Content-Length": str(2**31)})
        await response.prepare(request)
        return response

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    async with served(app) as url, tools_at(url) as tools:
        large = Desk(tools, desk.files)
        assert "is larger than 10,485,760 bytes" in await large.call("read", path="big.log")
        assert "[not searched: 1 files" in await large.call("search", pattern="x")


@pytest.mark.fault("DIAL files: 10,000 files in a folder, and a listing that never ends")
async def test_a_large_folder_is_read_in_pages_and_bounded(desk: Desk) -> None:
    asked: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        if request.path == "/v1/bucket":
            return web.json_response({"bucket": "b"})
        asked.append(request.query_string)
        start, endless = int(request.query.get("token", 0)), "endless" in request.path
        end = start + int(request.query["limit"])
        names = [] if endless else [f"{number:05}.txt" for number in range(start, end)]
        items = [{"url": f"files/b/{name}", "name": name, "contentLength": 1} for name in names]
        more = {"nextToken": str(end)} if endless or end < 10_000 else {}
        return web.json_response({"items": items, **more})

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    async with served(app) as url, tools_at(url) as tools:
        large = Desk(tools, desk.files)
        *names, note = (await large.call("list")).splitlines()
        assert (len(names), len(asked)) == (1_000, 2)
        assert "there are more" in note
        assert await large.call("list", glob="*9999.txt") == "09999.txt"
        assert len(asked) == 12
        assert "there are more" in await large.call("list", path="endless", glob="*")
        assert len(asked) == 32


@pytest.mark.fault("DIAL files: a file of another user")
async def test_another_users_files_are_closed(desk: Desk) -> None:
    async with CoreFiles.of(desk.files.base_url, "key-two") as theirs:
        await theirs.put("secret.md", b"secret")
        for name, more in (
            ("read", {}),
            ("list", {}),
            ("search", {"pattern": "secret"}),
            ("write", {"content": "x"}),
            ("edit", {"old_text": "secret", "new_text": "x"}),
            ("delete", {}),
            ("move", {"new_path": "mine.md"}),
        ):
            assert "No access to" in await desk.call(name, path=theirs.url("secret.md"), **more)
        await desk.call("write", path="mine.md", content="mine")
        assert "No access" in await desk.call("move", path="mine.md", new_path=theirs.url("x.md"))
        assert (await theirs.get("secret.md")).text == "secret"


@pytest.mark.fault("DIAL files: a folder deleted between list and read")
async def test_what_is_gone_since_it_was_listed_is_said(desk: Desk) -> None:
    await desk.files.put("sub/a.md", b"x")
    assert await desk.call("list") == "sub/"
    await desk.files.delete("sub/a.md")
    assert "sub/'. Check the URL" in await desk.call("list", path="sub")
    assert "sub/'. Check the URL" in await desk.call("search", pattern="x", path="sub")
    for name, more in (("read", {}), ("edit", {"old_text": "x", "new_text": "y"}), ("delete", {})):
        said = await desk.call(name, path="sub/a.md", **more)
        assert "There is no" in said
    assert "wrote sub/a.md" in await desk.call("write", path="sub/a.md", content="again")


async def test_in_a_request_paths_count_from_the_applications_folder(tmp_path: Path) -> None:
    said: list[str] = []
    endpoints: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        async with tools_at(endpoints[0]) as tools, CoreFiles.of(endpoints[0], KEY) as files:
            desk = Desk(tools, files, request.headers["Api-Key"])
            said.append(await desk.call("write", path="my notes/a.md", content="a"))
            said.append(await desk.call("list", glob="*"))
            said.append(await desk.call("read", path=files.url("own.md")))
            async with CoreFiles.of(endpoints[0], desk.key) as common:
                said.append(await desk.call("write", path=common.url("for-all.md"), content="x"))
        return web.json_response({"choices": []})

    async with peer(answer) as agent, local_core(config({"my agent": agent.url}), tmp_path) as core:
        endpoints.append(core.url)
        async with calling(core) as session, CoreFiles.of(core.url, KEY) as files:
            await files.put("own.md", b"the user's own")
            assert (await ask(session, "my%20agent")).status == 200
            assert (await files.get("appdata/my%20agent/my%20notes/a.md")).text == "a"
    assert said[:2] == ["wrote my notes/a.md (1 lines, 1 bytes)", "my notes/a.md"]
    assert "No access to" in said[2]
    assert "is not the user's" in said[3], "the application's own bucket is the same for all users"


@asynccontextmanager
async def passing(core: str, first: Callable[[web.Request], Awaitable[None]]) -> AsyncGenerator[str]:
    """A proxy in front of a Core that does something before it passes a request on."""
    import aiohttp
    from yarl import URL

    async def answer(request: web.Request) -> web.Response:
        body = await request.read()
        await first(request)
        headers = {name: value for name, value in request.headers.items() if name.lower() != "host"}
        target = URL(f"{core}{request.raw_path}", encoded=True)
        async with session.request(request.method, target, data=body, headers=headers) as found:
            shown = {name: found.headers[name] for name in ("Content-Type", "ETag") if name in found.headers}
            return web.Response(status=found.status, body=await found.read(), headers=shown)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    async with aiohttp.ClientSession(auto_decompress=True) as session, served(app) as url:
        yield url
