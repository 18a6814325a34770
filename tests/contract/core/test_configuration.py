"""Core's configuration file: read as by the real Core, with keys that are secrets."""

import json
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession

from task.errors import SettingsError
from task.local.core.app import create_app
from task.local.core.core import CoreSettings
from tests.support.core import API_KEY, RunningCore, local_core
from tests.support.core_peers import KEYS, answers, ask, calling, config, peer

pytestmark = pytest.mark.local_core


async def ids(session: ClientSession) -> list[str]:
    async with session.get("/openai/applications") as answer:
        assert answer.status == 200
        return [item["id"] for item in (await answer.json())["data"]]


async def status(core: RunningCore, key: str) -> int:
    async with calling(core, key) as session, session.get("/v1/bucket") as answer:
        return answer.status


def write(path: Path, document: Any) -> Path:
    path.write_text(json.dumps(document))
    return path


async def test_files_are_merged_in_order(tmp_path: Path) -> None:
    first = write(tmp_path / "first.json", {"keys": KEYS, "applications": {"a": {"displayName": "A"}}})
    second = write(tmp_path / "second.json", {"applications": {"a": {"iconUrl": "x"}, "b": {}}})
    async with local_core({}, tmp_path, config_files=(first, second)) as core, calling(core) as session:
        async with session.get("/openai/applications/a") as answer:
            merged = await answer.json()
        assert (merged["display_name"], merged["icon_url"]) == ("A", "x")
        assert await ids(session) == ["a", "b"]


@pytest.mark.fault("compose: a malformed configuration of Core")
@pytest.mark.parametrize(
    ("text", "named"),
    [
        (None, "cannot be read"),
        ("{", "cannot be read as a JSON object"),
        ("[]", "cannot be read as a JSON object"),
        ('{"keys": {"k": {"project": "P"}}}', "a key needs a role"),
        ('{"keys": {"k": {"role": "r"}}}', "keys.k.project"),
        ('{"applications": {"a": {"endpoint": 5}}}', "applications.a.endpoint"),
        ('{"applications": []}', "applications"),
        ('{"applications": {"a": 5}}', "applications.a"),
    ],
)
def test_a_file_that_cannot_be_used_stops_the_start_with_one_line(tmp_path: Path, text: str | None, named: str) -> None:
    path = tmp_path / "config.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(SettingsError) as error:
        create_app(CoreSettings(tmp_path, (path,)))
    assert named in str(error.value)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)
    assert text is None or str(error.value).endswith("Correct it.")


async def test_variables_are_expanded_in_keys_and_values_and_an_unset_one_is_not_a_key(tmp_path: Path) -> None:
    document = {
        "keys": {
            "${env:DIAL_API_KEY}": {"project": "Installed", "role": "r"},
            "${env:TEAM_KEY}": {"project": "Team", "role": "r"},
            "${env:UNSET}": {"project": "Nobody", "role": "admin"},
        },
        "applications": {"a": {"displayName": "for ${env:WHO}"}},
    }
    environment = {"WHO": "everybody", "TEAM_KEY": "team-key"}
    async with local_core(document, tmp_path, environment=environment) as core:
        assert await status(core, "team-key") == 200
        async with calling(core, API_KEY) as session, session.get("/v1/user/info") as answer:
            assert (await answer.json())["project"] == "Installed"
        async with calling(core, "team-key") as session, session.get("/openai/applications/a") as answer:
            assert (await answer.json())["display_name"] == "for everybody"
        async with calling(core, None) as session:
            for bare in ("Bearer", "Bearer ", ""):
                async with session.get("/v1/bucket", headers={"Authorization": bare, "Api-Key": ""}) as answer:
                    assert answer.status == 401


async def test_the_installations_key_replaces_the_published_example_key_in_its_project(
    tmp_path: Path,
) -> None:
    published = {"keys": {"dial_api_key": {"project": "TEST-PROJECT", "role": "default"}}}
    async with local_core(published, tmp_path) as core:
        assert await status(core, "dial_api_key") == 401
        async with calling(core, API_KEY) as session, session.get("/v1/user/info") as answer:
            assert await answer.json() == {"roles": ["default"], "project": "TEST-PROJECT"}


@pytest.mark.parametrize("with_port", [False, True])
async def test_hosts_of_the_file_are_replaced_by_the_host_map(tmp_path: Path, with_port: bool) -> None:
    async with peer(answers(200, {"found": True})) as app:
        port = app.url.rpartition(":")[2]
        address = "http://agent:5030/chat" if with_port else f"http://agent:{port}/chat"
        host_map = {"agent": f"127.0.0.1:{port}" if with_port else "127.0.0.1"}
        async with (
            local_core(config({"app": address}), tmp_path, host_map=host_map) as core,
            calling(core) as session,
        ):
            assert (await ask(session)).json == {"found": True}
    assert app.last.url == "/chat"
