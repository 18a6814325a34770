"""Workspaces in the HTTP API and DIAL: only for the owners an operator names, through the same gate as a coding run."""

from pathlib import Path

import aiohttp
import pytest

from task.llm.scripted import Reply, says, wants
from tests.support.http_api import Api, http_api, key_of
from tests.support.product import product
from tests.support.upstream import Received
from tests.support.workspace import Place, bucket_of

FILE_TOOLS = {"fs_read", "fs_write", "fs_list", "fs_edit", "fs_search"}


def offered(received: Received) -> set[str]:
    return set(received.tools)


def writing(received: Received) -> Reply:
    """Writes what the user asks for, and reports the result."""
    last = received.messages[-1]
    if last["role"] == "tool":
        return says("Result: ", str(last["content"]))
    if "fs_write" not in offered(received):
        return says("I have no such tool.")
    return wants("fs_write", path="notes.md", content="See https://made-up.example/")


async def test_the_owner_of_a_named_key_is_offered_the_workspace_and_nobody_else(tmp_path: Path) -> None:
    place = Place.made(tmp_path)
    anna, bob = await key_of("anna", tmp_path), await key_of("bob", tmp_path)
    async with http_api(
        then=writing, tmp_path=tmp_path, http={"mode": "keys"}, coding=place.offered_to("anna", apply=True)
    ) as api:
        answers = [(await api.with_key(key).complete("Write a note")).json for key in (bob, anna)]
        asked_for_bob, *asked_for_anna = api.upstream.requests
    assert not FILE_TOOLS & offered(asked_for_bob)
    assert offered(asked_for_anna[0]) >= FILE_TOOLS
    assert "no such tool" in str(answers[0])
    assert "wrote notes.md" in str(answers[1])
    assert (place.path / "notes.md").read_text() == "See https://made-up.example/"


@pytest.mark.parametrize(("mode", "applies"), [("read_only", True), ("ask", True), ("default", False)])
async def test_a_caller_can_narrow_what_runs_without_a_question(tmp_path: Path, mode: str, applies: bool) -> None:
    place = Place.made(tmp_path)
    async with http_api(then=writing, tmp_path=tmp_path, coding=place.offered_to("local", apply=applies)) as api:
        await api.complete("Write a note", permission_mode=mode)
    assert not (place.path / "notes.md").exists()


@pytest.mark.parametrize("door", ["dial", "http"])
async def test_a_user_of_core_is_named_by_the_bucket_through_either_door(tmp_path: Path, door: str) -> None:
    place = Place.made(tmp_path)
    coding = place.offered_to(await bucket_of("key-one", tmp_path), apply=True)
    async with product(then=writing, tmp_path=tmp_path, coding=coding, http={"mode": "dial"}) as p:
        if door == "dial":
            answers = [(await reader.ask("Write a note")).content for reader in (p.other, p.reader)]
        else:
            async with aiohttp.ClientSession() as session:
                api = Api(p.agent_url, p.upstream, session)
                answers = [(await api.with_key(key).complete("Write a note")).text for key in ("key-two", "key-one")]
    assert "no such tool" in answers[0]
    assert "wrote notes.md" in answers[1]
    assert (place.path / "notes.md").exists()


@pytest.mark.fault("workspace: a workspace that is gone while the product runs")
async def test_a_folder_that_is_gone_offers_nothing_until_there_is_another(tmp_path: Path) -> None:
    place = Place.made(tmp_path)
    async with http_api(then=writing, tmp_path=tmp_path, coding=place.offered_to("local", apply=True)) as api:
        assert "wrote notes.md" in (await api.complete("Write a note")).text
        place.path.rename(tmp_path / "moved")
        assert "no such tool" in (await api.complete("Write a note")).text
        place.path.mkdir()
        assert "wrote notes.md" in (await api.complete("Write a note")).text
    assert (place.path / "notes.md").exists()
