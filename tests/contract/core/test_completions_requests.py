"""What Core checks before it calls an application, and what the application then sees."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tests.support.core import RunningCore, local_core
from tests.support.core_files import CoreFiles
from tests.support.core_peers import answers, application, ask, calling, config, peer

TRACE = "0af7651916cd43dd8448eb211c80319c"

pytestmark = pytest.mark.local_core


@pytest.mark.parametrize(
    ("deployment", "body", "headers", "status", "text"),
    [
        ("app", None, {"Content_Type": "text/plain"}, 415, "Only application/json is supported"),
        ("unheard-of", None, {}, 404, "Unknown application: unheard-of"),
        ("for-others", None, {}, 403, "Forbidden deployment: for-others"),
        ("for-others", None, {"Api_Key": "key-two"}, 200, None),
        ("for-nobody", None, {}, 403, "Forbidden deployment: for-nobody"),
        ("nowhere", None, {}, 503, ""),
        ("app", b"[]", {}, 400, ""),
        ("app", b"{not json", {}, 400, ""),
        ("app", None, {"Content_Type": "application/json; charset=utf-8"}, 200, None),
    ],
)
async def test_13_3_each_check_has_its_own_response(
    tmp_path: Path, deployment: str, body: Any, headers: dict[str, str], status: int, text: str | None
) -> None:
    async with peer(answers()) as app:
        applications = {
            "app": app.url,
            "for-others": {"endpoint": app.url, "userRoles": ["other"]},
            "for-nobody": {"endpoint": app.url, "user_roles": []},
            "nowhere": {"displayName": "No endpoint"},
        }
        async with local_core(config(applications), tmp_path) as core, calling(core) as session:
            answer = await ask(session, deployment, body, **headers)
    assert (answer.status, answer.text if text is not None else None) == (status, text)
    assert len(app.requests) == (status == 200)


async def test_13_4_the_application_sees_what_it_may_see(tmp_path: Path) -> None:
    sent = {
        "X-CONVERSATION-ID": "conversations%2Fb%2Fapp__Hello",
        "X-Foo": "unchanged",
        "Authorization": "Bearer key-one",
        "traceparent": f"00-{TRACE}-b7ad6b7169203331-01",
        "tracestate": "vendor=1",
        "X-DIAL-APPLICATION-PROPERTIES": "{}",
        "X-DIAL-DEPLOYMENT-FEATURES": "{}",
    }
    async with application(answers(), tmp_path) as (app, _, session):
        await ask(session, query="api-version=2024-02-01&x=a%20b+c", **sent)
    seen = app.last
    assert seen.url == "/?api-version=2024-02-01&x=a%20b+c"
    assert (len(seen.key), seen.key == "key-one") == (32, False)
    assert (seen.headers["X-CONVERSATION-ID"], seen.headers["X-Foo"]) == (sent["X-CONVERSATION-ID"], "unchanged")
    forged = {"X-DIAL-APPLICATION-PROPERTIES", "X-DIAL-DEPLOYMENT-FEATURES"}
    assert (forged | {"Authorization", "Accept-Encoding"}).isdisjoint(seen.headers)
    assert seen.headers["traceparent"].split("-")[:2] == ["00", TRACE]
    assert seen.headers["X-DIAL-DEPLOYMENT-ID"] == "app"
    assert int(seen.headers["Content-Length"]) == len(seen.body)


@pytest.mark.parametrize("text", [b"", b"a" * 2_000_000], ids=["small", "large"])
async def test_a_body_that_needs_no_change_arrives_byte_for_byte(tmp_path: Path, text: bytes) -> None:
    body = b'{ "messages" : [ ], "big": 123456789012345678901234567890, "x": 1.10, "text": "%s" }' % text
    async with application(answers(), tmp_path) as (app, _, session):
        await ask(session, body=body)
    assert app.last.body == body


async def test_ids_may_contain_slashes_and_other_characters(tmp_path: Path) -> None:
    async with peer(answers()) as app:
        named = config({"applications/b/my app": app.url, "chat/completions": app.url})
        async with local_core(named, tmp_path) as core, calling(core) as session:
            for name in ("applications/b/my%20app", "applications%2Fb%2Fmy%20app", "chat/completions"):
                assert (await ask(session, name)).status == 200
            slashes = f"{core.url}///openai/deployments/chat/completions/embeddings"
            async with session.post(slashes, json={}) as answer:
                assert answer.status == 200


async def test_a_model_is_called_with_its_first_upstream(tmp_path: Path) -> None:
    upstreams = [{"endpoint": "http://first", "key": "k1", "weight": 1}, {"endpoint": "http://second", "key": "k2"}]
    async with peer(answers()) as adapter:
        models = {"m": {"endpoint": adapter.url, "upstreams": upstreams}}
        async with local_core(config(models=models), tmp_path) as core, calling(core) as session:
            await ask(session, "m")
    seen = adapter.last.headers
    assert (seen["X-UPSTREAM-ENDPOINT"], seen["X-UPSTREAM-KEY"]) == ("http://first", "k1")


async def status_of(core: RunningCore, key: str, path: str = "/v1/bucket") -> int:
    async with calling(core, key) as session, session.get(path) as answer:
        return answer.status


@pytest.mark.parametrize(("version", "after"), [(48, 401), (25, 200)])
async def test_13_7_a_key_expires_within_a_stream(tmp_path: Path, version: int, after: int) -> None:
    found: list[int] = []
    now = [0.0]

    async def outlives_its_key(request: web.Request) -> web.Response:
        for seconds in (199, 2):
            now[0] += seconds
            found.append(await status_of(core, request.headers["Api-Key"]))
        return web.json_response({})

    switches: dict[str, Any] = {"version": version, "key_seconds": 200.0, "clock": lambda: now[0]}
    async with application(outlives_its_key, tmp_path, **switches) as (_, core, session):
        await ask(session)
    assert found == [200, after]


async def test_parallel_calls_of_one_application_do_not_share_rights(tmp_path: Path) -> None:
    both = asyncio.Barrier(2)

    async def tries_everything(request: web.Request) -> web.Response:
        async with asyncio.timeout(5):
            await both.wait()
        key = request.headers["Api-Key"]
        return web.json_response({name: await status_of(core, key, f"/v1/{url}") for name, url in urls.items()})

    async with (
        application(tries_everything, tmp_path) as (_, core, _),
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
