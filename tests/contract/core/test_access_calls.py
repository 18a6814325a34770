"""Buckets and rights over HTTP: of users, of applications called by them, and of others."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import ClientSession, web

from tests.support.core import RunningCore, local_core
from tests.support.core_files import CoreFiles
from tests.support.core_peers import ask, calling, config, peer

Work = Callable[[CoreFiles], Awaitable[None]]


@asynccontextmanager
async def agent_at(work: Work, tmp_path: Path, *, name: str = "agent") -> AsyncGenerator[RunningCore]:
    """A Core whose application does `work` with the key of each request before it answers."""
    running: list[RunningCore] = []

    async def answer(request: web.Request) -> web.Response:
        async with CoreFiles.of(running[0].url, request.headers["Api-Key"]) as own:
            await work(own)
        return web.json_response({"choices": []})

    async with peer(answer) as application, local_core(config({name: application.url}), tmp_path) as core:
        running.append(core)
        yield core


async def call_agent(core: RunningCore, *attached: str, name: str = "agent") -> None:
    attachments = [{"type": "text/csv", "title": url, "url": url} for url in attached]
    message = {"role": "user", "content": "Hello", "custom_content": {"attachments": attachments}}
    async with calling(core) as session:
        assert (await ask(session, name, {"messages": [message]})).status == 200


def token(subject: str) -> str:
    parts = ({"alg": "none"}, {"sub": subject})
    return ".".join(base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts) + "."


async def bucket_of(core: RunningCore, **headers: str) -> str:
    async with ClientSession(core.url, headers=headers) as session, session.get("/v1/bucket") as answer:
        body = await answer.json()
        assert list(body) == ["bucket"]
        return body["bucket"]


@pytest.mark.local_core
async def test_13_12_keys_of_one_project_share_a_bucket_and_projects_do_not(core: RunningCore) -> None:
    keys = ("key-one", "key-one-more", "key-two")
    one, one_more, two = [await bucket_of(core, **{"Api-Key": key}) for key in keys]
    assert one == one_more != two
    assert one.isalnum()
    assert two.isalnum()


@pytest.mark.local_core
async def test_13_12_a_user_with_a_token_has_a_bucket_of_their_own(core: RunningCore) -> None:
    subjects = ("ann", "bob", "ann")
    ann, bob, again = [await bucket_of(core, Authorization=f"Bearer {token(subject)}") for subject in subjects]
    assert ann == again
    assert len({ann, bob, await bucket_of(core, **{"Api-Key": "key-one"})}) == 3


@pytest.mark.local_core
async def test_13_12_a_bucket_is_the_same_after_a_restart_and_known_at_once(tmp_path: Path) -> None:
    async with local_core(config(), tmp_path) as core, CoreFiles.of(core.url, "key-one") as files:
        await files.put("a", b"kept")
        path = files.file("a")
    async with local_core(config(), tmp_path) as core, CoreFiles.of(core.url, "key-two") as other:
        assert (await other.call("GET", path)).status == 403
        async with CoreFiles.of(core.url, "key-one") as files:
            assert (await files.call("GET", path)).body == b"kept"


@pytest.mark.local_core
@pytest.mark.parametrize(("name", "encoded"), [("agent", "agent"), ("my agent", "my%20agent")])
async def test_13_12_a_request_key_sees_its_own_bucket_and_its_folder_in_the_users(
    tmp_path: Path, name: str, encoded: str
) -> None:
    seen: list[dict[str, str]] = []

    async def work(own: CoreFiles) -> None:
        seen.append((await own.call("GET", "/v1/bucket")).json)

    async with agent_at(work, tmp_path, name=name) as core:
        await call_agent(core, name=encoded)
        user = await bucket_of(core, **{"Api-Key": "key-one"})
    assert seen[0]["appdata"] == f"{user}/appdata/{encoded}"
    assert seen[0]["bucket"] != user


@pytest.mark.local_core
async def test_13_10_an_application_reads_what_is_attached_and_writes_where_the_user_reads(tmp_path: Path) -> None:
    statuses: dict[str, int] = {}
    user_files: list[CoreFiles] = []

    async def work(own: CoreFiles) -> None:
        user = user_files[0].bucket
        calls = {
            "attached": ("GET", f"files/{user}/a%20b.csv"),
            "metadata of it": ("GET", f"metadata/files/{user}/a%20b.csv"),
            "change it": ("DELETE", f"files/{user}/a%20b.csv"),
            "not attached": ("GET", f"files/{user}/b.csv"),
            "the user's list": ("GET", f"metadata/files/{user}/"),
            "another's appdata": ("GET", f"files/{user}/appdata/agent-2/x"),
            "around the corner": ("GET", f"files/{user}/appdata/agent/%2e%2e/agent-2/x"),
        }
        for what, (method, path) in calls.items():
            statuses[what] = (await own.call(method, f"/v1/{path}")).status
        appdata = (await own.call("GET", "/v1/bucket")).json["appdata"]
        statuses["result"] = (await own.put(f"files/{appdata}/x.md", b"result")).status
        statuses["neighbour"] = (await own.put(f"files/{user}/appdata/agent-2/x.md")).status
        statuses["own bucket"] = (await own.put("cache.bin")).status
        statuses["own file"] = (await own.get("cache.bin")).status
        user_files.append(own)

    async with agent_at(work, tmp_path) as core, CoreFiles.of(core.url, "key-one") as user:
        user_files.append(user)
        for path in ("a%20b.csv", "b.csv", "appdata/agent-2/x"):
            await user.put(path)
        await call_agent(core, user.url("a%20b.csv"))
        assert (await user.get("appdata/agent/x.md")).body == b"result"
        hidden = user_files[1].url("cache.bin")
        refused = await user.call("GET", f"/v1/{hidden}")
    assert (refused.status, refused.text) == (403, f"You don't have an access to: {hidden}")
    assert statuses == {
        "attached": 200,
        "metadata of it": 200,
        "change it": 403,
        "not attached": 403,
        "the user's list": 403,
        "another's appdata": 403,
        "around the corner": 400,
        "result": 200,
        "neighbour": 403,
        "own bucket": 200,
        "own file": 200,
    }


@pytest.mark.parametrize("method", ["PUT", "GET", "DELETE"])
async def test_13_13_another_owners_bucket_is_a_403_and_an_unknown_one_a_400(
    files: CoreFiles, other: CoreFiles, method: str
) -> None:
    await other.put("dir/a.txt")
    for path in ("dir/a.txt", "missing.txt"):
        theirs = other.url(path)
        answer = await files.put(theirs) if method == "PUT" else await files.call(method, f"/v1/{theirs}")
        assert (answer.status, answer.text) == (403, f"You don't have an access to: {theirs}")
    answer = await files.call(method, "/v1/files/nobody0/a.txt")
    assert answer.status == 400
    assert answer.text.startswith("Url has invalid bucket: files/nobody0/")


async def test_13_14_metadata_of_another_owners_folder_is_a_403_and_of_an_unknown_one_a_400(
    files: CoreFiles, other: CoreFiles
) -> None:
    theirs = await files.call("GET", f"/v1/metadata/files/{other.bucket}/")
    assert (theirs.status, theirs.text) == (403, f"You don't have an access to: files/{other.bucket}/")
    nobodys = await files.call("GET", "/v1/metadata/files/nobody0/")
    assert (nobodys.status, nobodys.text) == (400, "Url has invalid bucket: files/nobody0/")


async def test_13_12_the_public_bucket_is_read_only(files: CoreFiles) -> None:
    assert (await files.put("files/public/a.txt")).status == 403
    assert (await files.call("GET", "/v1/files/public/missing.txt")).status == 404
    assert (await files.call("GET", "/v1/metadata/files/public/")).status == 200


@pytest.mark.local_core
async def test_core_025_has_move_and_no_copy(tmp_path: Path) -> None:
    async with local_core(config(), tmp_path, core025=True) as core, CoreFiles.of(core.url, "key-one") as files:
        await files.put("a")
        assert (await files.move("a", "b", call="copy")).status == 502
        assert (await files.move("a", "b")).status == 200
