"""What a deployment offers beside completions: configuration, rating, tokenizing, limits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.core import local_core
from tests.support.core_peers import answers, calling, config, dialling, peer

MAXIMUM = 2**63 - 1
CONFIGURATION = "/v1/deployments/my%20app/configuration"

pytestmark = pytest.mark.local_core


def with_features(**features: Any) -> dict[str, Any]:
    return config({"my app": {"endpoint": "http://127.0.0.1:9/", "features": features}})


async def test_13_17_a_declared_configuration_is_fetched_with_a_fresh_key(tmp_path: Path) -> None:
    async with peer(answers(200, {"type": "object"})) as app:
        document = with_features(configurationEndpoint=f"{app.url}/configuration")
        async with local_core(document, tmp_path) as core, calling(core) as session:
            async with session.get(f"{CONFIGURATION}?api-version=1") as answer:
                assert await answer.json() == {"type": "object"}
            async with session.get("/_test/keys") as keys:
                assert await keys.json() == []
            async with dialling(core) as dial:
                assert await dial.deployments.get_configuration_schema("my app") == {"type": "object"}
    assert app.requests[0].url == "/configuration"
    assert len(app.requests[0].key) == 32


async def test_13_17_what_is_not_declared_is_empty_or_forbidden(tmp_path: Path) -> None:
    async with local_core(with_features(), tmp_path) as core, calling(core) as session:
        async with session.get(CONFIGURATION) as answer:
            assert (answer.status, await answer.read()) == (200, b"")
        async with session.post("/v1/my%20app/rate", json={"rate": True, "responseId": "r1"}) as answer:
            assert (answer.status, await answer.read()) == (200, b"")
        for name in ("tokenize", "truncate_prompt"):
            async with session.post(f"/v1/deployments/my%20app/{name}", json={}) as answer:
                assert (answer.status, await answer.text()) == (403, "Forbidden deployment")


async def test_13_17_a_rating_reaches_the_application_and_its_response_the_caller(tmp_path: Path) -> None:
    rating = {"rate": True, "responseId": "r1", "comment": "good"}
    async with peer(answers(400, {"error": "own words"})) as app:
        document = with_features(rateEndpoint=f"{app.url}/rate", tokenizeEndpoint=f"{app.url}/tokenize")
        async with local_core(document, tmp_path) as core, calling(core) as session:
            for path in ("/v1/my%20app/rate", "/v1/deployments/my%20app/tokenize"):
                async with session.post(path, json=rating) as answer:
                    assert (answer.status, await answer.json()) == (400, {"error": "own words"})
    assert [seen.url for seen in app.requests] == ["/rate", "/tokenize"]
    assert app.requests[0].json == rating


async def test_13_17_an_endpoint_that_is_down_is_502(tmp_path: Path) -> None:
    document = with_features(configurationEndpoint="http://127.0.0.1:9/", rateEndpoint="http://127.0.0.1:9/")
    async with local_core(document, tmp_path) as core, calling(core) as session:
        async with session.get(CONFIGURATION) as answer:
            assert (answer.status, await answer.text()) == (502, "connection error to origin")
        async with session.post("/v1/my%20app/rate", json={}) as answer:
            assert answer.status == 502


@pytest.mark.parametrize("name", ["configuration", "limits"])
async def test_features_of_unknown_and_forbidden_deployments(tmp_path: Path, name: str) -> None:
    closed = config({"closed": {"endpoint": "http://x", "userRoles": ["other"]}})
    async with local_core(closed, tmp_path) as core, calling(core) as session:
        for deployment, status in (("unheard-of", 404), ("closed", 403)):
            async with session.get(f"/v1/deployments/{deployment}/{name}") as answer:
                assert answer.status == status


async def test_limits_are_the_best_of_the_callers_roles_else_the_default_roles_else_none(tmp_path: Path) -> None:
    roles = {
        "basic": {"limits": {"m": {"minute": "100", "requestHour": 5}}},
        "more": {"limits": {"m": {"minute": "200", "request_hour": 2}}},
        "default": {"limits": {"m": {"minute": 7}, "other": {"day": "9"}}},
    }
    keys = {"key": {"project": "P", "roles": ["basic", "more"]}}
    models = {name: {"endpoint": "http://m"} for name in ("m", "other", "free")}
    async with local_core({"keys": keys, "roles": roles, "models": models}, tmp_path) as core:
        found: dict[str, dict[str, int]] = {}
        for name in models:
            async with calling(core, "key") as session, session.get(f"/v1/deployments/{name}/limits") as answer:
                found[name] = {window: entry["total"] for window, entry in (await answer.json()).items()}
    assert found["m"]["minuteTokenStats"] == 200
    assert found["m"]["hourRequestStats"] == 5
    assert found["m"]["dayTokenStats"] == MAXIMUM
    assert found["other"]["dayTokenStats"] == 9
    assert set(found["free"].values()) == {MAXIMUM}
    assert len(found["free"]) == 6
