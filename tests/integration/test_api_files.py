"""Files of the HTTP API: sent, made by tools, attached to answers, listed in pages, and passed on as they arrive."""

from __future__ import annotations

import asyncio
import base64
import json
import re
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from aiohttp import ClientPayloadError, ClientSession, ClientTimeout, FormData, web

from task.core_client.files import file_id_of
from task.llm.scripted import Reply, says, wants
from tests.support.agent import agent_process
from tests.support.core import API_KEY, local_core, served
from tests.support.core_peers import Handler
from tests.support.http_api import Api, http_api, key_of, said
from tests.support.image_deployment import NAME, PNG, attaching, image_deployment
from tests.support.interpreter import TOKEN, RunningInterpreter, running_interpreter
from tests.support.note_product import TOOL
from tests.support.openapi_document import faults
from tests.support.ports import free_port
from tests.support.product import Product, product
from tests.support.upstream import Item, Received

if TYPE_CHECKING:
    from openai import AsyncOpenAI

LARGE = 96 * 2**20
PLACE = "files/bucket/http/local/large.bin"


@asynccontextmanager
async def core_with_a_file(content: bytes, tmp_path: Path) -> AsyncGenerator[tuple[str, str]]:
    """A Core's address, and the id of a file in the folder of the agent's callers."""
    async with local_core({}, tmp_path) as core, ClientSession(headers={"Api-Key": API_KEY}) as session:
        async with session.get(f"{core.url}/v1/bucket") as response:
            place = f"files/{(await response.json())['bucket']}/http/local/large.bin"
        async with session.put(f"{core.url}/v1/{place}", data={"file": BytesIO(content)}) as response:
            assert response.status == 200, await response.text()
        yield core.url, file_id_of(place)


def peak_memory(pid: int) -> int:
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(encoding="utf-8"))
    assert found is not None
    return int(found[1]) * 1024


@pytest.mark.fault("http api: a file too large to hold in memory")
@pytest.mark.system
async def test_a_large_file_takes_little_memory_on_its_way(tmp_path: Path) -> None:
    port = free_port()
    async with core_with_a_file(bytes(LARGE), tmp_path) as (core, file_id):
        variables = {"DIAL_ENDPOINT": core, "DIAL_API_KEY": API_KEY, "AGENT_DATA_DIR": str(tmp_path / "data")}
        async with (
            agent_process(tmp_path / "home", port, variables) as process,
            ClientSession(f"http://127.0.0.1:{port}", timeout=ClientTimeout(60)) as session,
        ):
            async with session.get(f"/v1/files/{file_id}") as known:
                assert (await known.json())["bytes"] == LARGE
            before = peak_memory(process.pid)
            async with session.get(f"/v1/files/{file_id}/content", headers={"Range": "bytes=0-9"}) as response:
                size = sum([len(part) async for part in response.content.iter_any()])
            grown = peak_memory(process.pid) - before
    assert (response.status, response.content_length, size) == (200, LARGE, LARGE)
    assert grown < LARGE / 4


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


@pytest.mark.fault("http api: a caller who leaves in the middle of a file")
async def test_a_caller_who_leaves_ends_the_transfer_from_core(tmp_path: Path) -> None:
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


@pytest.mark.system
@pytest.mark.parametrize("mode", ["keys", "dial"])
async def test_what_code_has_made_in_a_session_is_there_again_on_another_interpreter_server(
    mode: str, tmp_path: Path
) -> None:
    make, read = "x = 1; open('made.csv', 'w').write('a,b')", "print(open('made.csv').read(), 'x' in dir())"
    turns = (wants("execute_code", code=make), says("Made."), wants("execute_code", code=read), says("Read."))
    with running_interpreter(tmp_path / "one", "--spares", "0", "--bare") as gone:
        server = {"pyinterpreter_mcp_url": gone.url, "mcp_token": TOKEN}
        async with asking(mode, *turns, tmp_path=tmp_path, **server) as (running, api, _):
            session = (await api.post("/session/start")).json["session_id"]
            assert (await api.complete("Make it", session_id=session)).status == 200
            gone.process.kill()
            gone.process.wait(10)
            with running_interpreter(tmp_path / "another", "--spares", "0", "--bare", port=gone.port):
                assert (await api.complete("Read it", session_id=session)).status == 200
            result = running.upstream.requests[-1].messages[-1]["content"]
            listed = (await api.get(f"/session/{session}/messages")).json["messages"]
    assert "are lost, because the interpreter server that kept them has stopped" in result
    assert "a,b False" in result
    assert [message for message in listed if "memo" in message] == []


