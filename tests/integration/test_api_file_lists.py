"""`/v1/files` for OpenAI's client: purposes are kept, lists are paged."""

from __future__ import annotations

import base64
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from aiohttp import ClientSession, FormData

from task.llm.scripted import says, wants
from tests.support.core import API_KEY
from tests.support.http_api import Api
from tests.support.note_product import TOOL
from tests.support.product import product
from tests.support.upstream import Item

if TYPE_CHECKING:
    from openai import AsyncOpenAI

MAKER = '''
@tool(effects={Effect.READ})
def make_text() -> str:
    """Make much text."""
    return "word " * 20_000
'''


@asynccontextmanager
async def clients(*items: Item, tmp_path: Path, **settings: Any) -> AsyncGenerator[tuple[Api, AsyncOpenAI]]:
    from openai import AsyncOpenAI

    given: dict[str, Any] = {"dial_api_key": API_KEY, **settings}
    async with product(*items, tmp_path=tmp_path, **given) as running, ClientSession() as session:
        address = f"{running.agent_url}/v1"
        async with AsyncOpenAI(base_url=address, api_key="none", max_retries=0, timeout=20) as openai:
            yield Api(running.agent_url, running.upstream, session), openai


async def test_a_file_keeps_the_purpose_it_came_with_and_its_name(tmp_path: Path) -> None:
    purposes: Any = ("user_data", "vision", "fine-tune", "assistants", "batch", "evals")
    async with clients(tmp_path=tmp_path) as (_, openai):
        sent = {
            purpose: await openai.files.create(file=("my_notes-a.txt", b"same"), purpose=purpose)
            for purpose in purposes
        }
        again = await openai.files.create(file=("my_notes-a.txt", b"same"), purpose="vision")
        found = {purpose: await openai.files.retrieve(file.id) for purpose, file in sent.items()}
        listed = {purpose: [file.id async for file in openai.files.list(purpose=purpose)] for purpose in purposes}
        content = await openai.files.content(sent["vision"].id)
    assert {purpose: file.purpose for purpose, file in found.items()} == {purpose: purpose for purpose in purposes}
    assert {file.filename for file in found.values()} == {"my_notes-a.txt"}
    assert listed == {purpose: [file.id] for purpose, file in sent.items()}
    assert (again.id, content.content) == (sent["vision"].id, b"same")


@pytest.mark.fault("http api: a wrong purpose of a file, a wrong limit or order of a list")
async def test_a_list_comes_in_pages_in_either_order(tmp_path: Path) -> None:
    async with clients(tmp_path=tmp_path) as (api, openai):
        ids = [(await openai.files.create(file=(f"{n}.txt", b"x"), purpose="user_data")).id for n in range(5)]
        pages = [page async for page in (await openai.files.list(limit=2, order="asc")).iter_pages()]
        newest = [file.id async for file in openai.files.list(limit=3)]
        first = (await api.get("/v1/files?limit=2")).json
        wrong = [await api.get(f"/v1/files?{query}") for query in ("limit=0", "limit=10001", "order=up", "limit=x")]
        lost = await api.get("/v1/files?after=nothing")
    assert [[file.id for file in page.data] for page in pages] == [ids[:2], ids[2:4], ids[4:]]
    assert newest == ids[::-1]
    assert (first["has_more"], first["first_id"], first["last_id"]) == (True, ids[4], ids[3])
    assert [reply.status for reply in wrong] == [400] * 4
    assert lost.status == 404


@pytest.mark.fault("http api: a wrong purpose of a file, a wrong limit or order of a list")
async def test_a_wrong_purpose_is_refused_and_a_made_file_is_output(tmp_path: Path) -> None:
    form = FormData()
    form.add_field("file", b"x", filename="x.txt")
    form.add_field("purpose", "nonsense")
    maker = tmp_path / "maker.py"
    maker.write_text(TOOL + MAKER)
    settings: dict[str, Any] = {"tool_paths": [str(maker)]}
    async with clients(wants("make_text"), says("ok"), tmp_path=tmp_path, **settings) as (api, openai):
        refused = await api.call("POST", "/v1/files", data=form)
        await api.complete("Make much")
        made = [file async for file in openai.files.list()]
    assert (refused.status, refused.error["param"]) == (400, "purpose")
    assert [(file.purpose, file.bytes) for file in made] == [("assistants_output", 100_000)]


async def test_with_a_users_token_a_made_file_is_listed_and_read_too(tmp_path: Path) -> None:
    claims = base64.urlsafe_b64encode(b'{"sub": "ann"}').decode().rstrip("=")
    token = f"eyJhbGciOiJub25lIn0.{claims}."
    (tmp_path / "maker.py").write_text(TOOL + MAKER)
    settings: dict[str, Any] = {"tool_paths": [str(tmp_path / "maker.py")], "http": {"mode": "dial"}}
    async with clients(wants("make_text"), says("ok"), tmp_path=tmp_path, **settings) as (api, _):
        ann = api.with_key(token)
        await ann.complete("Make much")
        [made] = (await ann.get("/v1/files")).json["data"]
        content = await ann.get(f"/v1/files/{made['id']}/content")
    assert "/http/" in made["url"]
    assert len(content.text) == 100_000
