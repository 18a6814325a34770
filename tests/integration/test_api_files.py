"""Files of the HTTP API: sent, made by tools, attached to answers, listed in pages, and passed on as they arrive."""

from __future__ import annotations

import asyncio
import base64
import json
import re
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from aiohttp import ClientPayloadError, ClientSession, FormData, web

from task.core_client.files import file_id_of
from task.llm.scripted import Reply, says, wants
from tests.support.api_client import behind_core
from tests.support.core import API_KEY, served
from tests.support.core_peers import Handler
from tests.support.http_api import Api, http_api, key_of, said
from tests.support.image_deployment import NAME, PNG, attaching, image_deployment
from tests.support.interpreter import TOKEN, RunningInterpreter, running_interpreter
from tests.support.note_product import TOOL
from tests.support.openapi_document import faults
from tests.support.product import Product, product
from tests.support.upstream import Item, Received

if TYPE_CHECKING:
    from openai import AsyncOpenAI

PLACE = "files/bucket/http/local/large.bin"


@asynccontextmanager
async def reading_from(content: Handler, tmp_path: Path) -> AsyncGenerator[tuple[Api, str]]:
    """The API before a Core that answers with this content, and the path to it."""

    async def known(_: web.Request) -> web.Response:
        return web.json_response({"url": PLACE, "nodeType": "ITEM"})

    app = web.Application()
    app.router.add_get(f"/v1/metadata/{PLACE}", known)
    app.router.add_get(f"/v1/{PLACE}", content)
    async with served(app) as core, http_api(tmp_path=tmp_path, dial_endpoint=core, dial_api_key=API_KEY) as api:
        yield api, f"/v1/files/{file_id_of(PLACE)}/content"


