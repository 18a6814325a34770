"""Who may use the HTTP door, what belongs to whom, and what is decided before a body is read."""

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from aiohttp import FormData, web

from task.llm.scripted import says, wants
from tests.support.api_client import NOTES, behind_core
from tests.support.core import API_KEY, served, token_of
from tests.support.http_api import Api, http_api, key_of, said

KEYS: dict[str, Any] = {"http": {"mode": "keys"}}
CHAT = "/v1/chat/completions"


@pytest.mark.fault("http api: no key, or a wrong one")
async def test_without_a_key_or_with_a_wrong_one_nothing_is_given_or_read(tmp_path: Path) -> None:
    async with http_api(tmp_path=tmp_path, **KEYS) as api:
        for caller in (api, api.with_key("dga-wrong"), api.with_key("ü")):
            for path in ("/traces", "/v1/models", "/sessions", "/v1/files", "/approvals"):
                assert (await caller.get(path)).status == 401, path
            reply = await caller.complete("?")
            assert (reply.status, reply.error["type"]) == (401, "authentication_error")
        malformed = [await api.post(CHAT, {"messages": [said("?")], "temperature": 9}), await api.post("/chat", {})]
        malformed.append(await api.call("POST", CHAT, data=b"{", headers={"Content-Type": "application/json"}))
        assert [reply.status for reply in (*malformed, await api.get("/traces?limit=none"))] == [401] * 4
        for path in ("/v1/files", CHAT, "/v1/responses", "/chat", "/runs", "/markdown"):
            kind = "multipart/form-data; boundary=x" if path == "/v1/files" else "application/json"
            head = f"POST {path} HTTP/1.1\nHost: localhost\nContent-Type: {kind}\nContent-Length: 7000000\n\n"
            assert (await first_line(api, head)).startswith("HTTP/1.1 401"), path
        assert api.upstream.requests == []


@pytest.mark.fault("http api: another owner's session, trace, run, response or approval")
async def test_what_belongs_to_one_owner_is_not_there_for_another(tmp_path: Path) -> None:
    secret, other = await key_of("ann", tmp_path), await key_of("bob", tmp_path)
    settings: dict[str, Any] = {"http": {"mode": "keys"}, "tool_paths": [NOTES]}
    async with http_api(wants("write_note", text="x"), then=says("ok"), tmp_path=tmp_path, **settings) as api:
        ann, bob = api.with_key(secret), api.with_key(other)
        conversation = (await ann.post("/chat", {"messages": [said("note")]})).json
        response = (await ann.post("/v1/responses", {"input": "?"})).json["id"]
        [approval] = (await ann.get("/approvals")).json["approvals"]
        refused = [
            await bob.get(f"/session/{conversation['session_id']}"),
            await bob.get(f"/session/{conversation['session_id']}/messages"),
            await bob.complete("?", session_id=conversation["session_id"]),
            await bob.call("DELETE", f"/session/{conversation['session_id']}"),
            await bob.get(f"/traces/{conversation['trace']['trace_id']}"),
            await bob.get(f"/runs/{conversation['run_id']}"),
            await bob.get(f"/runs/{conversation['run_id']}/events"),
            await bob.post(f"/runs/{conversation['run_id']}/cancel"),
            await bob.post(f"/approvals/{approval['approval_id']}", {"decision": "approve"}),
            await bob.get(f"/v1/responses/{response}"),
            await bob.call("DELETE", f"/v1/responses/{response}"),
            await bob.post("/v1/responses", {"input": "?", "previous_response_id": response}),
        ]
        lists = [await bob.get(path) for path in ("/sessions", "/traces", "/runs", "/approvals", "/grants")]
        mine = [await ann.get(path) for path in (f"/session/{conversation['session_id']}", f"/v1/responses/{response}")]
    assert [reply.status for reply in refused] == [404] * len(refused)
    assert [reply.json["count"] for reply in lists] == [0] * len(lists)
    assert [reply.status for reply in mine] == [200, 200]


