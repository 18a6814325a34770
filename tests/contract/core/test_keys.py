"""Per-request keys: what they are, how long they live, what nested calls inherit, what they may grant."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession, web

from tests.support.core import RunningCore, local_core
from tests.support.core_files import CoreFiles
from tests.support.core_peers import Handler, answers, application, ask, calling, config, peer

GRANT = "/v1/ops/resource/per-request-permissions"

pytestmark = pytest.mark.local_core


async def status_of(core: RunningCore, key: str, path: str = "/v1/bucket") -> int:
    async with calling(core, key) as session, session.get(path) as answer:
        return answer.status


async def live_keys(session: ClientSession) -> list[dict[str, Any]]:
    async with session.get("/_test/keys") as answer:
        return await answer.json()


def nesting(core: list[RunningCore], deployment: str) -> Handler:
    """An application that calls another one with the key it was given."""

    async def answer(request: web.Request) -> web.Response:
        async with calling(core[0], request.headers["Api-Key"]) as session:
            inner = await ask(session, deployment, **{"X-CONVERSATION-ID": "another"})
        return web.json_response(inner.json, status=inner.status)

    return answer


async def test_13_7_a_key_works_until_the_response_ends(tmp_path: Path) -> None:
    during: list[int] = []

    async def uses_its_key(request: web.Request) -> web.Response:
        during.append(await status_of(core, request.headers["Api-Key"]))
        return web.json_response({})

    async with application(uses_its_key, tmp_path) as (app, core, session):
        await ask(session)
        assert during == [200]
        assert await status_of(core, app.last.key) == 401
        assert await live_keys(session) == []


@pytest.mark.parametrize(("core025", "after"), [(False, 401), (True, 200)])
async def test_13_7_a_key_expires_within_a_stream(tmp_path: Path, core025: bool, after: int) -> None:
    found: list[int] = []

    async def outlives_its_key(request: web.Request) -> web.Response:
        key = request.headers["Api-Key"]
        async with calling(core) as hooks:
            for seconds in (199, 2):
                await hooks.post("/_test/clock", json={"advance": seconds})
                found.append(await status_of(core, key))
        return web.json_response({})

    async with peer(outlives_its_key) as app:
        configuration = config({"app": app.url})
        async with (
            local_core(configuration, tmp_path, core025=core025, key_seconds=200.0) as core,
            calling(core) as session,
        ):
            await ask(session)
    assert found == [200, after]


async def test_keys_are_32_characters_and_new_for_every_call(tmp_path: Path) -> None:
    async with application(answers(), tmp_path) as (app, _, session):
        for _ in range(5):
            await ask(session)
    keys = {seen.key for seen in app.requests}
    assert len(keys) == 5
    assert all(re.fullmatch(r"[0-9A-Za-z_-]{32}", key) for key in keys)


async def test_a_nested_call_keeps_the_root_caller_and_extends_the_path(tmp_path: Path) -> None:
    live: list[dict[str, Any]] = []
    running: list[RunningCore] = []

    async def looks(request: web.Request) -> web.Response:
        async with calling(running[0]) as session:
            live.extend(await live_keys(session))
        async with (
            calling(running[0], request.headers["Api-Key"]) as session,
            session.get("/v1/user/info") as user,
        ):
            return web.json_response(await user.json())

    async with (
        peer(looks) as inner,
        peer(nesting(running, "inner")) as outer,
        local_core(config({"inner": inner.url, "outer": outer.url}), tmp_path) as core,
    ):
        running.append(core)
        async with calling(core) as session:
            root = {"X-CONVERSATION-ID": "mine", "X-JOB-TITLE": "engineer"}
            answer = await ask(session, "outer", **root)
    assert answer.json == {"roles": ["basic"], "project": "One"}
    outer_key, inner_key = live
    assert outer_key["execution_path"] == ["outer"]
    assert inner_key["execution_path"] == ["outer", "inner"]
    for key in live:
        assert (key["initiator"], key["conversation_id"], key["job_title"]) == ("Keys/One/", "mine", "engineer")


async def test_an_application_never_has_an_administrators_rights(tmp_path: Path) -> None:
    statuses: list[int] = []

    async def reloads(request: web.Request) -> web.Response:
        async with (
            calling(core, request.headers["Api-Key"]) as session,
            session.post("/v1/ops/config/reload") as answer,
        ):
            statuses.append(answer.status)
        return web.json_response({})

    async with (
        peer(reloads) as app,
        local_core(config({"app": app.url}), tmp_path) as core,
        calling(core, "key-admin") as session,
    ):
        await ask(session)
    assert statuses == [403]


async def test_13_12_an_application_has_its_own_bucket_and_its_folder_in_the_users(tmp_path: Path) -> None:
    async def looks(request: web.Request) -> web.Response:
        async with calling(core, request.headers["Api-Key"]) as session, session.get("/v1/bucket") as bucket:
            return web.json_response(await bucket.json())

    async with (
        peer(looks) as app,
        local_core(config({"my app": app.url}), tmp_path) as core,
        calling(core) as session,
        CoreFiles.of(core.url, "key-one") as files,
    ):
        seen = (await ask(session, "my%20app")).json
    assert seen["appdata"] == f"{files.bucket}/appdata/my%20app"
    assert seen["bucket"] != files.bucket


async def test_a_granted_file_is_readable_by_what_is_called_next_until_revoked(tmp_path: Path) -> None:
    running: list[RunningCore] = []
    listed: list[Any] = []

    async def reads(request: web.Request) -> web.Response:
        return web.json_response(await status_of(running[0], request.headers["Api-Key"], f"/v1/{url}"))

    async def grants(request: web.Request) -> web.Response:
        async with calling(running[0], request.headers["Api-Key"]) as session:
            body = {"resourcePermissions": [{"url": url, "permissions": ["READ"]}], "receiver": "inner"}
            found = [(await ask(session, "inner")).json]
            for operation in ("grant", "revoke"):
                async with session.post(f"{GRANT}/{operation}", json=body) as answer:
                    assert (answer.status, await answer.text()) == (200, "")
                async with session.post(f"{GRANT}/list", json={"receiver": "inner"}) as answer:
                    listed.append((await answer.json())["resourcePermissions"])
                found.append((await ask(session, "inner")).json)
            return web.json_response(found)

    async with (
        peer(reads) as inner,
        peer(grants) as outer,
        local_core(config({"inner": inner.url, "outer": outer.url}), tmp_path) as core,
    ):
        running.append(core)
        async with CoreFiles.of(core.url, "key-one") as files, calling(core) as session:
            url = files.url("a.csv")
            await files.put("a.csv", b"1,2")
            attached = {"role": "user", "content": "", "custom_content": {"attachments": [{"url": url}]}}
            answer = await ask(session, "outer", {"messages": [attached]})
    assert answer.json == [403, 200, 403]
    assert listed == [[{"url": url, "permissions": ["READ"]}], []]


async def test_granting_needs_a_per_request_key_a_receiver_a_list_and_the_right_itself(tmp_path: Path) -> None:
    async def refused(session: ClientSession, body: Any) -> int:
        async with session.post(f"{GRANT}/grant", json=body) as answer:
            return answer.status

    async def tries(request: web.Request) -> web.Response:
        entry = {"url": f"files/{bucket}/secret.csv"}
        async with calling(core, request.headers["Api-Key"]) as session:
            statuses = [
                await refused(session, body)
                for body in (
                    {"resourcePermissions": [entry]},
                    {"resourcePermissions": [], "receiver": "inner"},
                    {"resources": [{"url": "nonsense"}], "receiver": "inner"},
                    {"resources": [entry], "receiver": "inner"},
                    [],
                )
            ]
        return web.json_response(statuses)

    async with (
        application(tries, tmp_path) as (_, core, session),
        CoreFiles.of(core.url, "key-one") as files,
    ):
        bucket = files.bucket
        entry = {"url": f"files/{bucket}/a.csv"}
        assert await refused(session, {"resourcePermissions": [entry], "receiver": "inner"}) == 403
        assert (await ask(session)).json == [400, 400, 400, 403, 400]


async def test_parallel_calls_of_one_application_do_not_share_rights(tmp_path: Path) -> None:
    both = asyncio.Barrier(2)

    async def tries_everything(request: web.Request) -> web.Response:
        async with asyncio.timeout(5):
            await both.wait()
        key = request.headers["Api-Key"]
        return web.json_response({name: await status_of(core, key, f"/v1/{url}") for name, url in urls.items()})

    async with (
        peer(tries_everything) as app,
        local_core(config({"app": app.url}), tmp_path) as core,
        CoreFiles.of(core.url, "key-one") as one,
        CoreFiles.of(core.url, "key-two") as two,
    ):
        await one.put("a.csv")
        await two.put("b.csv")
        urls = {"key-one": one.url("a.csv"), "key-two": two.url("b.csv")}

        async def attach(caller: str) -> Any:
            content = {"attachments": [{"url": urls[caller]}]}
            async with calling(core, caller) as session:
                body = {"messages": [{"role": "user", "content": "", "custom_content": content}]}
                return (await ask(session, body=body)).json

        first, second = await asyncio.gather(attach("key-one"), attach("key-two"))
    assert first == {"key-one": 200, "key-two": 403}
    assert second == {"key-one": 403, "key-two": 200}


async def test_core_025_has_no_per_request_permissions(tmp_path: Path) -> None:
    async with (
        local_core(config(), tmp_path, core025=True) as core,
        calling(core) as session,
        session.post(f"{GRANT}/grant", json={}) as answer,
    ):
        assert (answer.status, await answer.text()) == (502, "No route")
