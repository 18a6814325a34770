"""What Core has since which version, in local Core and in what the tests add to it."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.support.core import local_core
from tests.support.core_files import CoreFiles
from tests.support.core_more import CHANNEL_HEADER, chat_channel
from tests.support.core_peers import answers, ask, calling, config, dialling, peer

pytestmark = pytest.mark.local_core

SINCE = {
    ("GET", "/v1/deployment-names"): 49,
    ("GET", "/openai/toolsets"): 37,
    ("POST", "/v1/toolset/t/mcp"): 37,
    ("POST", "/v1/deployments/app/mcp"): 43,
    ("POST", "/v1/ops/resource/copy"): 37,
    ("POST", "/v1/ops/client-channel/interact"): 44,
    ("GET", "/v1/metadata/applications/public/"): 25,
}


@pytest.mark.fault("dial: a Core that does not have the routes of today's")
@pytest.mark.parametrize("version", [25, 40, 46, 48, 49])
async def test_an_older_core_answers_its_unknown_routes_with_502(tmp_path: Path, version: int) -> None:
    async with local_core(config({"app": "http://x"}), tmp_path, version=version) as core, calling(core) as session:
        for (method, path), since in SINCE.items():
            async with session.request(method, path, json={}) as answer:
                assert (await answer.text() == "No route") is (version < since), path
        async with session.get("/openai/applications/app") as answer:
            assert (await answer.json())["features"]["temperature"] is (version < 49)
            assert ("X-DIAL-TRACE-ID" in answer.headers) is (version >= 49)


async def test_an_applications_mcp_server_is_called_with_its_allowed_tools(tmp_path: Path) -> None:
    async with peer(answers(200, {"jsonrpc": "2.0"})) as server:
        mcp = {"endpoint": f"{server.url}/mcp", "allowedTools": ["add"], "forwardPerRequestKey": True}
        entries: dict[str, Any] = {"app": {"endpoint": "http://x", "mcp": mcp}, "plain": "http://x"}
        async with local_core(config(entries), tmp_path) as core, calling(core) as session:
            found: list[int] = []
            for name, tool in (("app", "add"), ("app", "wipe"), ("plain", "add"), ("unheard-of", "add")):
                call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": tool}}
                async with session.post(f"/v1/deployments/{name}/mcp", json=call) as answer:
                    found.append(answer.status)
            async with session.get("/openai/applications") as answer:
                features = {item["id"]: item["features"]["mcp"] for item in (await answer.json())["data"]}
    assert found == [200, 403, 400, 404]
    assert features == {"app": True, "plain": False}
    assert server.last.url == "/mcp"
    assert server.last.key not in core.keys


async def test_a_client_channel_carries_a_batch_to_its_users_chat_and_the_reports_back(tmp_path: Path) -> None:
    async def outcome(call: dict[str, Any]) -> str | None:
        return {"mine": "success", "yours": "denied"}.get(call["params"]["toolsetId"])

    async with (
        local_core(config(), tmp_path) as core,
        chat_channel(core.url, "key-one", outcome) as chat,
        dialling(core) as dial,
        calling(core, "key-two") as other,
    ):
        found = await dial.client_channel.signin_toolsets(channel_id=chat.number, toolset_ids=["mine", "yours"])
        assert {name: result.value for name, result in found.items()} == {"mine": "success", "yours": "denied"}
        assert [call["method"] for call in chat.asked] == ["toolset/signin"] * 2
        for headers, status in (({}, 400), (chat.headers, 403), ({CHANNEL_HEADER: "unheard-of"}, 404)):
            async with other.post("/v1/ops/client-channel/interact", json=[], headers=headers) as answer:
                assert answer.status == status
        waiting = asyncio.create_task(
            dial.client_channel.signin_toolsets(channel_id=chat.number, toolset_ids=["ignored"])
        )
        async with asyncio.timeout(10):
            while len(chat.asked) < 3:
                await asyncio.sleep(0)
            await chat.close()
            assert [result.value for result in (await waiting).values()] == ["error"]


async def test_a_shared_file_is_listed_and_read_by_whom_it_is_shared_with(tmp_path: Path) -> None:
    async with (
        peer(answers()) as app,
        local_core(config({"app": app.url}), tmp_path) as core,
        CoreFiles.of(core.url, "key-one") as mine,
        CoreFiles.of(core.url, "key-two") as theirs,
        calling(core, "key-two") as session,
    ):
        await mine.put("shared/a.txt")
        await mine.put("private.txt")
        core.share(mine.url("shared/"), "Keys/Two/")
        listed = await theirs.call(
            "POST", "/v1/ops/resource/share/list", json={"resourceTypes": ["FILE"], "with": "me"}
        )
        assert [node["url"] for node in listed.json["resources"]] == [mine.url("shared/")]
        assert (await theirs.get(mine.url("shared/a.txt"))).status == 200
        assert (await theirs.get(mine.url("private.txt"))).status == 403
        assert (await theirs.put(mine.url("shared/b.txt"))).status == 403
        attached = {"custom_content": {"attachments": [{"url": f"metadata/{mine.url('shared/')}"}]}}
        assert (await ask(session, body={"messages": [attached]})).status == 200
