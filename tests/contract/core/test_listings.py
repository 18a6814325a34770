"""What Core lists, as DIAL Chat and aidial-client read it."""

from pathlib import Path
from typing import Any

import pytest

from tests.support.core import local_core
from tests.support.core_peers import calling, config, dialling
from tests.support.replies import Reply

ENTRIES: dict[str, Any] = {
    "applications": {
        "agent": {
            "endpoint": "http://agent",
            "displayName": "The Agent",
            "iconUrl": "http://icons/a.svg",
            "inputAttachmentTypes": ["text/csv"],
            "maxInputAttachments": 10,
            "features": {"configurationEndpoint": "http://agent/configuration", "url_attachments_supported": True},
            "applicationProperties": {"tone": "kind"},
        },
        "secret": {"endpoint": "http://secret", "userRoles": ["other"]},
    },
    "models": {
        "m": {
            "type": "CHAT",
            "endpoint": "http://m",
            "limits": {"maxTotalTokens": 8000},
            "pricing": {"unit": "token", "prompt": "0.1", "completion": "0.2"},
            "features": {"toolsSupported": True, "seedSupported": True},
            "tokenizerModel": "gpt-4",
            "displayVersion": "1",
        },
        "vectors": {"type": "embedding", "endpoint": "http://v"},
    },
    "toolsets": {"web": {"transport": "HTTP", "endpoint": "http://web/mcp", "allowedTools": ["search"]}},
}

pytestmark = pytest.mark.local_core


async def listed(tmp_path: Path, path: str, key: str = "key-one", **switches: Any) -> Reply:
    async with (
        local_core(config(**ENTRIES), tmp_path, **switches) as core,
        calling(core, key) as session,
        session.get(path) as answer,
    ):
        return Reply(answer.status, answer.headers, await answer.read())


async def test_13_16_a_model_is_listed_with_all_fields_that_clients_need(tmp_path: Path) -> None:
    document = (await listed(tmp_path, "/openai/models?api-version=2024-02-01")).json
    assert document["object"] == "list"
    model = document["data"][0]
    features = model.pop("features")
    assert model == {
        "id": "m",
        "model": "m",
        "display_version": "1",
        "reference": "m",
        "owner": "organization-owner",
        "object": "model",
        "status": "succeeded",
        "created_at": 1672534800,
        "updated_at": 1672534800,
        "max_input_attachments": 0,
        "defaults": {},
        "lifecycle_status": "generally-available",
        "capabilities": {
            "scale_types": ["standard"],
            "completion": False,
            "chat_completion": True,
            "embeddings": False,
            "fine_tune": False,
            "inference": False,
        },
        "tokenizer_model": "gpt-4",
        "limits": {"max_total_tokens": 8000},
        "pricing": {"unit": "token", "prompt": "0.1", "completion": "0.2"},
    }
    assert {"tools": True, "system_prompt": True, "seed": True, "rate": False}.items() <= features.items()


@pytest.mark.parametrize(
    ("path", "key", "status", "ids"),
    [
        ("/openai/deployments", "key-one", 200, ["m", "vectors"]),
        ("/openai/applications", "key-one", 200, ["agent"]),
        ("/openai/applications", "key-two", 200, ["agent", "secret"]),
        ("/openai/toolsets", "key-one", 200, ["web"]),
        ("/openai/deployments/m", "key-one", 200, None),
        ("/openai/applications/secret", "key-two", 200, None),
        ("/openai/applications/secret", "key-one", 403, None),
        ("/openai/applications/unheard-of", "key-one", 404, None),
    ],
)
async def test_13_16_only_what_the_callers_roles_may_use_is_listed(
    tmp_path: Path, path: str, key: str, status: int, ids: list[str] | None
) -> None:
    answer = await listed(tmp_path, path, key)
    assert answer.status == status
    if ids is not None:
        assert [item["id"] for item in answer.json["data"]] == ids
    elif status != 200:
        assert answer.body == b""


@pytest.mark.parametrize("path", ["/openai/toolsets", "/v1/deployment-names"])
async def test_13_16_toolsets_and_names_exist_only_in_todays_core(tmp_path: Path, path: str) -> None:
    assert (await listed(tmp_path, path, version=25)).text == "No route"


async def test_13_16_aidial_client_reads_every_listing(tmp_path: Path) -> None:
    async with local_core(config(**ENTRIES), tmp_path) as core, dialling(core) as dial:
        model = await dial.model.get("m")
        assert model.limits is not None
        assert model.limits.max_total_tokens == 8000
        assert [one.id for one in await dial.deployments.list()] == ["m", "vectors"]
        assert (await dial.deployments.get("m")).model == "m"
        assert (await dial.application.get("agent")).application == "agent"
        assert [one.application for one in await dial.application.list()] == ["agent"]
        assert (await dial.toolset.get("web")).toolset == "web"
        user = await dial.user.info()
        assert (user.roles, user.project) == (["basic"], "One")
        names = await dial.deployments.list_names(["application"])
        assert [(one.id, one.object) for one in names] == [("agent", "application")]
