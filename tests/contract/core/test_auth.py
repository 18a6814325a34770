"""Which requests are admitted: credentials, protocol, hosts and origins, in Core's order and wording."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession

from task.errors import SettingsError
from task.local.core.app import create_app
from task.local.core.core import CoreSettings
from tests.support.core import RunningCore, local_core
from tests.support.core_peers import calling, config

BUCKET = "/v1/bucket"


def token(claims: dict[str, Any], alg: str = "none", signature: str = "") -> str:
    parts = [base64.urlsafe_b64encode(json.dumps(part).encode()).decode() for part in ({"alg": alg}, claims)]
    return ".".join([*(part.rstrip("=") for part in parts), signature])


async def answer_to(core: RunningCore, method: str = "GET", path: str = BUCKET, **headers: str) -> tuple[int, str]:
    async with calling(core, None) as session:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        async with session.request(method, path, headers=named) as answer:
            return answer.status, await answer.text()


async def raw(core: RunningCore, text: str) -> str:
    """The first line of what Core answers to these exact bytes."""
    address = core.url.removeprefix("http://").split(":")
    async with asyncio.timeout(5):
        reader, writer = await asyncio.open_connection(address[0], int(address[1]))
        writer.write(text.replace("\n", "\r\n").encode())
        line = await reader.readline()
        writer.close()
        await writer.wait_closed()
    return line.decode().strip()


async def test_13_1_a_request_without_credentials_is_a_401(core: RunningCore) -> None:
    assert await answer_to(core) == (401, "At least API-KEY or Authorization header must be provided")


async def test_13_1_an_unknown_key_is_a_401(core: RunningCore) -> None:
    assert await answer_to(core, Api_Key="nobody's") == (401, "Unknown api key")


async def test_13_1_a_key_and_another_bearer_value_are_refused(core: RunningCore) -> None:
    key = core.keys[0]
    expected = "Either API-KEY or Authorization header must be provided but not both"
    assert await answer_to(core, Api_Key=key, Authorization="Bearer other") == (400, expected)


@pytest.mark.parametrize("authorization", ["Bearer {key}", "bearer {key}", "Bearer"])
async def test_13_1_the_same_value_twice_or_a_bare_bearer_counts_as_the_key(
    core: RunningCore, authorization: str
) -> None:
    key = core.keys[0]
    assert (await answer_to(core, Api_Key=key, Authorization=authorization.format(key=key)))[0] == 200


async def test_13_1_a_bearer_value_may_be_a_key(core: RunningCore) -> None:
    assert (await answer_to(core, Authorization=f"Bearer {core.keys[0]}"))[0] == 200
    assert await answer_to(core, Authorization="Bearer nobody's") == (401, "Bad Authorization header")


@pytest.mark.local_core
async def test_13_1_core_025_does_not_accept_a_key_as_a_bearer_value(tmp_path: Path) -> None:
    async with local_core(config(), tmp_path, core025=True) as core:
        assert await answer_to(core, Authorization="Bearer key-one") == (401, "Bad Authorization header")
        assert (await answer_to(core, Api_Key="key-one", Authorization="Bearer key-one"))[0] == 200


async def test_13_1_an_error_is_plain_text_without_a_content_type(core: RunningCore) -> None:
    async with ClientSession() as session, session.get(core.url + BUCKET) as answer:
        assert "Content-Type" not in answer.headers


@pytest.mark.local_core
@pytest.mark.parametrize(
    "bad",
    [
        token({"sub": "someone"}, alg="HS256", signature="c2ln"),
        token({"sub": "someone"}, signature="c2ln"),
        token({"roles": ["admin"]}),
        "a.b.",
        "e30.W10.",
    ],
)
async def test_a_token_that_is_signed_or_broken_is_refused(core: RunningCore, bad: str) -> None:
    assert await answer_to(core, Authorization=f"Bearer {bad}") == (401, "Bad Authorization header")


@pytest.mark.local_core
async def test_unsigned_tokens_are_accepted_only_where_they_are_allowed(tmp_path: Path) -> None:
    async with local_core(config(), tmp_path, unsigned_tokens=False) as core:
        assert (await answer_to(core, Authorization=f"Bearer {token({'sub': 'someone'})}"))[0] == 401


async def test_13_2_health_and_version_need_no_credentials(core: RunningCore) -> None:
    assert await answer_to(core, path="/health") == (200, "")
    status, text = await answer_to(core, path="/version")
    assert (status, bool(text)) == (200, True)


async def test_13_2_options_answers_any_path_and_echoes_what_was_asked(core: RunningCore) -> None:
    asked = {"Access-Control-Request-Method": "PUT", "Access-Control-Request-Headers": "api-key"}
    async with calling(core, None) as session, session.options("/any/path", headers=asked) as answer:
        assert answer.status == 200
        assert answer.headers["Access-Control-Max-Age"] == "86400"
        assert answer.headers["Access-Control-Allow-Origin"] == "*"
        assert answer.headers["Access-Control-Allow-Methods"] == "PUT"
        assert answer.headers["Access-Control-Allow-Headers"] == "api-key"


async def test_13_2_an_unknown_path_is_no_route(core: RunningCore) -> None:
    assert await answer_to(core, path="/v1/unheard-of", Api_Key=core.keys[0]) == (502, "No route")
    assert (await answer_to(core, path="/v1/unheard-of"))[0] == 401


async def test_13_2_head_of_a_file_is_no_route(core: RunningCore) -> None:
    assert (await answer_to(core, "HEAD", "/v1/files/b/a.csv", Api_Key=core.keys[0]))[0] == 502


async def test_an_unknown_method_is_405_before_anything_else(core: RunningCore) -> None:
    assert (await answer_to(core, "TRACE", "/health"))[0] == 405
    assert (await answer_to(core, "PATCH", "/any", Api_Key=core.keys[0]))[0] == 502


async def test_http_1_0_is_505(core: RunningCore) -> None:
    assert (await raw(core, "GET /health HTTP/1.0\nHost: localhost\n\n")).startswith("HTTP/1.0 505")


@pytest.mark.parametrize(
    ("kind", "size", "status"),
    [
        ("multipart/form-data; boundary=x", 536_870_913, 413),
        ("multipart/form-data; boundary=x", 536_870_912, 401),
        ("application/json", 67_108_865, 413),
        ("application/json", 67_108_864, 401),
    ],
)
async def test_13_21_a_body_over_the_limit_is_413_by_its_header_alone(
    core: RunningCore, kind: str, size: int, status: int
) -> None:
    request = f"PUT /v1/files/b/a.csv HTTP/1.1\nHost: localhost\nContent-Type: {kind}\nContent-Length: {size}\n\n"
    assert (await raw(core, request)).startswith(f"HTTP/1.1 {status}")


@pytest.mark.local_core
async def test_a_body_over_the_limit_that_hides_its_length_is_413_too(tmp_path: Path) -> None:
    async def pieces() -> AsyncGenerator[bytes]:
        for _ in range(20):
            yield b" " * 100

    async with (
        local_core(config(), tmp_path, max_upload=1000, max_body=1000) as core,
        calling(core) as session,
        session.post("/v1/ops/resource/move", data=pieces()) as answer,
    ):
        assert (answer.status, await answer.text()) == (413, "Request body is too large")


@pytest.mark.local_core
@pytest.mark.parametrize(
    "origin", ["https://evil.example", "http://localhost.evil.example", "null", "http://core.evil", "http://["]
)
async def test_a_foreign_web_origin_is_refused(core: RunningCore, origin: str) -> None:
    async with calling(core) as session:
        for method in ("GET", "OPTIONS"):
            async with session.request(method, BUCKET, headers={"Origin": origin}) as answer:
                assert answer.status == 403
                assert "Access-Control-Allow-Origin" not in answer.headers


@pytest.mark.local_core
async def test_local_and_configured_origins_are_allowed(tmp_path: Path) -> None:
    async with local_core(config(), tmp_path, allowed_origins=frozenset({"https://chat.example"})) as core:
        for origin in ("http://localhost:3000", "http://127.0.0.1:5030", "http://[::1]:1", "https://chat.example"):
            assert (await answer_to(core, Api_Key="key-one", Origin=origin))[0] == 200


@pytest.mark.local_core
@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost:8080", 200),
        ("[::1]:8080", 200),
        ("core:8080", 200),
        ("host.docker.internal:8080", 200),
        ("mine.example", 200),
        ("evil.example", 403),
        ("127.0.0.1.evil.example", 403),
        ("[", 403),
        ("", 403),
    ],
)
async def test_a_host_name_rebound_to_this_machine_is_refused(tmp_path: Path, host: str, status: int) -> None:
    async with local_core(config(), tmp_path, allowed_hosts=frozenset({"mine.example"})) as core:
        assert (await answer_to(core, Api_Key="key-one", Host=host))[0] == status


def test_a_public_address_must_be_allowed_explicitly(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"0\.0\.0\.0"):
        create_app(CoreSettings(tmp_path, config=config(), host="0.0.0.0"))
    create_app(CoreSettings(tmp_path, config=config(), host="0.0.0.0", allow_public=True))
