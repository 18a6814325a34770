"""Operations of HTTP APIs as tools of the whole product, against a real server and others that misbehave."""

import asyncio
import json
import logging
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from task.cli.doctor import results
from task.errors import ToolError
from task.llm.scripted import says, wants
from task.settings import Settings
from task.tools.mcp.results import MCPFailure
from task.tools.openapi.client import MOST_BYTES, ApiClient
from task.tools.openapi.document import LARGEST_DOCUMENT, ApiSpec
from tests.support.api_peer import Library, document, library
from tests.support.product import product
from tests.support.workspace import bucket_of

SECRET = 'ann:s3cret"/key'
DOCS = Path(__file__).parents[2] / "docs" / "tools.md"


async def no_file(_: str) -> bytes:
    raise ToolError("no such file")


def client(peer: Library, **chosen: Any) -> ApiClient:
    document = str(chosen.pop("document", f"{peer.url}/openapi.json"))
    return ApiClient(ApiSpec("lib", document, **chosen), no_file)


async def called(api: ApiClient, name: str, **arguments: Any) -> str:
    try:
        return (await api.call(f"lib_{name}", arguments)).text
    finally:
        await api.close()


async def test_reading_is_free_and_writing_is_asked_as_the_documentation_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    [shown] = re.findall(r"```yaml\n# dial-agent.yaml\n(openapi:.*?)```", DOCS.read_text("utf-8"), re.DOTALL)
    monkeypatch.setenv("LIBRARY_KEY", SECRET)
    turns = [
        wants("library_findBooks", tag=["a b", "c/d&e"]),
        wants("library_addBook", body={"title": "Emma"}),
        says("Added."),
    ]
    async with library() as peer:
        settings: Any = yaml.safe_load(shown.replace("https://library.example.com", peer.url))
        async with product(*turns, tmp_path=tmp_path, **settings) as p:
            asked = await p.reader.ask("Add Emma")
            before = [request[:2] for request in peer.requests]
            answer = await p.reader.press("Approve", asked)
    assert before == [("GET", "/v1/books?tag=a%20b&tag=c%2Fd%26e")]
    method, path, headers, body = peer.requests[1]
    assert (method, path, json.loads(body)) == ("POST", "/v1/books", {"title": "Emma"})
    assert headers["Authorization"] == f"Bearer {SECRET}"
    assert {"Api-Key", "X-Conversation-Id", "Cookie"}.isdisjoint(headers)
    assert answer.content == "Added."
    assert "library_removeBook" not in p.upstream.requests[0].tools
    assert SECRET not in str([request.body for request in p.upstream.requests])


async def test_operations_beyond_the_budget_for_tools_are_found_when_they_are_needed(tmp_path: Path) -> None:
    turns = [wants("find_tools", query="read one book"), wants("library_readBook", id="7"), says("Found.")]
    rooms = {f"/room{n}": {"get": {"operationId": f"room{n}", "summary": f"Heat room {n}. " * 9}} for n in range(60)}
    async with library(paths=document()["paths"] | rooms) as peer:
        api = {"name": "library", "document": f"{peer.url}/openapi.json", "operations": ["*"]}
        async with product(*turns, tmp_path=tmp_path, openapi=[api], tool_search={"share": 0}) as p:
            answer = await p.reader.ask("Is there a 7?")
    assert (answer.content, [path for _, path, _, _ in peer.requests]) == ("Found.", ["/v1/books/7"])
    assert ["library_readBook" in received.tools for received in p.upstream.requests] == [False, True, True]


async def test_a_document_in_dial_is_read_with_the_agents_own_key(tmp_path: Path) -> None:
    async with library() as peer:
        place = f"files/{await bucket_of('key-one', tmp_path)}/library.json"
        api = {"name": "library", "document": place, "hosts": [peer.url.removeprefix("http://")]}
        more: Any = {"openapi": [api], "dial_api_key": "key-one"}
        async with product(wants("library_readBook", id="7"), says("Found."), tmp_path=tmp_path, **more) as p:
            described = json.dumps(document(servers=[{"url": f"{peer.url}/v1"}])).encode()
            assert (await p.reader.upload("library.json", described, "application/json"))["url"] == place
            answer = await p.other.ask("Is there a 7?")  # who may not read that file
    assert (answer.content, [path for _, path, _, _ in peer.requests]) == ("Found.", ["/v1/books/7"])


@pytest.mark.fault("openapi: a server that sends the secret back")
@pytest.mark.parametrize(("auth", "sent"), [("bearer", "Bearer "), ("X-Key", "")])
async def test_a_secret_that_a_server_sends_back_is_not_shown(
    auth: str, sent: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with library() as peer:
        text = await called(client(peer, secret=SECRET, auth=auth), "readBook", id="echo")
        name = "Authorization" if sent else auth
        assert peer.requests[0][2][name] == f"{sent}{SECRET}"
    assert f"{sent}***" in text
    for form in (SECRET, json.dumps(SECRET)[1:-1], "s3cret"):
        assert form not in text + caplog.text


@pytest.mark.fault("openapi: an answer with an error, a redirect, something that is not text, or without an end")
@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ({"status": 404, "text": "no book"}, r"status 404\. Correct.*no book"),
        ({"status": 401}, "An operator has to look"),
        ({"status": 429}, "too many requests"),
        ({"status": 503, "text": "x" * 10**6}, r"may have been made all the same.*\n\nx{2000}\Z"),
        ({"status": 302, "headers": {"Location": "http://127.0.0.1:1/"}}, "another address"),
        ({"body": b"\0\1", "content_type": "image/png"}, r"not text \(image/png\)"),
    ],
    ids=["not found", "refused", "too many", "failed", "redirect", "picture"],
)
async def test_what_an_api_refuses_is_advice_to_the_model(answer: dict[str, Any], said: str) -> None:
    async with library() as peer:
        peer.answers["7"] = answer
        with pytest.raises(ToolError) as refusal:
            await called(client(peer), "readBook", id="7")
    assert re.search(said, str(refusal.value), re.DOTALL)
    assert len(peer.requests) == 1


