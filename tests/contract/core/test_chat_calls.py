"""Every call that DIAL Chat makes to Core, one test for each row of Core's contract with Chat (section 10)."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession, FormData, web
from yarl import URL

from tests.support.core import RunningCore, local_core
from tests.support.core_files import Answer
from tests.support.core_peers import DONE, ask, calling, chunk, config, peer, streams

VERSION = "api-version=2024-02-01"
NEW = {"If-None-Match": "*"}
CHAT = {"id": "x", "name": "Hello", "model": {"id": "app"}, "messages": []}

pytestmark = pytest.mark.local_core


@dataclass(frozen=True, slots=True)
class Chat:
    """DIAL Chat's server side: calls with JSON bodies, paths sent as they are given, `{b}` in them is the bucket."""

    base_url: str
    session: ClientSession
    bucket: str

    async def call(self, method: str, path: str, body: Any = None, **headers: str) -> Answer:
        url = URL(self.base_url + path.replace("{b}", self.bucket), encoded=True)
        form = isinstance(body, FormData)
        options: dict[str, Any] = {"data": body} if form else {"json": body} if body is not None else {}
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        async with self.session.request(method, url, headers=named, **options) as answer:
            return Answer(answer.status, answer.headers, await answer.read())

    async def create(self, path: str, body: Any) -> Answer:
        return await self.call("PUT", path, body, if_none_match="*")

    async def listed(self, kind: str, folder: str = "", recursive: bool = False) -> list[Any]:
        query = f"limit=1000&recursive={str(recursive).lower()}"
        answer = await self.call("GET", f"/v1/metadata/{kind}/{{b}}/{folder}?{query}")
        return answer.json["items"] if answer.status == 200 else []

    async def move(self, kind: str, source: str, destination: str) -> Answer:
        body = {
            "sourceUrl": f"{kind}/{self.bucket}/{source}",
            "destinationUrl": f"{kind}/{self.bucket}/{destination}",
            "overwrite": False,
        }
        return await self.call("POST", "/v1/ops/resource/move", body)


@asynccontextmanager
async def chatting(core: RunningCore, key: str = "key-one") -> AsyncGenerator[Chat]:
    async with calling(core, key) as session:
        async with session.get("/v1/bucket") as answer:
            bucket = (await answer.json())["bucket"]
        yield Chat(core.url, session, bucket)


@pytest.fixture
async def chat(tmp_path: Path) -> AsyncGenerator[Chat]:
    models = {"gpt": {"type": "chat", "endpoint": "http://127.0.0.1:9/"}}
    async with (
        local_core(config({"app": "http://127.0.0.1:9/"}, models=models), tmp_path) as core,
        chatting(core) as chat,
    ):
        yield chat


def upload(name: str, content: bytes, type: str) -> FormData:
    form = FormData()
    form.add_field("attachment", content, filename=name, content_type=type)
    return form


async def test_each_page_load_and_turn_the_four_lists(chat: Chat) -> None:
    found = {
        name: (await chat.call("GET", f"/openai/{name}?{VERSION}")).json["data"]
        for name in ("models", "applications", "assistants", "addons")
    }
    assert [(entry["id"], entry["object"]) for entry in found["models"]] == [("gpt", "model")]
    assert found["models"][0]["capabilities"]["chat_completion"] is True
    assert found["models"][0]["capabilities"]["embeddings"] is False
    assert [(entry["id"], entry["object"]) for entry in found["applications"]] == [("app", "application")]
    assert (found["assistants"], found["addons"]) == ([], [])


async def test_start_the_bucket(chat: Chat) -> None:
    assert (await chat.call("GET", "/v1/bucket")).json == {"bucket": chat.bucket}


@pytest.mark.parametrize("kind", ["conversations", "prompts", "files", "applications", "toolsets"])
async def test_side_bars_an_empty_root_is_an_empty_list(kind: str, chat: Chat) -> None:
    answer = await chat.call("GET", f"/v1/metadata/{kind}/{{b}}/?limit=1000&recursive=true")
    assert (answer.status, answer.json["items"]) == (200, [])
    assert (await chat.call("GET", f"/v1/metadata/{kind}/{{b}}/none/?limit=1000")).status == 404