@pytest.mark.fault("http api: a file that Core cuts off in the middle")
async def test_a_file_that_is_cut_off_is_never_a_shorter_file(tmp_path: Path) -> None:
    async def cut_off(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Length": "100"})
        await response.prepare(request)
        await response.write(b"half")
        assert request.transport is not None
        request.transport.close()
        return response

    async with reading_from(cut_off, tmp_path) as (api, path):
        with pytest.raises(ClientPayloadError):
            await api.get(path)


@pytest.mark.fault("http api: a file too large to hold in memory")
@pytest.mark.fault("http api: a caller who leaves in the middle of a file")
async def test_a_file_is_passed_on_as_it_arrives_until_the_caller_leaves(tmp_path: Path) -> None:
    ended = asyncio.Event()

    async def endless(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        try:
            while True:
                await response.write(bytes(2**16))
        finally:
            ended.set()

    async with reading_from(endless, tmp_path) as (api, path):
        async with api.session.get(f"{api.url}{path}") as response:
            assert await response.content.readexactly(10) == bytes(10)
        async with asyncio.timeout(20):
            await ended.wait()


MAKER = '''
@tool(effects={Effect.READ})
def make_text() -> str:
    """Make much text."""
    return "word " * 20_000
'''


@asynccontextmanager
async def clients(*items: Item, tmp_path: Path, **settings: Any) -> AsyncGenerator[tuple[Api, AsyncOpenAI]]:
    from openai import AsyncOpenAI

    async with (
        behind_core(*items, tmp_path=tmp_path, dial_api_key=API_KEY, **settings) as api,
        AsyncOpenAI(base_url=f"{api.url}/v1", api_key="none", max_retries=0, timeout=20) as openai,
    ):
        yield api, openai


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
        form = FormData()
        form.add_field("file", b"x", filename="x.txt")
        form.add_field("purpose", "nonsense")
        refused = await api.call("POST", "/v1/files", data=form)
    assert [[file.id for file in page.data] for page in pages] == [ids[:2], ids[2:4], ids[4:]]
    assert newest == ids[::-1]
    assert (first["has_more"], first["first_id"], first["last_id"]) == (True, ids[4], ids[3])
    assert [reply.status for reply in wrong] == [400] * 4
    assert lost.status == 404
    assert (refused.status, refused.error["param"]) == (400, "purpose")


async def test_a_made_file_is_output_and_read_with_a_users_token_too(tmp_path: Path) -> None:
    claims = base64.urlsafe_b64encode(b'{"sub": "ann"}').decode().rstrip("=")
    (tmp_path / "maker.py").write_text(TOOL + MAKER)
    settings: dict[str, Any] = {"tool_paths": [str(tmp_path / "maker.py")], "http": {"mode": "dial"}}
    async with behind_core(wants("make_text"), says("ok"), tmp_path=tmp_path, dial_api_key=API_KEY, **settings) as api:
        ann = api.with_key(f"eyJhbGciOiJub25lIn0.{claims}.")
        await ann.complete("Make much")
        [made] = (await ann.get("/v1/files")).json["data"]
        content = await ann.get(f"/v1/files/{made['id']}/content")
    assert "/http/" in made["url"]
    assert (made["purpose"], made["bytes"], len(content.text)) == ("assistants_output", 100_000, 100_000)


MODES = ("open", "keys", "dial")
PLOTS = """
import matplotlib.pyplot as plt
plt.plot([1, 3, 2]); plt.show()
open("out.csv", "w").write("a,b\\n1,2\\n")
display({"application/vnd.plotly.v1+json": {"data": [], "layout": {}}}, raw=True)
"""
RUNS = (wants("execute_code", code=PLOTS), says("Here it is."))


@pytest.fixture(scope="module")
def interpreter(tmp_path_factory: pytest.TempPathFactory) -> Generator[RunningInterpreter]:
    with running_interpreter(tmp_path_factory.mktemp("interpreter"), "--spares", "0") as running:
        yield running


@asynccontextmanager
async def asking(mode: str, *items: Item, tmp_path: Path, **settings: Any) -> AsyncGenerator[tuple[Product, Api, Api]]:
    """The product in that mode, somebody who asks, and somebody else (in the mode `open` the same)."""
    secrets = [await key_of(name, tmp_path) for name in ("ann", "bob")] if mode == "keys" else ["key-one", "key-two"]
    given: dict[str, Any] = {"http": {"mode": mode}, "dial_api_key": API_KEY, **settings}
    async with product(*items, tmp_path=tmp_path, **given) as running, ClientSession() as session:
        api = Api(running.agent_url, running.upstream, session)
        yield running, *((api, api) if mode == "open" else (api.with_key(secrets[0]), api.with_key(secrets[1])))


async def made(api: Api, question: str) -> list[dict[str, Any]]:
    """The files attached to the answer, from its events."""
    run = (await api.post("/runs", {"messages": [said(question)]})).json
    events = await api.events(run["run_id"])
    assert events[-1]["status"] == "finished", events
    return [event["attachment"] for event in events if event["type"] == "attachment" and event["stage"] is None]


async def content(api: Api, path: str) -> tuple[int, bytes]:
    async with api.session.get(f"{api.url}{path}", headers=dict(api.headers)) as response:
        return response.status, await response.read()


@pytest.mark.parametrize("mode", MODES)
async def test_what_code_has_made_is_listed_and_read(
    mode: str, interpreter: RunningInterpreter, tmp_path: Path
) -> None:
    server = {"pyinterpreter_mcp_url": interpreter.url, "mcp_token": TOKEN}
    async with asking(mode, *RUNS, tmp_path=tmp_path, **server) as (_, api, other):
        files = {item["type"]: item for item in await made(api, "Plot it")}
        fetched = {kind: await content(api, f"/v1/files/{item['file_id']}/content") for kind, item in files.items()}
        table = (await api.get(f"/v1/files/{files['text/csv']['file_id']}")).json
        listed = {item["url"]: item["id"] for item in (await api.get("/v1/files")).json["data"]}
        strangers = [(await other.get(f"/v1/files/{item['file_id']}")).status for item in files.values()]
    assert {status for status, _ in fetched.values()} == {200}
    assert fetched["image/png"][1].startswith(b"\x89PNG")
    assert fetched["text/csv"][1] == b"a,b\n1,2\n"
    assert json.loads(fetched["application/vnd.plotly.v1+json"][1]) == {"data": [], "layout": {}}
    assert listed == {item["url"]: item["file_id"] for item in files.values()}
    assert table["url"] == files["text/csv"]["url"]
    assert re.fullmatch(r"out_[0-9a-f]{8}\.csv", table["filename"])
    assert strangers == [200 if mode == "open" else 404] * 3


@pytest.mark.parametrize("mode", MODES)
async def test_a_picture_that_a_deployment_has_stored_can_be_fetched(mode: str, tmp_path: Path) -> None:
    turns = (wants("image_generation_tool", prompt="a cat"), says("Here."))
    async with (
        image_deployment() as images,
        asking(mode, *turns, tmp_path=tmp_path, models=images.models) as (running, api, other),
    ):
        images.core = running.core.url
        [picture] = await made(api, "Paint a cat")
        path = f"/v1/files/{picture['file_id']}/content"
        fetched, strangers = await content(api, path), await content(other, path)
    assert fetched == (200, PNG)
    assert strangers[0] == (200 if mode == "open" else 404)


@pytest.mark.fault("http api: a file of another owner of the shared key, passed to a deployment")
async def test_a_shared_key_passes_no_file_of_another_owner_to_a_deployment(tmp_path: Path) -> None:
    def looks(_: Received) -> Reply:
        return wants("look", prompt="What is it?", file_urls=[place[0]])

    place: list[str] = []
    look = {"name": "look", "description": "Looks.", "deployment": NAME, "attachments": ["image/*"]}
    script = (looks, says("I see."), looks, says("I may not."))
    form = FormData()
    form.add_field("file", PNG, filename="secret.png", content_type="image/png")
    async with (
        image_deployment(attaching(text="A grey square")) as images,
        asking("keys", *script, tmp_path=tmp_path, models=images.models, deployments={"tools": [look]}) as people,
    ):
        _, ann, bob = people
        place.append((await ann.call("POST", "/v1/files", data=form)).json["url"])
        own, foreign = [await caller.complete("Look at it") for caller in (ann, bob)]
        asked = len(images.peer.requests)
    assert "A grey square" in str(own.json["trace"]["tool_calls"])
    assert "There is no" in str(foreign.json["trace"]["tool_calls"])
    assert asked == 1


TURN = (wants("image_generation_tool", prompt="a cat"), says("Here."))


@asynccontextmanager
async def painting(*items: Item, tmp_path: Path) -> AsyncGenerator[tuple[Api, AsyncOpenAI]]:
    """A model that paints with a deployment's help, the API, and OpenAI's client of it."""
    from openai import AsyncOpenAI

    async with (
        image_deployment() as images,
        asking("open", *items, tmp_path=tmp_path, models=images.models) as (running, api, _),
        AsyncOpenAI(base_url=f"{api.url}/v1", api_key="none", max_retries=0, timeout=20) as openai,
    ):
        images.core = running.core.url
        yield api, openai


async def test_a_made_picture_is_attached_to_every_form_of_the_answer(tmp_path: Path) -> None:
    question: Any = [said("Paint a cat")]
    async with painting(*TURN * 4, tmp_path=tmp_path) as (api, openai):
        whole = (await api.complete("Paint a cat")).json["choices"][0]
        stream = (await api.complete("Paint a cat", stream=True)).chunks
        chat = (await api.post("/chat", {"messages": question})).json
        async with openai.chat.completions.stream(model="test-model", messages=question) as streamed:
            read = (await streamed.get_final_completion()).choices[0].message.model_dump()
        attached = [*whole["message"]["custom_content"]["attachments"], *chat["attachments"]]
        contents = [(await openai.files.content(item["file_id"])).content for item in attached]
    last = stream[-1]["choices"][0]
    assert last["finish_reason"] == whole["finish_reason"] == "stop"
    [delta] = last["delta"]["custom_content"]["attachments"]
    assert delta.pop("index") == 0
    for item in (*attached, delta):
        assert item["type"] == "image/png"
        assert item["title"].startswith("Generated Image")
        assert item["url"].startswith("files/")
    assert [item["type"] for item in read["custom_content"]["attachments"]] == ["image/png"]
    assert contents == [PNG, PNG]


async def test_openais_client_reads_a_made_file_in_the_annotations_of_a_response(tmp_path: Path) -> None:
    async with painting(*TURN, *TURN, says("A cat."), tmp_path=tmp_path) as (api, openai):
        document = (await api.get("/openapi.json")).json
        whole = await openai.responses.create(model="test-model", input="Paint a cat")
        kept = await openai.responses.retrieve(whole.id)
        events = (await api.post("/v1/responses", {"input": "Paint a cat", "stream": True})).chunks
        output = [item.model_dump(exclude_none=True) for item in whole.output]
        again: Any = [said("Paint a cat"), *output, said("What is it?")]
        after = await openai.responses.create(model="test-model", input=again)
        [message] = whole.output
        assert message.type == "message"
        [part] = message.content
        assert part.type == "output_text"
        [noted] = part.annotations
        assert noted.type == "file_citation"
        content = (await openai.files.content(noted.file_id)).content
    assert content == PNG
    assert noted.filename.endswith(".png")
    assert kept.output == whole.output
    assert [item["file_id"] for item in whole.model_dump()["attachments"]] == [noted.file_id]
    assert whole.model_dump()["attachments"] == kept.model_dump()["attachments"]
    assert after.output_text == "A cat."
    assert [event["type"] for event in events][-6:-3] == [
        "response.output_text.delta", "response.output_text.annotation.added", "response.output_text.done",
    ]  # fmt: skip
    [added] = [event["annotation"] for event in events if event["type"] == "response.output_text.annotation.added"]
    assert added == {**noted.model_dump(), "file_id": added["file_id"], "filename": added["filename"]}
    assert events[-1]["response"]["output"][0]["content"][0]["annotations"] == [added]
    for event in events:
        assert faults(document, "ResponseEvent", event) == []