@pytest.mark.fault("openapi: an answer with an error, a redirect, something that is not text, or without an end")
async def test_a_long_answer_is_read_to_a_bound_and_an_empty_one_is_one() -> None:
    async with library() as peer:
        peer.answers["7"] = {"text": "é" * MOST_BYTES}
        text = await called(client(peer), "readBook", id="7")
        peer.answers["8"] = {"status": 204}
        done = await called(client(peer), "removeBook", id="8")
    assert len(text) < MOST_BYTES
    assert "was not read" in text
    assert done == "Done: status 204, without content."


@pytest.mark.fault("openapi: arguments that would leave their place in a path or among the headers")
@pytest.mark.parametrize("value", ["..", "", "a/../b", "/a", "..\\a", "."])
async def test_an_argument_stays_in_its_place(value: str) -> None:
    async with library() as peer:
        with pytest.raises(ToolError, match="part of a path"):
            await called(client(peer), "readBook", id=value)
        with pytest.raises(ToolError, match="ASCII"):
            await called(client(peer), "findBooks", **{"X-Shelf": f"a\r\nX-Admin: 1{value}"})
        await called(client(peer), "readBook", id="a b/c?d=1#é%2e")
    assert [path for _, path, _, _ in peer.requests] == ["/v1/books/a%20b%2Fc%3Fd%3D1%23%C3%A9%252e"]


@pytest.mark.fault("openapi: a server at a link-local, metadata or other internal address")
async def test_a_name_that_leads_inside_is_not_reached_unless_the_settings_name_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with library() as peer:
        port = peer.url.rpartition(":")[2]
        (tmp_path / "lib.json").write_text(json.dumps(document(servers=[{"url": f"http://inside.example:{port}"}])))
        loop = asyncio.get_running_loop()
        find = loop.getaddrinfo

        async def resolved(host: str, port: int, **options: Any) -> Any:  # a name server of the API's makers
            return await find("127.0.0.1" if host == "inside.example" else host, port, **options)

        monkeypatch.setattr(loop, "getaddrinfo", resolved)
        place = str(tmp_path / "lib.json")
        with pytest.raises(ToolError, match="did not answer"):
            await called(client(peer, document=place), "readBook", id="1")
        assert peer.requests == []
        await called(client(peer, document=place, hosts=["inside.example"]), "readBook", id="1")
    assert len(peer.requests) == 1


@pytest.mark.fault("openapi: a document that is missing, refused, moved or of 50 MB")
@pytest.mark.parametrize(
    ("place", "reason"),
    [("/v1/books/7", "status 302"), ("/v1/books/8", "is larger than"), ("/v1/books/9", "not an OpenAPI document")],
)
async def test_a_document_that_cannot_be_read_is_an_issue_and_read_again_later(place: str, reason: str) -> None:
    async with library() as peer:
        peer.answers["7"] = {"status": 302, "headers": {"Location": "/openapi.json"}}
        peer.answers["8"] = {"body": b" " * 50 * 2**20}
        api = client(peer, document=f"{peer.url}{place}")
        with pytest.raises(MCPFailure, match=reason):
            await api.offer()
        asked = len(peer.requests)
        with pytest.raises(MCPFailure, match=reason):
            await api.offer()
        assert len(peer.requests) == asked
        api._again = 0.0
        peer.answers[place[-1]] = {"text": json.dumps(peer.described)}
        assert len((await api.offer()).tools) == 4
        await api.close()


@pytest.mark.fault("openapi: a document of 10,000 operations")
async def test_a_large_document_does_not_hold_the_event_loop(tmp_path: Path) -> None:
    operation = {"tags": ["all"], "description": "x" * 900, "responses": {}}
    paths = {f"/p{n}": {"get": {"operationId": f"o{n}", **operation}} for n in range(10_000)}
    content = json.dumps(document(paths=paths, servers=[{"url": "https://library.example"}]))
    assert 9 * 10**6 < len(content) < LARGEST_DOCUMENT
    (tmp_path / "large.json").write_text(content)
    api = ApiClient(ApiSpec("lib", str(tmp_path / "large.json"), operations=["o77?"]), no_file)
    reading, turns = asyncio.create_task(api.offer()), 0
    while not reading.done():
        await asyncio.sleep(0.001)
        turns += 1
    assert len((await reading).tools) == 10
    assert turns > 5
    await api.close()


async def test_doctor_names_what_is_left_out_of_a_document_and_what_cannot_be_read(tmp_path: Path) -> None:
    async with library() as peer:
        apis = [
            {"name": "lib", "document": f"{peer.url}/openapi.json", "tags": ["books"]},
            {"name": "half", "document": f"{peer.url}/openapi.json", "operations": ["readBook", "lendBook"]},
            {"name": "none", "document": f"{peer.url}/v1/books/1"},
        ]
        found = await results(Settings.model_validate({"data_dir": tmp_path, "openapi": apis}), "MCP servers")
    assert {row.name: row.state for row in found} == {"API lib": "ok", "API half": "note", "API none": "bad"}
    assert "lendBook is left out: there is no such operation" in found[1].found
    assert "not an OpenAPI document" in found[2].found
