"""What Core checks before it calls an application, and what the application then sees."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tests.support.core import local_core
from tests.support.core_peers import answers, application, ask, calling, completion, config, peer

TRACE = "0af7651916cd43dd8448eb211c80319c"

pytestmark = pytest.mark.local_core


async def test_13_3_each_check_has_its_own_response(tmp_path: Path) -> None:
    async with peer(answers()) as app:
        applications = {
            "app": app.url,
            "for-others": {"endpoint": app.url, "userRoles": ["other"]},
            "for-nobody": {"endpoint": app.url, "user_roles": []},
            "nowhere": {"displayName": "No endpoint"},
        }
        async with local_core(config(applications), tmp_path) as core, calling(core) as session:

            async def refused(deployment: str, body: Any = None, **headers: str) -> tuple[int, str]:
                answer = await ask(session, deployment, body, **headers)
                return answer.status, answer.text

            assert await refused("app", Content_Type="text/plain") == (415, "Only application/json is supported")
            assert await refused("unheard-of") == (404, "Unknown application: unheard-of")
            assert await refused("for-others") == (403, "Forbidden deployment: for-others")
            assert await refused("for-nobody") == (403, "Forbidden deployment: for-nobody")
            assert await refused("nowhere") == (503, "")
            assert await refused("app", b"[]") == (400, "")
            assert await refused("app", b"{not json") == (400, "")
            assert app.requests == []
            assert (await refused("app", Content_Type="application/json; charset=utf-8"))[0] == 200


async def test_13_3_the_caller_must_have_one_of_the_deployments_roles(tmp_path: Path) -> None:
    async with peer(answers()) as app:
        for_others = config({"app": {"endpoint": app.url, "userRoles": ["other"]}})
        async with local_core(for_others, tmp_path) as core, calling(core, "key-two") as session:
            assert (await ask(session)).status == 200


async def test_13_4_the_application_sees_what_it_may_see(tmp_path: Path) -> None:
    async with peer(answers()) as app, local_core(config({"app": f"{app.url}/chat"}), tmp_path) as core:
        async with calling(core) as session:
            sent = {
                "X-CONVERSATION-ID": "conversations%2Fb%2Fapp__Hello",
                "X-Foo": "unchanged",
                "Authorization": "Bearer key-one",
                "traceparent": f"00-{TRACE}-b7ad6b7169203331-01",
                "tracestate": "vendor=1",
            }
            await ask(session, query="api-version=2024-02-01&x=a%20b+c", **sent)
        seen = app.last
        assert seen.url == "/chat?api-version=2024-02-01&x=a%20b+c"
        assert len(seen.key) == 32
        assert seen.key != "key-one"
        assert seen.headers["X-CONVERSATION-ID"] == sent["X-CONVERSATION-ID"]
        assert seen.headers["X-Foo"] == "unchanged"
        assert "Authorization" not in seen.headers
        assert "tracestate" not in seen.headers
        assert "Accept-Encoding" not in seen.headers
        version, trace, span, _ = seen.headers["traceparent"].split("-")
        assert (version, trace) == ("00", TRACE)
        assert span != "b7ad6b7169203331"
        assert seen.headers["X-DIAL-DEPLOYMENT-ID"] == "app"
        assert int(seen.headers["Content-Length"]) == len(seen.body)


async def test_13_4_the_token_is_forwarded_only_where_configured(tmp_path: Path) -> None:
    async with peer(answers()) as app:
        forwarding = config({"app": {"endpoint": app.url, "forwardAuthToken": True}})
        async with local_core(forwarding, tmp_path) as core, calling(core) as session:
            await ask(session, Authorization="Bearer key-one")
        assert app.last.headers["Authorization"] == "Bearer key-one"


async def test_13_4_defaults_are_added_for_missing_keys_only(tmp_path: Path) -> None:
    async with peer(answers()) as app:
        defaults = {"temperature": 0.5, "max_tokens": 10}
        with_defaults = config({"app": {"endpoint": app.url, "defaults": defaults}})
        async with local_core(with_defaults, tmp_path) as core, calling(core) as session:
            await ask(session, body={"messages": [], "temperature": 1, "custom_fields": {"configuration": {"a": None}}})
        assert app.last.json == {
            "messages": [],
            "temperature": 1,
            "custom_fields": {"configuration": {"a": None}},
            "max_tokens": 10,
        }


@pytest.mark.parametrize("text", [b"", b"a" * 2_000_000], ids=["small", "large"])
async def test_a_body_that_needs_no_change_arrives_byte_for_byte(tmp_path: Path, text: bytes) -> None:
    body = b'{ "messages" : [ ], "big": 123456789012345678901234567890, "x": 1.10, "text": "%s" }' % text
    async with peer(answers()) as app, local_core(config({"app": app.url}), tmp_path) as core:
        async with calling(core) as session:
            await ask(session, body=body)
        assert app.last.body == body


async def test_ids_may_contain_slashes_and_other_characters(tmp_path: Path) -> None:
    async with peer(answers()) as app:
        named = config({"applications/b/my app": app.url, "chat/completions": app.url})
        async with local_core(named, tmp_path) as core, calling(core) as session:
            assert (await ask(session, "applications/b/my%20app")).status == 200
            assert (await ask(session, "applications%2Fb%2Fmy%20app")).status == 200
            assert (await ask(session, "chat/completions")).status == 200
            slashes = f"{core.url}///openai/deployments/chat/completions/embeddings"
            async with session.post(slashes, json={}) as answer:
                assert answer.status == 200


@pytest.mark.parametrize("core025", [False, True])
async def test_schema_properties_reach_the_application(tmp_path: Path, core025: bool) -> None:
    forged = {"X-DIAL-APPLICATION-PROPERTIES": "{}", "X-DIAL-DEPLOYMENT-FEATURES": "{}"}
    async with peer(answers()) as app:
        entry = {"endpoint": app.url, "applicationProperties": {"tone": "kind"}, "applicationTypeSchemaId": "s"}
        async with local_core(config({"app": entry}), tmp_path, core025=core025) as core, calling(core) as session:
            await ask(session, body={"messages": [], "custom_fields": {"a": 1}}, **forged)
        seen = app.last
        if core025:
            assert seen.json["custom_fields"] == {"a": 1, "application_properties": {"tone": "kind"}}
            assert "X-DIAL-APPLICATION-PROPERTIES" not in seen.headers
        else:
            assert seen.headers["X-DIAL-APPLICATION-ID"] == "app"
            assert seen.headers["X-DIAL-APPLICATION-PROPERTIES"] == '{"tone":"kind"}'
            assert "X-DIAL-DEPLOYMENT-FEATURES" not in seen.headers


async def test_a_model_is_called_with_its_first_upstream_and_its_other_name(tmp_path: Path) -> None:
    async with peer(answers()) as adapter:
        upstreams = [
            {"endpoint": "http://first", "key": "k1", "extraData": {"region": "x"}, "weight": 1, "tier": 0},
            {"endpoint": "http://second", "key": "k2"},
        ]
        model = {"endpoint": adapter.url, "upstreams": upstreams, "overrideName": "real-name"}
        async with local_core(config(models={"m": model}), tmp_path) as core, calling(core) as session:
            await ask(session, "m")
    seen = adapter.last
    assert (seen.headers["X-UPSTREAM-ENDPOINT"], seen.headers["X-UPSTREAM-KEY"]) == ("http://first", "k1")
    assert seen.headers["X-UPSTREAM-EXTRA-DATA"] == '{"region":"x"}'
    assert seen.json["model"] == "real-name"


async def test_an_application_may_refuse_other_applications(tmp_path: Path) -> None:
    status: list[tuple[int, str]] = []
    async with peer(answers()) as inner:

        async def calls_inner(request: web.Request) -> web.Response:
            async with calling(core, request.headers["Api-Key"]) as session:
                answer = await ask(session, "inner")
                status.append((answer.status, answer.text))
            return web.json_response({})

        async with peer(calls_inner) as outer:
            closed = {"endpoint": inner.url, "features": {"accessibleByPerRequestKey": False}}
            async with (
                local_core(config({"outer": outer.url, "inner": closed}), tmp_path) as core,
                calling(core) as session,
            ):
                await ask(session, "outer")
                assert status == [(403, "Deployment inner is not accessible by outer")]
                assert (await ask(session, "inner")).status == 200


async def test_a_large_response_passes_completely(tmp_path: Path) -> None:
    body = {"choices": [], "text": "x" * 3_000_000}
    async with (
        application(answers(200, body, X_Own="kept", Connection="close"), tmp_path) as (_, _, session),
        completion(session) as answer,
    ):
        assert await answer.json() == body
        assert answer.headers["X-Own"] == "kept"
        assert answer.headers["X-UPSTREAM-ATTEMPTS"] == "1"
        assert "Content-Length" not in answer.headers
