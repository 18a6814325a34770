"""Sessions through the API: searched, pinned, separated by who started them, exported, deleted together."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from task.llm.scripted import says, wants
from tests.support.http_api import Api, http_api, key_of, said

UNTITLED = {"titles": "off"}  # a title would take one of the model's scripted answers
ASKED = {"messages": [said("Wie heißt die Straße?")], "origin": "page"}


async def answered(api: Api, **body: Any) -> str:
    """The session of a run that has ended."""
    run = (await api.post("/runs", {**ASKED, **body})).json
    await api.events(run["run_id"])
    return run["session_id"]


async def listed(api: Api, query: str = "") -> list[str]:
    return [row["title"] for row in (await api.get(f"/sessions{query}")).json["sessions"]]


async def test_a_person_finds_pins_and_exports_a_conversation(tmp_path: Path) -> None:
    items = (wants("calculator", expression="25*47"), says("It is ", "1175 ```here```."))
    async with http_api(*items, then=says("yes"), tmp_path=tmp_path, http=UNTITLED) as api:
        own = await answered(api)
        await api.post("/v1/responses", {"input": "Von einem Programm: straße"})
        assert len(await listed(api, "?q=STRASSE")) == 2
        assert await listed(api, "?started_by=own&families=true") == ["Wie heißt die Straße?"]
        assert await listed(api, "?started_by=programs") == ["Von einem Programm: straße"]
        found = (await api.get("/sessions?q=1175")).json["sessions"][0]
        assert "1175" in found["snippet"]
        changed = (await api.call("PATCH", f"/session/{own}", {"pinned": True})).json
        assert (changed["pinned"], changed["title"]) == (True, "Wie heißt die Straße?")
        assert await listed(api, "?pinned=true") == ["Wie heißt die Straße?"]

        page = await api.get(f"/session/{own}/export")
        assert page.headers["Content-Disposition"].endswith("filename*=UTF-8''Wie-hei%C3%9Ft-die-Stra%C3%9Fe.md")
        assert page.text.startswith("# Wie heißt die Straße?\n\n## You\n\nWie heißt die Straße?\n\n## Agent\n")
        assert "<details><summary>calculator</summary>" in page.text
        document = (await api.get(f"/session/{own}/export?format=json")).json
        assert [message["role"] for message in document["messages"]] == ["user", "assistant", "tool", "assistant"]
        lines = (await api.get("/sessions/export")).text.splitlines()
        assert [json.loads(line)["session_id"] for line in lines][1] == own
        assert (await api.get(f"/session/{own}/export?format=pdf")).status == 400


@pytest.mark.fault("http api: a tool's output as a session's title")
async def test_a_title_is_never_the_output_of_a_tool(tmp_path: Path) -> None:
    tool = {"type": "function", "name": "clock", "parameters": {"type": "object", "properties": {}}}
    async with http_api(wants("clock"), says("Noon."), says("Noon."), tmp_path=tmp_path) as api:
        first = (await api.post("/v1/responses", {"input": "What time is it?", "tools": [tool]})).json
        (call,) = (item for item in first["output"] if item["type"] == "function_call")
        result = {"type": "function_call_output", "call_id": call["call_id"], "output": "SECRET 12:00"}
        asked = {"type": "function_call", "call_id": "theirs", "name": "clock", "arguments": "{}"}
        await api.post("/v1/responses", {"input": [result], "previous_response_id": first["id"], "tools": [tool]})
        foreign = [asked, {**result, "call_id": "theirs"}]
        await api.post("/v1/responses", {"input": foreign, "tools": [tool]})
        assert not any("SECRET" in title for title in await listed(api))


@pytest.mark.fault("http api: sessions of another owner among those to be found, exported, pinned or deleted")
async def test_several_are_deleted_at_once_but_only_ones_own(tmp_path: Path) -> None:
    ann, bob = await key_of("ann", tmp_path), await key_of("bob", tmp_path)
    async with http_api(then=says("yes"), tmp_path=tmp_path, http={**UNTITLED, "mode": "keys"}) as api:
        hers, his = api.with_key(ann), api.with_key(bob)
        mine, theirs = await answered(hers), await answered(his)
        branch = (await hers.post(f"/session/{mine}/branch", {"keep": 2})).json["session_id"]
        assert await listed(hers, "?families=true&q=") == ["Wie heißt die Straße?"]
        reply = await hers.post("/sessions/delete", {"session_ids": [branch, theirs], "families": True})
        assert reply.json == {"deleted": 2}
        assert await listed(hers) == []
        assert len(await listed(his)) == 1
        assert (await hers.get(f"/session/{theirs}/export")).status == 404
        assert (await hers.call("PATCH", f"/session/{theirs}", {"pinned": True})).status == 404


@pytest.mark.fault("http api: a list, an export or a deletion of sessions that cannot be meant")
@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/sessions/delete", {"session_ids": []}),
        ("POST", "/sessions/delete", {"session_ids": ["s"] * 1001}),
        ("POST", "/sessions/delete", {}),
        ("GET", f"/sessions?q={'x' * 201}", None),
        ("GET", "/sessions?started_by=nobody", None),
        ("PATCH", "/session/sess_1", {"pinned": "perhaps"}),
        ("POST", "/runs", {"messages": [said("x")], "origin": "elsewhere"}),
    ],
)
async def test_what_cannot_be_meant_is_refused(tmp_path: Path, method: str, path: str, body: Any) -> None:
    async with http_api(tmp_path=tmp_path) as api:
        assert (await api.call(method, path, body)).status == 400
