"""Saved prompts over HTTP: each owner's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from task.store import keys
from tests.support.http_api import http_api, key_of


@pytest.mark.fault("web page: a prompt of another owner, with a wrong name, without text, or one too many")
async def test_prompts_are_saved_replaced_listed_and_deleted_by_their_owner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keys, "MOST_PROMPTS", 2)
    async with http_api(tmp_path=tmp_path, http={"mode": "keys"}) as api:
        ann, bob = [api.with_key(await key_of(name, tmp_path)) for name in ("ann", "bob")]
        for name, text in (("b", "Two {{words}}"), ("a", "One"), ("a", "1")):
            assert (await ann.call("PUT", f"/prompts/{name}", {"text": text})).status == 200
        assert (await ann.get("/prompts")).json["prompts"] == [
            {"name": "a", "text": "1"}, {"name": "b", "text": "Two {{words}}"},
        ]  # fmt: skip
        assert (await bob.get("/prompts")).json == {"prompts": []}
        refused = [
            await bob.call("DELETE", "/prompts/a"),
            await ann.call("PUT", "/prompts/c", {"text": "one too many"}),
            await ann.call("PUT", "/prompts/two%20words", {"text": "x"}),
            await ann.call("PUT", "/prompts/empty", {"text": ""}),
        ]
        assert [reply.status for reply in refused] == [404, 400, 400, 400]
        assert (await ann.call("DELETE", "/prompts/a")).status == 204
        assert [prompt["name"] for prompt in (await ann.get("/prompts")).json["prompts"]] == ["b"]