@pytest.mark.parametrize(("kind", "named"), [("conversations", "CONVERSATION"), ("prompts", "PROMPT")])
async def test_side_bars_chats_and_prompts_in_folders(kind: str, named: str, chat: Chat) -> None:
    for path in ("gpt__One", "Work/gpt__Two%20words"):
        assert (await chat.create(f"/v1/{kind}/{{b}}/{path}", CHAT)).status == 200
    nodes = {node["url"]: node for node in await chat.listed(kind)}
    item = nodes[f"{kind}/{chat.bucket}/gpt__One"]
    assert (item["name"], item["nodeType"], item["resourceType"]) == ("gpt__One", "ITEM", named)
    assert item["updatedAt"] >= item["createdAt"] > 1_600_000_000_000
    assert "contentType" not in item
    assert nodes[f"{kind}/{chat.bucket}/Work/"]["nodeType"] == "FOLDER"
    below = [node["name"] for node in await chat.listed(kind, recursive=True)]
    assert below == ["gpt__Two words", "gpt__One"]
    assert [node["parentPath"] for node in await chat.listed(kind, "Work/")] == ["Work"]
    assert await chat.listed("files") == []


@pytest.mark.parametrize("kind", ["conversations", "prompts"])
async def test_new_chat_or_prompt_a_name_is_taken_once(kind: str, chat: Chat) -> None:
    path = f"/v1/{kind}/{{b}}/gpt__New%20conversation%201"
    created = await chat.create(path, CHAT)
    taken = await chat.create(path, CHAT)
    assert (created.status, created.json["name"]) == (200, "gpt__New conversation 1")
    assert created.json["etag"] == created.etag
    assert (taken.status, taken.text) == (412, "Resource already exists")


@pytest.mark.parametrize("kind", ["conversations", "prompts"])
async def test_every_turn_the_same_put_without_the_condition(kind: str, chat: Chat) -> None:
    path = f"/v1/{kind}/{{b}}/gpt__Hello"
    created = await chat.create(path, CHAT)
    longer = {**CHAT, "messages": [{"role": "user", "content": "Привет 👋", "custom_content": {"state": {"a": [1.0]}}}]}
    changed = await chat.call("PUT", path, longer)
    assert changed.status == 200
    assert changed.etag != created.etag
    assert (await chat.call("PUT", path, CHAT, if_match=created.etag)).status == 412
    assert (await chat.call("GET", path)).json == longer


@pytest.mark.parametrize("kind", ["conversations", "prompts"])
async def test_open_and_delete(kind: str, chat: Chat) -> None:
    path = f"/v1/{kind}/{{b}}/gpt__Hello"
    await chat.create(path, CHAT)
    opened = await chat.call("GET", path)
    assert (opened.status, opened.json) == (200, CHAT)
    assert opened.headers["Content-Type"] == "application/json"
    assert (await chat.call("GET", path, if_none_match=opened.etag)).status == 304
    assert (await chat.call("DELETE", path)).status == 200
    for method in ("GET", "DELETE"):
        missing = await chat.call(method, path)
        assert (missing.status, missing.text) == (404, f"Not found: {kind}/{chat.bucket}/gpt__Hello")
    assert await chat.listed(kind) == []


@pytest.mark.parametrize("kind", ["conversations", "prompts"])
async def test_rename_and_move(kind: str, chat: Chat) -> None:
    await chat.create(f"/v1/{kind}/{{b}}/gpt__Hello", CHAT)
    await chat.create(f"/v1/{kind}/{{b}}/gpt__Other", CHAT)
    assert (await chat.move(kind, "gpt__Hello", "Work/gpt__Renamed")).status == 200
    assert (await chat.move(kind, "Work/gpt__Renamed", "gpt__Other")).status == 400
    assert (await chat.call("GET", f"/v1/{kind}/{{b}}/Work/gpt__Renamed")).json == CHAT
    assert (await chat.call("GET", f"/v1/{kind}/{{b}}/gpt__Hello")).status == 404


async def test_move_stays_within_its_kind(chat: Chat) -> None:
    await chat.create("/v1/conversations/{b}/gpt__Hello", CHAT)
    body = {"sourceUrl": f"conversations/{chat.bucket}/gpt__Hello", "destinationUrl": f"files/{chat.bucket}/a.json"}
    assert (await chat.call("POST", "/v1/ops/resource/move", body)).status == 400


async def test_marketplace_and_recents_the_installed_deployments(chat: Chat) -> None:
    path = "/v1/files/{b}/clientdata/installed_deployments.json"
    assert (await chat.call("GET", path)).status == 404
    installed = b'[{"id":"app"}]'
    stored = await chat.call("PUT", path, upload("installed_deployments.json", installed, "application/json"))
    assert stored.status == 200
    assert (await chat.call("GET", path)).body == installed