@pytest.mark.fault("http api: a key that asks too often")
async def test_a_key_that_calls_too_often_receives_the_time_to_retry(tmp_path: Path) -> None:
    ann, bob = await key_of("ann", tmp_path), await key_of("bob", tmp_path)
    async with http_api(tmp_path=tmp_path, http={"mode": "keys", "requests_per_minute": 2}) as api:
        malformed = await api.with_key(ann).post("/chat", {})
        statuses = [malformed.status, (await api.with_key(ann).get("/sessions")).status]
        late = await api.with_key(ann).get("/sessions")
        beside = await api.with_key(bob).get("/sessions")
    assert (statuses, late.status, beside.status) == ([400, 200], 429, 200)
    assert 1 <= int(late.headers["Retry-After"]) <= 60
    assert late.error["type"] == "rate_limit_error"


@pytest.mark.fault("http api: a foreign web page that posts to the API")
@pytest.mark.fault("web page: a foreign web page that posts to the API")
async def test_a_foreign_web_page_changes_nothing_and_reads_nothing(tmp_path: Path) -> None:
    async with http_api(then=says("ok"), tmp_path=tmp_path) as api:
        evil = {"Origin": "https://evil.example"}
        posts = [
            await api.post("/session/start", headers=evil),
            await api.post("/session/start", headers={"Sec-Fetch-Site": "cross-site"}),
            await api.call("POST", "/v1/chat/completions", data=b"{}", headers={**evil, "Content-Type": "text/plain"}),
            await api.post("/chat", {"messages": [said("?")]}, headers={"Origin": "null"}),
        ]
        rebound = await api.get("/sessions", headers={"Host": "evil.example"})
        read = await api.get("/sessions", headers=evil)
        asked = await api.call("OPTIONS", "/chat", headers={**evil, "Access-Control-Request-Method": "POST"})
        assert (await api.get("/sessions")).json["count"] == 0
        own = await api.post("/session/start", headers={"Origin": api.url})
        assert api.upstream.requests == []
    assert [reply.status for reply in posts] == [403] * 4
    assert rebound.status == 403
    assert all("Access-Control-Allow-Origin" not in reply.headers for reply in (*posts, read, asked))
    assert own.status == 200


@pytest.mark.fault("http api: another owner's file")
async def test_files_lie_in_their_owners_folder_and_tools_reach_no_other(tmp_path: Path) -> None:
    secret, other = await key_of("ann", tmp_path), await key_of("bob", tmp_path)
    places: list[str] = []

    def reads(_: Any) -> Any:
        return wants("file_content_extraction_tool", file_url=places[0])

    settings: dict[str, Any] = {"dial_api_key": API_KEY, "http": {"mode": "keys"}, "deployment_name": "test-model"}
    async with behind_core(reads, says("yes"), reads, says("no"), tmp_path=tmp_path, **settings) as api:
        ann, bob = api.with_key(secret), api.with_key(other)
        form = FormData()
        form.add_field("file", b"the secret of ann", filename="secret.txt", content_type="text/plain")
        stored = (await ann.call("POST", "/v1/files", data=form)).json
        places.append(stored["url"])
        path = f"/v1/files/{stored['id']}"
        hidden = [await bob.get(path), await bob.get(f"{path}/content"), await bob.call("DELETE", path)]
        lists = [(await caller.get("/v1/files")).json["data"] for caller in (ann, bob)]
        content = await ann.get(f"{path}/content")
        anns, bobs = await ann.complete("read it"), await bob.complete("read it")
        gone = await ann.call("DELETE", path)
        after = await ann.get(path)
    assert "/http/ann/" in stored["url"]
    assert stored["filename"] == "secret.txt"
    assert [reply.status for reply in hidden] == [404] * 3
    assert [len(found) for found in lists] == [1, 0]
    assert (content.text, content.headers["Content-Type"]) == ("the secret of ann", "application/octet-stream")
    assert "the secret of ann" not in bobs.text
    assert "the secret of ann" in anns.text
    assert (gone.json["deleted"], after.status) == (True, 404)


async def test_a_session_is_named_by_what_was_written_and_not_by_the_list_of_its_files(tmp_path: Path) -> None:
    file = {"type": "file", "file": {"filename": "note.txt", "file_data": "data:text/plain;base64,aGVsbG8="}}
    settings: dict[str, Any] = {"dial_api_key": API_KEY, "deployment_name": "test-model"}
    async with behind_core(says("one"), says("two"), tmp_path=tmp_path, **settings) as api:
        for parts in ([{"type": "text", "text": "What is in it?"}, file], [file]):
            run = (await api.post("/runs", {"messages": [{"role": "user", "content": parts}]})).json
            await api.events(run["run_id"])
        titles = [row["title"] for row in (await api.get("/sessions")).json["sessions"]]
    assert sorted(titles) == ["What is in it?", "note.txt"]