@pytest.mark.parametrize("mode", MODES)
async def test_what_code_has_made_can_be_fetched_and_is_listed(
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
        asking("keys", *script, tmp_path=tmp_path, models=images.models, deployments={"tools": [look]}) as (
            _,
            ann,
            bob,
        ),
    ):
        place.append((await ann.call("POST", "/v1/files", data=form)).json["url"])
        own, foreign = [await caller.complete("Look at it") for caller in (ann, bob)]
        asked = len(images.peer.requests)
    assert "A grey square" in str(own.json["trace"]["tool_calls"])
    assert "There is no" in str(foreign.json["trace"]["tool_calls"])
    assert asked == 1


TURN = (wants("image_generation_tool", prompt="a cat"), says("Here."))


async def test_a_made_picture_is_attached_to_every_form_of_the_answer(tmp_path: Path) -> None:
    from openai import AsyncOpenAI

    question: Any = [said("Paint a cat")]
    async with (
        image_deployment() as images,
        product(*TURN, *TURN, *TURN, *TURN, tmp_path=tmp_path, models=images.models, dial_api_key=API_KEY) as running,
        ClientSession() as session,
        AsyncOpenAI(base_url=f"{running.agent_url}/v1", api_key="none", max_retries=0, timeout=20) as openai,
    ):
        images.core = running.core.url
        api = Api(running.agent_url, running.upstream, session)
        whole = (await api.complete("Paint a cat")).json["choices"][0]
        stream = (await api.complete("Paint a cat", stream=True)).chunks
        chat = (await api.post("/chat", {"messages": question})).json
        async with openai.chat.completions.stream(model="test-model", messages=question) as streamed:
            read = (await streamed.get_final_completion()).choices[0].message.model_dump()
        contents = [
            (await openai.files.content(item["file_id"])).content
            for item in (*whole["message"]["custom_content"]["attachments"], *chat["attachments"])
        ]
    last = stream[-1]["choices"][0]
    assert last["finish_reason"] == whole["finish_reason"] == "stop"
    [delta] = last["delta"]["custom_content"]["attachments"]
    assert delta.pop("index") == 0
    for item in (*whole["message"]["custom_content"]["attachments"], delta, *chat["attachments"]):
        assert item["type"] == "image/png"
        assert item["title"].startswith("Generated Image")
        assert item["url"].startswith("files/")
    assert [item["type"] for item in read["custom_content"]["attachments"]] == ["image/png"]
    assert contents == [PNG, PNG]


async def test_an_answer_without_attachments_has_no_further_field(tmp_path: Path) -> None:
    async with (
        product(says("Hi"), says("Hi"), tmp_path=tmp_path, dial_api_key=API_KEY) as running,
        ClientSession() as session,
    ):
        api = Api(running.agent_url, running.upstream, session)
        message = (await api.complete("?")).json["choices"][0]["message"]
        chat = (await api.post("/chat", {"messages": [said("?")]})).json
    assert "custom_content" not in message
    assert chat["attachments"] == []


async def test_openais_client_reads_a_made_file_in_the_annotations_of_a_response(tmp_path: Path) -> None:
    from openai import AsyncOpenAI

    async with (
        image_deployment() as images,
        product(*TURN, *TURN, says("A cat."), tmp_path=tmp_path, models=images.models, dial_api_key=API_KEY) as running,
        ClientSession() as session,
        AsyncOpenAI(base_url=f"{running.agent_url}/v1", api_key="none", max_retries=0, timeout=20) as openai,
    ):
        images.core = running.core.url
        api = Api(running.agent_url, running.upstream, session)
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
