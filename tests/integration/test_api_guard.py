"""What the HTTP door decides before it reads a body, and how it refuses bodies."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from aiohttp import FormData

from tests.support.http_api import Api, http_api, key_of, said

KEYS: dict[str, Any] = {"http": {"mode": "keys"}}
CHAT = "/v1/chat/completions"
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


@pytest.mark.parametrize(
    ("path", "kind"),
    [("/v1/files", "multipart/form-data; boundary=x"), (CHAT, "application/json"),
     ("/v1/responses", "application/json"), ("/chat", "application/json"), ("/runs", "application/json"),
     ("/markdown", "application/json")],
)  # fmt: skip
async def test_without_a_key_no_body_is_read(path: str, kind: str, tmp_path: Path) -> None:
    head = f"POST {path} HTTP/1.1\nHost: localhost\nContent-Type: {kind}\nContent-Length: 7000000\n\n"
    async with http_api(tmp_path=tmp_path, **KEYS) as api:
        line = await first_line(api, head)
    assert line.startswith("HTTP/1.1 401")


async def test_without_a_key_a_malformed_request_is_a_401_like_any_other(tmp_path: Path) -> None:
    async with http_api(tmp_path=tmp_path, **KEYS) as api:
        bodies = [await api.post(CHAT, {"messages": [said("?")], "temperature": 9}), await api.post("/chat", {})]
        cut = await api.call("POST", CHAT, data=b"{", headers={"Content-Type": "application/json"})
        query = await api.get("/traces?limit=none")
    assert [reply.status for reply in (*bodies, cut, query)] == [401] * 4


async def test_malformed_requests_count_like_others_and_each_counts_once(tmp_path: Path) -> None:
    ann = await key_of("ann", tmp_path)
    async with http_api(tmp_path=tmp_path, http={"mode": "keys", "requests_per_minute": 3}) as api:
        caller = api.with_key(ann)
        statuses = [(await caller.post("/chat", {})).status for _ in range(2)]
        statuses += [(await caller.get("/sessions")).status for _ in range(2)]
    assert statuses == [400, 400, 200, 429]


async def pieces(size: int) -> AsyncGenerator[bytes]:
    """A body without a declared length."""
    for _ in range(size // 2**16):
        yield b"x" * 2**16


async def test_a_body_of_unknown_length_is_refused_as_too_large(tmp_path: Path) -> None:
    form = FormData()
    form.add_field("file", pieces(2**20), filename="a.bin")
    limits: dict[str, Any] = {"http": {"body_bytes": 2**18}, "limits": {"max_upload_bytes": 2**18}}
    async with http_api(tmp_path=tmp_path, **limits) as api:
        replies = [
            await api.call("POST", CHAT, data=pieces(2**20), headers={"Content-Type": "application/json"}),
            await api.call("POST", "/session/start", data=pieces(2**20), headers={"Content-Type": "application/json"}),
            await api.call("POST", "/v1/files", data=form),
        ]
    assert [(reply.status, reply.error["code"]) for reply in replies] == [
        (413, "body_too_large"), (413, "body_too_large"), (413, "file_too_large"),
    ]  # fmt: skip
    assert "Upload large files" not in replies[-1].error["message"]


@pytest.mark.fault("page: a file over the limit, attached on the page or uploaded")
async def test_a_file_that_is_too_large_is_refused_in_words_about_files_before_it_is_read(tmp_path: Path) -> None:
    async with http_api(tmp_path=tmp_path, limits={"max_upload_bytes": 2**18}) as api:
        form = FormData()
        form.add_field("file", b"x" * 2**20, filename="a.bin")
        reply = await api.call("POST", "/v1/files", data=form)
        assert (reply.status, reply.error["code"]) == (413, "file_too_large")
        assert "larger than 262,144 bytes" in reply.error["message"]
        assert (await api.get("/page")).json["upload_bytes"] == 2**18


async def test_json_that_is_nested_too_deeply_is_refused_in_words_about_nesting(tmp_path: Path) -> None:
    body = b'{"messages": ' + b"[" * 200_000 + b"]" * 200_000 + b"}"
    async with http_api(tmp_path=tmp_path) as api:
        reply = await api.call("POST", CHAT, data=body, headers={"Content-Type": "application/json"})
    assert (reply.status, reply.error["code"]) == (400, "invalid_json")
    assert "nested" in reply.error["message"]


async def test_a_browsers_openai_client_of_a_configured_origin_may_send_and_read_its_headers(tmp_path: Path) -> None:
    origin = {"Origin": FRIEND}
    asking = {**origin, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": STAINLESS}
    async with http_api(tmp_path=tmp_path, http={"origins": [FRIEND]}) as api:
        asked = await api.call("OPTIONS", CHAT, headers=asking)
        plain = await api.call("OPTIONS", CHAT, headers={**origin, "Access-Control-Request-Method": "POST"})
        read = await api.get("/v1/models", headers=origin)
        other = await api.call("OPTIONS", CHAT, headers={**asking, "Origin": "https://evil.example"})
    allowed = {name.strip().lower() for name in asked.headers["Access-Control-Allow-Headers"].split(",")}
    exposed = {name.strip() for name in read.headers["Access-Control-Expose-Headers"].split(",")}
    assert allowed >= set(STAINLESS.split(", "))
    assert "Authorization" in plain.headers["Access-Control-Allow-Headers"]
    assert exposed >= {"Retry-After", "X-Run-Id", "X-Trace-Id"}
    assert "Access-Control-Allow-Headers" not in other.headers