@pytest.mark.fault("http api: a forged token, or a token that is no JWT")
async def test_a_users_token_travels_on_to_core_and_the_bucket_is_the_owner(tmp_path: Path) -> None:
    places: list[str] = []

    def reads(_: Any) -> Any:
        return wants("file_content_extraction_tool", file_url=places[0])

    script = (reads, says("read"), reads, says("not read"))
    async with behind_core(*script, tmp_path=tmp_path, http={"mode": "dial"}) as api:
        ann, bob = api.with_key(token_of("ann")), api.with_key(token_of("bob"))
        form = FormData()
        form.add_field("file", b"the secret of ann", filename="secret.txt", content_type="text/plain")
        stored = (await ann.call("POST", "/v1/files", data=form)).json
        places.append(stored["url"])
        conversation = (await ann.post("/chat", {"messages": [said("read it")]})).json
        mine, again = await ann.get("/sessions"), await ann.get(f"/v1/files/{stored['id']}/content")
        models = await ann.get("/v1/models")
        stranger = (await bob.post("/chat", {"messages": [said("read it")]})).json
        hidden = [await bob.get(f"/session/{conversation['session_id']}"), await bob.get(f"/v1/files/{stored['id']}")]
        nobody = await api.with_key("eyJhbGciOiJSUzI1NiJ9.e30.forged").get("/sessions")
    assert "the secret of ann" in str(conversation["trace"])
    assert again.text == "the secret of ann"
    assert (mine.json["count"], models.status) == (1, 200)
    assert "the secret of ann" not in str(stranger)
    assert [reply.status for reply in hidden] == [404, 404]
    assert nobody.status == 401


async def test_all_tokens_of_one_user_count_together(tmp_path: Path) -> None:
    limited = {"mode": "dial", "requests_per_minute": 2}
    async with behind_core(tmp_path=tmp_path, http=limited) as api:
        statuses = [(await api.with_key(token_of("ann", iat=n)).get("/sessions")).status for n in range(3)]
        beside = (await api.with_key(token_of("bob")).get("/sessions")).status
    assert (statuses, beside) == ([200, 200, 429], 200)


@pytest.mark.fault("http api: two different keys in one request")
async def test_a_bearer_value_is_read_as_core_reads_it_and_the_keys_bucket_is_the_owner(tmp_path: Path) -> None:
    async with behind_core(then=says("ok"), tmp_path=tmp_path, http={"mode": "dial"}) as api:
        one, two = api.with_key("key-one"), api.with_key("key-two")
        session_id = (await one.post("/chat", {"messages": [said("?")]})).json["session_id"]
        assert [(await caller.get(f"/session/{session_id}")).status for caller in (one, two)] == [200, 404]
        statuses = [
            (await api.get("/sessions", headers=headers)).status
            for headers in (
                {"Authorization": "Bearer key-one"},
                {"Api-Key": "key-one"},
                {"Api-Key": "key-one", "Authorization": "Bearer"},
                {"Api-Key": "key-one", "Authorization": "Bearer key-one"},
                {"Api-Key": "key-one", "Authorization": "Bearer key-two"},
                {"Api-Key": token_of("ann")},
                {"Api-Key": "nobody"},
            )
        ]
    assert statuses == [200, 200, 200, 200, 400, 401, 401]


@pytest.mark.fault("http api: a forged token, or a token that is no JWT")
async def test_a_token_that_is_no_jwt_is_shown_to_core_as_a_token_when_it_is_no_key(tmp_path: Path) -> None:
    seen: list[tuple[str | None, str | None]] = []

    async def bucket(request: web.Request) -> web.Response:
        seen.append((request.headers.get("Api-Key"), request.headers.get("Authorization")))
        if seen[-1] != (None, "Bearer opaque"):
            return web.Response(status=401)
        return web.json_response({"bucket": "b1"})

    core = web.Application()
    core.router.add_get("/v1/bucket", bucket)
    async with served(core) as url, http_api(tmp_path=tmp_path, dial_endpoint=url, http={"mode": "dial"}) as api:
        known = [(await api.with_key("opaque").get("/sessions")).status for _ in range(2)]
        unknown = (await api.with_key("other").get("/sessions")).status
    assert (known, unknown) == ([200, 200], 401)
    assert seen == [("opaque", None), (None, "Bearer opaque"), ("other", None), (None, "Bearer other")]


