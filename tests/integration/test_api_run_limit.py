"""One caller may have so many runs in progress and no more; those that wait for a person do not count."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from task.llm.scripted import says, wants
from tests.support.api_client import NOTES
from tests.support.http_api import Api, Reply, http_api, key_of, said
from tests.support.product import product
from tests.support.upstream import hanging

DIAL = "/openai/deployments/general-purpose-agent/chat/completions"
LIMITED = {"mode": "keys", "runs_per_caller": 1}


async def started(api: Api) -> Reply:
    return await api.post("/runs", {"messages": [said("Hi")]})


@pytest.mark.fault("approval: more runs at a time than one caller may have")
async def test_a_run_more_than_a_caller_may_have_is_refused_until_one_ends(tmp_path: Path) -> None:
    ann, bob = [await key_of(name, tmp_path) for name in ("ann", "bob")]
    script: tuple[Any, ...] = (hanging(says("Hello.")), says("Hi Bob."), says("Again."))
    async with http_api(*script, tmp_path=tmp_path, http=LIMITED) as api:
        anns, bobs = api.with_key(ann), api.with_key(bob)
        first = (await started(anns)).json
        await api.upstream.received(1)
        refused = [await started(anns), await anns.complete("Hi"), await anns.post("/v1/responses", {"input": "Hi"})]
        other = await bobs.complete("Hi")
        async with asyncio.timeout(20):
            await anns.post(f"/runs/{first['run_id']}/cancel")
            await anns.events(first["run_id"])
        later = await anns.complete("Hi")
    assert {(reply.status, reply.error["code"]) for reply in refused} == {(429, "rate_limit_exceeded")}
    assert all(int(reply.headers["Retry-After"]) > 0 for reply in refused)
    assert (other.status, later.status) == (200, 200)


@pytest.mark.fault("approval: more runs at a time than one caller may have")
async def test_a_run_that_waits_for_a_person_does_not_count(tmp_path: Path) -> None:
    script = (wants("write_note", text="milk"), says("Hello."))
    limited = {"runs_per_caller": 1}
    async with http_api(*script, tmp_path=tmp_path, tool_paths=[NOTES], http=limited) as api:
        assert (await api.complete("Note")).json["status"] == "suspended"
        assert (await api.complete("Hi")).status == 200


@pytest.mark.fault("approval: more runs at a time than one caller may have")
async def test_at_the_dial_route_one_more_is_refused_as_core_passes_it_on(tmp_path: Path) -> None:
    limited = {"runs_per_caller": 1}
    async with (
        product(hanging(says("Hello.")), says("Hi."), tmp_path=tmp_path, http=limited) as p,
        aiohttp.ClientSession() as session,
    ):
        core = Api(p.core.url, p.upstream, session)
        first = asyncio.create_task(core.post(DIAL, {"messages": [said("Hi")]}, headers={"Api-Key": "key-one"}))
        await p.upstream.received(1)
        refused = await core.post(DIAL, {"messages": [said("Hi")]}, headers={"Api-Key": "key-one"})
        other = await core.post(DIAL, {"messages": [said("Hi")]}, headers={"Api-Key": "key-two"})
        first.cancel()
        await asyncio.wait({first}, timeout=10)
    assert (refused.status, refused.error["code"], other.status) == (500, "rate_limit_exceeded", 200)
    assert refused.error["display_message"].startswith("1 of your requests")
