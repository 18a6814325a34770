"""Which requests are admitted: credentials, protocol, hosts and origins, in Core's order and wording."""

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from task.errors import SettingsError
from task.local.core.app import create_app
from task.local.core.core import CoreSettings
from tests.support.core import RunningCore, local_core, token_of
from tests.support.core_peers import calling, config

BUCKET = "/v1/bucket"
NO_KEY = "At least API-KEY or Authorization header must be provided"
TWO_KEYS = "Either API-KEY or Authorization header must be provided but not both"
BAD_AUTHORIZATION = "Bad Authorization header"
UNSIGNED = token_of("someone")
FOREIGN_ORIGINS = ("https://evil.example", "http://localhost.evil.example", "null", "http://[")
OWN_ORIGINS = ("http://localhost:3000", "http://127.0.0.1:5030", "http://[::1]:1", "https://chat.example")
OWN_HOSTS = ("localhost:8080", "[::1]:8080", "core:8080", "host.docker.internal:8080", "mine.example")


async def answer_to(core: RunningCore, method: str = "GET", path: str = BUCKET, **headers: str) -> tuple[int, str]:
    async with calling(core, None) as session:
        named = {name.replace("_", "-"): value.format(key=core.keys[0]) for name, value in headers.items()}
        async with session.request(method, path, headers=named) as answer:
            return answer.status, await answer.text()


@pytest.mark.parametrize(
    ("request_line", "headers", "status", "text"),
    [
        ("GET /v1/bucket", {}, 401, NO_KEY),
        ("GET /v1/bucket", {"Api_Key": "nobody's"}, 401, "Unknown api key"),
        ("GET /v1/bucket", {"Api_Key": "{key}", "Authorization": "Bearer other"}, 400, TWO_KEYS),
        ("GET /v1/bucket", {"Api_Key": "{key}", "Authorization": "Bearer {key}"}, 200, None),
        ("GET /v1/bucket", {"Api_Key": "{key}", "Authorization": "bearer {key}"}, 200, None),
        ("GET /v1/bucket", {"Api_Key": "{key}", "Authorization": "Bearer"}, 200, None),
        ("GET /v1/bucket", {"Authorization": "Bearer {key}"}, 200, None),
        ("GET /v1/bucket", {"Authorization": "Bearer nobody's"}, 401, BAD_AUTHORIZATION),
        ("GET /v1/bucket", {"Authorization": f"Bearer {UNSIGNED}c2ln"}, 401, BAD_AUTHORIZATION),
        ("GET /health", {}, 200, ""),
        ("GET /v1/unheard-of", {"Api_Key": "{key}"}, 502, "No route"),
        ("GET /v1/unheard-of", {}, 401, NO_KEY),
        ("HEAD /v1/files/b/a.csv", {"Api_Key": "{key}"}, 502, ""),
        ("HEAD /health", {}, 401, ""),
        ("PATCH /any", {"Api_Key": "{key}"}, 502, "No route"),
    ],
)
async def test_13_1_and_13_2_credentials_and_routes(
    core: RunningCore, request_line: str, headers: dict[str, str], status: int, text: str | None
) -> None:
    method, path = request_line.split()
    answer = await answer_to(core, method, path, **headers)
    assert answer == (status, answer[1] if text is None else text)


@pytest.mark.local_core
async def test_13_1_core_025_does_not_accept_a_key_as_a_bearer_value(tmp_path: Path) -> None:
    async with local_core(config(), tmp_path, version=25) as core:
        assert await answer_to(core, Authorization="Bearer key-one") == (401, BAD_AUTHORIZATION)
        assert (await answer_to(core, Api_Key="key-one", Authorization="Bearer key-one"))[0] == 200


@pytest.mark.local_core
async def test_no_unsigned_token_counts_outside_of_tests(tmp_path: Path) -> None:
    async with local_core(config(), tmp_path, user_of=CoreSettings(tmp_path).user_of) as core:
        assert await answer_to(core, Authorization=f"Bearer {UNSIGNED}") == (401, BAD_AUTHORIZATION)


@pytest.mark.local_core
@pytest.mark.parametrize("hidden", [True, False])
async def test_13_21_a_body_over_the_limit_is_413_even_if_it_hides_its_length(tmp_path: Path, hidden: bool) -> None:
    async def pieces() -> AsyncGenerator[bytes]:
        for _ in range(20):
            yield b" " * 100

    async with (
        local_core(config(), tmp_path, max_upload=1000, max_body=1000) as core,
        calling(core) as session,
        session.post("/v1/ops/resource/move", data=pieces() if hidden else b" " * 1001) as answer,
    ):
        assert (answer.status, await answer.text()) == (413, "Request body is too large")


@pytest.mark.local_core
@pytest.mark.parametrize(
    ("headers", "status"),
    [
        *(({"Origin": origin}, 403) for origin in FOREIGN_ORIGINS),
        *(({"Origin": origin}, 200) for origin in OWN_ORIGINS),
        *(({"Host": host}, 403) for host in ("evil.example", "127.0.0.1.evil.example", "[", "")),
        *(({"Host": host}, 200) for host in OWN_HOSTS),
    ],
)
async def test_foreign_web_origins_and_rebound_host_names_are_refused(
    tmp_path: Path, headers: dict[str, str], status: int
) -> None:
    hosts, origins = frozenset({"mine.example"}), frozenset({"https://chat.example"})
    async with (
        local_core(config(), tmp_path, allowed_hosts=hosts, allowed_origins=origins) as core,
        calling(core) as session,
        session.get(BUCKET, headers=headers) as answer,
    ):
        assert answer.status == status
        readable = status == 200 or "Host" in headers
        assert answer.headers.get("Access-Control-Allow-Origin") == ("*" if readable else None)


async def test_13_2_options_answers_any_path_and_echoes_what_was_asked(core: RunningCore) -> None:
    asked = {"Access-Control-Request-Method": "PUT", "Access-Control-Request-Headers": "api-key"}
    async with calling(core, None) as session, session.options("/any/path", headers=asked) as answer:
        assert answer.status == 200
        assert answer.headers["Access-Control-Max-Age"] == "86400"
        assert answer.headers["Access-Control-Allow-Origin"] == "*"
        assert answer.headers["Access-Control-Allow-Methods"] == "PUT"
        assert answer.headers["Access-Control-Allow-Headers"] == "api-key"


def test_a_public_address_must_be_allowed_explicitly(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"0\.0\.0\.0"):
        create_app(CoreSettings(tmp_path, config=config(), host="0.0.0.0"))
    create_app(CoreSettings(tmp_path, config=config(), host="0.0.0.0", allow_public=True))
