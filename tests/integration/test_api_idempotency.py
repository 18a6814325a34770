"""Requests that a client sends again under the same `Idempotency-Key`."""

import asyncio
import json
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from task.llm.scripted import says, wants
from tests.support.api_client import agent, waiting
from tests.support.http_api import Api, http_api, key_of, said
from tests.support.replies import Reply
from tests.support.upstream import dripping, http_error

SLOW = dripping(says(*("word " for _ in range(4))), seconds=0.0005)
BODIES: dict[str, dict[str, Any]] = {
    "/chat": {"messages": [said("hi")]},
    "/runs": {"messages": [said("hi")]},
    "/v1/responses": {"input": "hi", "messages": [said("hi")]},  # also fits the other addresses
    "/v1/chat/completions": {"messages": [said("hi")]},
}


async def keyed(api: Api, path: str, body: dict[str, Any], key: str = "a-key") -> Reply:
    return await api.post(path, body, headers={"Idempotency-Key": key})


async def runs(api: Api) -> list[str]:
    return [run["run_id"] for run in (await api.get("/runs")).json["runs"]]


@pytest.mark.fault("http api: an Idempotency-Key that comes with another request")
@pytest.mark.parametrize("path", list(BODIES))
async def test_the_same_request_under_its_key_starts_one_run_and_another_is_refused(tmp_path: Path, path: str) -> None:
    async with http_api(then=says("Hello."), tmp_path=tmp_path) as api:
        first = await keyed(api, path, BODIES[path])
        again = await keyed(api, path, BODIES[path])
        others = [
            await keyed(api, path, {**BODIES[path], "temperature": 0.1}),
            await keyed(api, "/chat" if path == "/runs" else "/runs", BODIES[path]),
        ]
        started = await runs(api)
    assert first.status == again.status == (202 if path == "/runs" else 200)
    assert len(started) == 1
    assert first.json.get("run_id", first.json.get("id")) == again.json.get("run_id", again.json.get("id"))
    for other in others:
        refusal = (other.status, other.error["code"], other.error["param"])
        assert refusal == (422, "idempotency_key_reused", "Idempotency-Key")


@pytest.mark.fault("http api: an Idempotency-Key that comes with another request")
async def test_a_decision_on_a_card_under_a_key_continues_once_and_another_is_refused(tmp_path: Path) -> None:
    script = wants("write_note", text="milk"), says("Done.")
    async with agent(*script, tmp_path=tmp_path) as api:
        await api.complete("note it")
        [approval] = await waiting(api)
        path = f"/approvals/{approval['approval_id']}"
        first, again = [await keyed(api, path, {"decision": "approve"}) for _ in range(2)]
        other = await keyed(api, path, {"decision": "deny"})
        await api.events(first.json["resumed"]["run_id"])
        started = await runs(api)
    assert first.json["resumed"]["run_id"] == again.json["resumed"]["run_id"]
    assert (again.json["approval"]["status"], len(started)) == ("allowed", 2)
    assert (other.status, other.error["code"]) == (422, "idempotency_key_reused")


@pytest.mark.fault("http api: an Idempotency-Key with a body of 10 MB, or one over the limit")
async def test_a_body_of_10_mb_is_recognised_and_so_is_one_that_differs_at_its_end(tmp_path: Path) -> None:
    async def sent(api: Api, last: str) -> Reply:
        body = json.dumps({"messages": [said(f"{'x' * 10_000_000}{last}")]}).encode()
        headers = {"Idempotency-Key": "a-key", "Content-Type": "application/json"}
        return await api.post("/v1/chat/completions", data=BytesIO(body), headers=headers)

    async with http_api(then=says("Long."), tmp_path=tmp_path, http={"body_bytes": 16 * 2**20}) as api:
        first, again, other = [await sent(api, last) for last in "aab"]
        started = await runs(api)
    assert first.status == 200, first.text
    assert (again.json["run_id"], started) == (first.json["run_id"], [first.json["run_id"]])
    assert (other.status, other.error["code"]) == (422, "idempotency_key_reused")


