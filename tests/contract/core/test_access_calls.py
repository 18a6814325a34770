"""Buckets and rights over HTTP: of users, of applications called by them, and of others."""

from pathlib import Path

import pytest
from aiohttp import ClientSession, web

from tests.support.core import RunningCore, local_core, token_of
from tests.support.core_files import CoreFiles
from tests.support.core_peers import ask, calling, config, peer


async def bucket_of(core: RunningCore, **headers: str) -> str:
    async with ClientSession(core.url, headers=headers) as session, session.get("/v1/bucket") as answer:
        body = await answer.json()
        assert list(body) == ["bucket"]
        return body["bucket"]


@pytest.mark.local_core
async def test_13_12_a_project_and_a_user_each_have_a_bucket_of_their_own(core: RunningCore) -> None:
    one, one_more, two = [await bucket_of(core, **{"Api-Key": key}) for key in ("key-one", "key-one-more", "key-two")]
    users = ("ann", "bob", "ann")
    ann, bob, again = [await bucket_of(core, Authorization=f"Bearer {token_of(user)}") for user in users]
    assert (one, ann) == (one_more, again)
    assert len({one, two, ann, bob}) == 4
    assert one.isalnum()


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
async def test_13_10_an_application_reads_what_is_attached_and_writes_where_the_user_reads(tmp_path: Path) -> None:
    statuses: dict[str, int] = {}

    async def works(request: web.Request) -> web.Response:
        async with CoreFiles.of(core.url, request.headers["Api-Key"]) as own:
            home = (await own.call("GET", "/v1/bucket")).json
            assert home["appdata"] == f"{user.bucket}/appdata/my%20agent"
            assert home["bucket"] != user.bucket
            for what, method, path in (
                ("attached", "GET", "a%20b.csv"),
                ("change it", "DELETE", "a%20b.csv"),
                ("around the corner", "GET", "appdata/my%20agent/%2e%2e/agent-2/x"),
            ):
                statuses[what] = (await own.call(method, user.file(path))).status
            statuses["the user's list"] = (await own.metadata(user.url(""))).status
            statuses["result"] = (await own.put(f"files/{home['appdata']}/x.md", b"result")).status
            statuses["own bucket"] = (await own.put("cache.bin")).status
            return web.json_response(own.url("cache.bin"))

    async with (
        peer(works) as app,
        local_core(config({"my agent": app.url}), tmp_path) as core,
        calling(core) as session,
        CoreFiles.of(core.url, "key-one") as user,
    ):
        await user.put("a%20b.csv")
        content = {"attachments": [{"type": "text/csv", "url": user.url("a%20b.csv")}]}
        message = {"role": "user", "content": "Hello", "custom_content": content}
        hidden = (await ask(session, "my%20agent", {"messages": [message]})).json
        assert (await user.get("appdata/my%20agent/x.md")).body == b"result"
        refused = await user.call("GET", f"/v1/{hidden}")
    assert (refused.status, refused.text) == (403, f"You don't have an access to: {hidden}")
    assert statuses == {
        "attached": 200,
        "change it": 403,
        "around the corner": 400,
        "the user's list": 403,
        "result": 200,
        "own bucket": 200,
    }


@pytest.mark.parametrize("method", ["PUT", "GET", "DELETE", "METADATA"])
async def test_13_13_another_owners_bucket_is_a_403_and_an_unknown_one_a_400(
    files: CoreFiles, other: CoreFiles, method: str
) -> None:
    calls = {"PUT": files.put, "GET": files.get, "DELETE": files.delete, "METADATA": files.metadata}
    await other.put("dir/a.txt")
    for theirs in (other.url("dir/a.txt"), other.url("missing.txt")):
        answer = await calls[method](theirs)
        assert (answer.status, answer.text) == (403, f"You don't have an access to: {theirs}")
    answer = await calls[method]("files/nobody0/a.txt")
    assert answer.status == 400
    assert answer.text.startswith("Url has invalid bucket: files/nobody0/")