async def test_upload_preview_and_download(chat: Chat) -> None:
    path = "/v1/files/{b}/report%20%D1%8F.csv"
    form = upload("report.csv", b"a,b\n1,2\n", "text/csv")
    assert (await chat.call("PUT", path, form, if_none_match="*")).status == 200
    read = await chat.call("GET", path)
    assert (read.body, read.headers["Content-Type"]) == (b"a,b\n1,2\n", "text/csv")
    assert [node["name"] for node in await chat.listed("files")] == ["report я.csv"]
    assert (await chat.call("DELETE", path)).status == 200


async def test_like_and_dislike(chat: Chat) -> None:
    assert (await chat.call("POST", "/v1/app/rate", {"rate": False, "responseId": "r1"})).status == 200


async def test_sharing_on_nothing_is_shared_and_sharing_is_refused(chat: Chat) -> None:
    for other in ("me", "others"):
        body = {"resourceTypes": ["CONVERSATION"], "with": other}
        assert (await chat.call("POST", "/v1/ops/resource/share/list", body)).json == {"resources": []}
    refused = await chat.call("POST", "/v1/ops/resource/share/create", {"invitationType": "link", "resources": []})
    assert (refused.status, refused.text) == (400, "Local Core does not share resources")
    for call in ("discard", "revoke"):
        assert (await chat.call("POST", f"/v1/ops/resource/share/{call}", {"resources": []})).status == 200
    assert (await chat.call("GET", "/v1/invitations")).json == {"invitations": []}
    assert (await chat.call("GET", "/v1/invitations/abc?accept=true")).status == 404
    assert (await chat.call("DELETE", "/v1/invitations/abc")).status == 404


async def test_publishing_on_nothing_is_published_and_publishing_is_refused(chat: Chat) -> None:
    expected: dict[str, Any] = {
        "publication/list": {"publications": []},
        "publication/rule/list": {"rules": {}},
        "publication/resource/list": [],
        "notification/list": {"notifications": []},
    }
    for call, answer in expected.items():
        assert (await chat.call("POST", f"/v1/ops/{call}", {"url": "publications/public/"})).json == answer
    for call in ("create", "delete", "approve", "reject", "update"):
        refused = await chat.call("POST", f"/v1/ops/publication/{call}", {})
        assert (refused.status, refused.text) == (400, "Local Core does not publish resources")
    assert (await chat.call("POST", "/v1/ops/publication/get", {"url": "publications/public/x"})).status == 404


async def test_newer_chat_schemas_toolsets_consent_and_configuration(chat: Chat) -> None:
    assert (await chat.call("GET", "/v1/application_type_schemas/schemas")).json == []
    assert (await chat.call("GET", "/v1/application_type_schemas/schema?id=https://x.example/s")).status == 404
    assert (await chat.call("GET", f"/openai/toolsets?{VERSION}")).json["data"] == []
    assert (await chat.call("GET", "/openai/models/gpt")).json["id"] == "gpt"
    assert (await chat.call("GET", "/openai/applications/app")).json["id"] == "app"
    assert (await chat.call("GET", "/v1/deployments/app/configuration")).body == b""
    assert (await chat.call("GET", "/v1/consent/app")).json == {
        "consent": {"app": {"consentRequired": False}},
        "accepted": True,
    }
    assert (await chat.call("GET", "/v1/consent/none")).status == 404


async def test_newer_chat_a_client_channel_stays_open_and_quiet(chat: Chat) -> None:
    async with chat.session.post("/v1/ops/client-channel/subscribe", json={}) as channel:
        assert channel.headers["Content-Type"] == "text/event-stream"
        assert len(channel.headers["X-DIAL-CLIENT-CHANNEL-ID"]) == 32
        assert await channel.content.readline() == b": heartbeat\n"
    for call in ("report", "unsubscribe"):
        assert (await chat.call("POST", f"/v1/ops/client-channel/{call}", {})).status == 200


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("conversations/{b}/a.", 400),
        ("conversations/{b}/dir/", 400),
        ("conversations/{b}/a%2Fb", 400),
        ("conversations/{b}/%7Bx%7D", 400),
        ("prompts/nobody/x", 400),
        ("applications/{b}/x", 502),
    ],
)
async def test_a_bad_name_is_refused(path: str, status: int, chat: Chat) -> None:
    assert (await chat.call("PUT", f"/v1/{path}", CHAT)).status == status


@pytest.mark.parametrize("body", [b"", b"[]", b'"text"', b"{", b"\xff"])
async def test_only_json_objects_are_stored(body: bytes, chat: Chat) -> None:
    url = f"/v1/conversations/{chat.bucket}/x"
    async with chat.session.put(url, data=body, headers={"Content-Type": "application/json"}) as answer:
        assert (answer.status, await answer.text()) == (400, "The request body must be a JSON object")
    assert await chat.listed("conversations") == []