@pytest.mark.fault("http api: an Idempotency-Key that is empty or too long")
@pytest.mark.parametrize("key", ["", "k" * 300])
async def test_a_key_without_a_usable_length_is_refused(tmp_path: Path, key: str) -> None:
    async with http_api(tmp_path=tmp_path) as api:
        reply = await keyed(api, "/chat", BODIES["/chat"], key)
        started = await runs(api)
    assert (reply.status, started) == (400, [])
    assert "1 to 255 characters" in reply.error["message"]


@pytest.mark.fault("http api: an Idempotency-Key of another owner, or one that has expired")
async def test_a_key_is_its_owners(tmp_path: Path) -> None:
    secrets = [await key_of(owner, tmp_path) for owner in ("ann", "bob")]
    async with http_api(then=says("Hello."), tmp_path=tmp_path, http={"mode": "keys"}) as api:
        ann, bob = map(api.with_key, secrets)
        replies = [await keyed(one, "/chat", {"messages": [said(text)]}) for one, text in ((ann, "a"), (bob, "b"))]
        started = [await runs(one) for one in (ann, bob)]
    assert [reply.status for reply in replies] == [200, 200]
    assert started == [[reply.json["run_id"]] for reply in replies]


@pytest.mark.fault("http api: an Idempotency-Key while its first request is prepared or answered")
async def test_twenty_requests_at_once_under_one_key_start_one_run(tmp_path: Path) -> None:
    async with http_api(says("Hello."), tmp_path=tmp_path) as api:
        replies = await asyncio.gather(*(keyed(api, "/v1/chat/completions", BODIES["/chat"]) for _ in range(20)))
        started = await runs(api)
    assert {reply.json["run_id"] for reply in replies} == set(started)
    assert len(started) == 1


@pytest.mark.fault("http api: an Idempotency-Key while its first request is prepared or answered")
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses"])
async def test_a_repeat_during_the_run_joins_its_stream(tmp_path: Path, path: str) -> None:
    async with http_api(SLOW, tmp_path=tmp_path) as api:
        body = {**BODIES[path], "stream": True}
        first = asyncio.ensure_future(keyed(api, path, body))
        await api.upstream.received(1)
        again = await keyed(api, path, body)
        before = await asyncio.wait_for(first, 20)
        started = await runs(api)
    assert again.text == before.text
    assert len(started) == 1


@pytest.mark.fault("http api: an Idempotency-Key of a request that failed or was refused")
async def test_a_request_whose_run_failed_gets_the_same_failure_under_its_key(tmp_path: Path) -> None:
    async with http_api(http_error(401), then=says("Hello."), tmp_path=tmp_path) as api:
        replies = [await keyed(api, "/v1/chat/completions", BODIES["/chat"]) for _ in range(2)]
        fresh = await keyed(api, "/v1/chat/completions", BODIES["/chat"], "another")
    assert [reply.status for reply in replies] == [502, 502]
    assert fresh.status == 200


@pytest.mark.fault("http api: an Idempotency-Key of a request that failed or was refused")
@pytest.mark.fault("http api: an Idempotency-Key with a body of 10 MB, or one over the limit")
@pytest.mark.parametrize(
    ("body", "status"),
    [({**BODIES["/chat"], "session_id": "sess_none"}, 404), ({"messages": [said("x" * 4_000)]}, 413)],
    ids=["no session", "too large"],
)
async def test_a_refused_request_leaves_its_key_free(body: dict[str, Any], status: int, tmp_path: Path) -> None:
    async with http_api(says("Hello."), tmp_path=tmp_path, http={"body_bytes": 2_000}) as api:
        refused = await keyed(api, "/chat", body)
        corrected = await keyed(api, "/chat", BODIES["/chat"])
    assert (refused.status, corrected.status) == (status, 200)