FRIEND = "https://friend.example"
# What openai's client in a browser sends along.
STAINLESS = "authorization, content-type, x-stainless-arch, x-stainless-os, x-stainless-retry-count"


async def first_line(api: Api, head: str) -> str:
    """The first line of the answer to a request whose head is sent without its body."""
    address = urlsplit(api.url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    try:
        writer.write(head.replace("\n", "\r\n").encode())
        async with asyncio.timeout(20):
            return (await reader.readline()).decode()
    finally:
        writer.close()
        await writer.wait_closed()


async def pieces(size: int) -> AsyncGenerator[bytes]:
    """A body without a declared length."""
    for _ in range(size // 2**16):
        yield b"x" * 2**16


@pytest.mark.fault("page: a file over the limit, attached on the page or uploaded")
async def test_a_body_or_a_file_is_refused_as_too_large_whether_its_length_is_known_or_not(tmp_path: Path) -> None:
    form, known = FormData(), FormData()
    known.add_field("file", b"x" * 2**20, filename="a.bin")
    form.add_field("file", pieces(2**20), filename="a.bin")
    limits: dict[str, Any] = {"http": {"body_bytes": 2**18}, "limits": {"max_upload_bytes": 2**18}}
    async with http_api(tmp_path=tmp_path, **limits) as api:
        replies = [
            await api.call("POST", CHAT, data=pieces(2**20), headers={"Content-Type": "application/json"}),
            await api.call("POST", "/session/start", data=pieces(2**20), headers={"Content-Type": "application/json"}),
            await api.call("POST", "/v1/files", data=form),
            await api.call("POST", "/v1/files", data=known),
        ]
        assert (await api.get("/page")).json["upload_bytes"] == 2**18
    assert [(reply.status, reply.error["code"]) for reply in replies] == [
        (413, "body_too_large"), (413, "body_too_large"), (413, "file_too_large"), (413, "file_too_large"),
    ]  # fmt: skip
    assert "larger than 262,144 bytes" in replies[-1].error["message"]
    assert "Upload large files" not in replies[-1].error["message"]


async def test_a_browsers_openai_client_of_a_configured_origin_may_send_and_read_its_headers(tmp_path: Path) -> None:
    origin = {"Origin": FRIEND}
    asking = {**origin, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": STAINLESS}
    async with http_api(tmp_path=tmp_path, http={"origins": [FRIEND]}) as api:
        made = await api.post("/session/start", headers=origin)
        asked = await api.call("OPTIONS", CHAT, headers=asking)
        plain = await api.call("OPTIONS", CHAT, headers={**origin, "Access-Control-Request-Method": "POST"})
        read = await api.get("/v1/models", headers=origin)
        other = await api.call("OPTIONS", CHAT, headers={**asking, "Origin": "https://evil.example"})
    allowed = {name.strip().lower() for name in asked.headers["Access-Control-Allow-Headers"].split(",")}
    exposed = {name.strip() for name in read.headers["Access-Control-Expose-Headers"].split(",")}
    assert (asked.status, made.status) == (204, 200)
    assert made.headers["Access-Control-Allow-Origin"] == FRIEND
    assert allowed >= set(STAINLESS.split(", "))
    assert "Authorization" in plain.headers["Access-Control-Allow-Headers"]
    assert exposed >= {"Retry-After", "X-Run-Id", "X-Trace-Id"}
    assert "Access-Control-Allow-Headers" not in other.headers


@pytest.mark.fault("http api: one caller's texts take all threads")
async def test_one_callers_texts_leave_the_page_to_the_others(tmp_path: Path) -> None:
    secret, other = await key_of("ann", tmp_path), await key_of("bob", tmp_path)
    long = {"texts": [("[a](b) " * 500 + "\n\n") * 10]}
    async with http_api(tmp_path=tmp_path, http={"mode": "keys"}) as api:
        ann, bob = api.with_key(secret), api.with_key(other)
        anns = [asyncio.create_task(ann.post("/markdown", long)) for _ in range(6)]
        await asyncio.wait(anns, return_when=asyncio.FIRST_COMPLETED)
        answers = [await bob.post("/markdown", {"texts": ["*x*"]}), await bob.get("/page")]
        assert not all(task.done() for task in anns)
        assert [answer.status for answer in (*answers, *await asyncio.gather(*anns))] == [200] * 8
