"""Conversations and prompts: JSON objects that are stored like files, written as bodies."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.core_files import Answer, CoreFiles

CHAT = {"id": "x", "name": "Hello", "messages": [{"role": "user", "content": "Привет 👋"}]}


async def put(files: CoreFiles, url: str, body: Any, **headers: str) -> Answer:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return await files.call("PUT", f"/v1/{url}", data=data, headers={"Content-Type": "application/json"} | headers)


@pytest.mark.parametrize(("kind", "named"), [("conversations", "CONVERSATION"), ("prompts", "PROMPT")])
async def test_a_document_is_created_once_read_moved_and_deleted(files: CoreFiles, kind: str, named: str) -> None:
    home = f"{kind}/{files.bucket}/{files.home}"
    created = await put(files, f"{home}a", CHAT, **{"If-None-Match": "*"})
    assert (created.status, created.json["name"], created.json["etag"]) == (200, "a", created.etag)
    assert (await put(files, f"{home}a", CHAT, **{"If-None-Match": "*"})).status == 412
    moved = {"sourceUrl": f"{home}a", "destinationUrl": f"{home}dir/b"}
    assert (await files.call("POST", "/v1/ops/resource/move", json=moved)).status == 200
    read = await files.call("GET", f"/v1/{home}dir/b")
    assert (read.json, read.headers["Content-Type"]) == (CHAT, "application/json")
    [node] = (await files.call("GET", f"/v1/metadata/{home}?recursive=true")).json["items"]
    assert (node["url"], node["resourceType"], "contentType" in node) == (f"{home}dir/b", named, False)
    assert (await files.call("DELETE", f"/v1/{home}dir/b")).status == 200
    missing = await files.call("GET", f"/v1/{home}dir/b")
    assert (missing.status, missing.text) == (404, f"Not found: {home}dir/b")


@pytest.mark.parametrize("body", [b"", b"[]", b'"text"', b"{", b"\xff"])
async def test_only_json_objects_are_stored(files: CoreFiles, body: bytes) -> None:
    answer = await put(files, f"conversations/{files.bucket}/{files.home}x", body)
    assert (answer.status, answer.text) == (400, "The request body must be a JSON object")


async def test_documents_stay_within_their_kind_and_with_their_owner(files: CoreFiles, other: CoreFiles) -> None:
    url = f"conversations/{files.bucket}/{files.home}a"
    await put(files, url, CHAT)
    elsewhere = {"sourceUrl": url, "destinationUrl": files.url("a.json")}
    assert (await files.call("POST", "/v1/ops/resource/move", json=elsewhere)).status == 400
    for method in ("GET", "DELETE"):
        assert (await other.call(method, f"/v1/{url}")).status == 403
    assert (await put(other, url, CHAT)).status == 403
