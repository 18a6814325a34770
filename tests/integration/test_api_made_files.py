"""Files that tools make in a run of the HTTP API: a caller who sees them in an answer can fetch them, in every mode."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession, FormData

from task.llm.scripted import Reply, says, wants
from tests.support.core import API_KEY
from tests.support.http_api import Api, key_of, said
from tests.support.image_deployment import NAME, PNG, attaching, image_deployment
from tests.support.interpreter import TOKEN, RunningInterpreter, running_interpreter
from tests.support.product import Product, product
from tests.support.upstream import Item, Received

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