async def test_a_bad_query_is_named(chat: Chat) -> None:
    answer = await chat.call("GET", "/v1/metadata/conversations/{b}/?recursive=perhaps")
    assert (answer.status, answer.text.partition(".")[0]) == (400, "Bad query parameters")


async def test_another_persons_chats_are_inaccessible(tmp_path: Path) -> None:
    async with local_core(config(), tmp_path) as core, chatting(core) as mine, chatting(core, "key-two") as theirs:
        await mine.create("/v1/conversations/{b}/gpt__Hello", CHAT)
        path = f"/v1/conversations/{mine.bucket}/gpt__Hello"
        for method in ("GET", "PUT", "DELETE"):
            answer = await theirs.call(method, path, CHAT if method == "PUT" else None)
            assert (answer.status, answer.text) == (403, f"You don't have an access to: {path.removeprefix('/v1/')}")
        assert (await theirs.call("GET", f"/v1/metadata/conversations/{mine.bucket}/")).status == 403


async def test_sharing_is_closed_to_applications(tmp_path: Path) -> None:
    seen: list[tuple[int, str]] = []

    async def shares(request: web.Request) -> web.Response:
        async with (
            calling(core, request.headers["Api-Key"]) as session,
            session.post("/v1/ops/resource/share/list", json={}) as answer,
        ):
            seen.append((answer.status, await answer.text()))
        return web.json_response({"choices": []})

    async with peer(shares) as app, local_core(config({"app": app.url}), tmp_path) as core, calling(core) as session:
        await ask(session)
    assert seen == [(403, "An application cannot share")]


async def test_in_core_0_25_the_newer_calls_do_not_exist(tmp_path: Path) -> None:
    async with (
        local_core(config({"app": "http://127.0.0.1:9/"}), tmp_path, core025=True) as core,
        chatting(core) as chat,
    ):
        assert (await chat.create("/v1/conversations/{b}/gpt__Hello", CHAT)).status == 200
        for path in ("/v1/consent/app", "/v1/ops/client-channel/subscribe"):
            answer = await chat.call("POST", path, {})
            assert (answer.status, answer.text) == (502, "No route")


async def test_13_20_a_whole_conversation_as_chat_sends_it(tmp_path: Path) -> None:
    parts = (chunk({"role": "assistant", "content": "Hi"}), chunk({}, "stop"), DONE)
    async with (
        peer(streams(*parts)) as app,
        local_core(config({"app": f"{app.url}/chat"}), tmp_path) as core,
        chatting(core) as chat,
    ):
        for name in ("models", "applications", "assistants", "addons"):
            assert (await chat.call("GET", f"/openai/{name}?{VERSION}")).status == 200
        for kind in ("conversations", "prompts", "files"):
            assert await chat.listed(kind, recursive=True) == []

        path, taken = "/v1/conversations/{b}/app__New%20conversation%201", dict(CHAT)
        assert (await chat.create(path, taken)).status == 200
        file = await chat.call("PUT", "/v1/files/{b}/a.csv", upload("a.csv", b"1,2", "text/csv"), if_none_match="*")
        attachment = {"type": "text/csv", "title": "a.csv", "url": file.json["url"]}

        messages: list[Any] = []
        for turn in ("Read it", "And now?"):
            content = {} if messages else {"custom_content": {"attachments": [attachment]}}
            messages.append({"role": "user", "content": turn, **content})
            answer = await chat.call(
                "POST",
                f"/openai/deployments/app/chat/completions?{VERSION}",
                {"messages": messages, "stream": True, "model": "app"},
                x_conversation_id=f"conversations%2F{chat.bucket}%2Fapp__New%20conversation%201",
            )
            events = [line.removeprefix("data: ") for line in answer.text.splitlines() if line]
            assert (answer.status, events[-1]) == (200, "[DONE]")
            messages.append({"role": "assistant", "content": json.loads(events[0])["choices"][0]["delta"]["content"]})
            assert (await chat.call("PUT", path, {**CHAT, "messages": messages})).status == 200

        renamed = "Work/app__Read%20it"
        assert (await chat.move("conversations", "app__New%20conversation%201", renamed)).status == 200
        opened = await chat.call("GET", f"/v1/conversations/{{b}}/{renamed}")
        assert [message["content"] for message in opened.json["messages"]] == ["Read it", "Hi", "And now?", "Hi"]
        assert (await chat.call("DELETE", f"/v1/conversations/{{b}}/{renamed}")).status == 200
        assert await chat.listed("conversations", recursive=True) == []
    assert [seen.headers["X-CONVERSATION-ID"].count("%2F") for seen in app.requests] == [2, 2]
