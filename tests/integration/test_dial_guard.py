"""What the guard decides before a request reaches the DIAL route: whom it serves, and which bodies it reads."""

import json
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from task.api.guard import APPLICATION_SCHEMA, DEEPEST, _Exchange
from task.llm.scripted import says, wants
from tests.support.chat_reader import chat_reader
from tests.support.core import local_core
from tests.support.http_api import Api, http_api, key_of, said
from tests.support.ports import free_port
from tests.support.product import Product, product
from tests.support.replies import Reply

AGENT = "/openai/deployments/general-purpose-agent"
CHAT = f"{AGENT}/chat/completions"
BY_HEADER = {"X-DIAL-DEPLOYMENT-ID": "general-purpose-agent"}
ROUTES = [
    (method, f"{folder}/{name}")
    for folder in (AGENT, "/openai/v1")
    for method, name in (("POST", "chat/completions"), ("POST", "rate"), ("GET", "configuration"))
]
HELLO: dict[str, Any] = {"messages": [said("Hi")]}
FOREIGN = {"Host": "agent.example"}
JSON = {"Content-Type": "application/json"}
LIMIT = 2**18


async def ask(api: Api, key: str, **body: Any) -> Reply:
    return await api.post(CHAT, {**HELLO, **body}, headers={"Api-Key": key})


async def tried(api: Api, method: str, path: str, headers: Mapping[str, str]) -> Reply:
    body = HELLO if method == "POST" else None
    return await api.call(method, path, body, headers={**headers, **BY_HEADER})


async def sent_to(p: Product, path: str = CHAT, **options: Any) -> Reply:
    """A request that reaches the agent past Core."""
    async with aiohttp.ClientSession() as session:
        return await Api(p.agent_url, p.upstream, session).call(options.pop("method", "POST"), path, **options)


async def pieces(count: int) -> AsyncGenerator[bytes]:
    """A body without a declared length."""
    for _ in range(count):
        yield b"x" * 2**16


def nested(depth: int) -> bytes:
    return b'{"messages": ' + b"[" * depth + b"]" * depth + b"}"


@pytest.mark.parametrize("mode", ["dial", "keys"])
async def test_core_reads_the_schema_of_applications_without_a_key_in_every_mode(mode: str, tmp_path: Path) -> None:
    async with http_api(tmp_path=tmp_path, http={"mode": mode}) as api:
        assert (await api.get(APPLICATION_SCHEMA)).json["type"] == "object"
        assert (await tried(api, *ROUTES[0], {})).status == 401


@pytest.mark.fault("request: a caller at the DIAL route whom Core does not authenticate")
@pytest.mark.parametrize("headers", [{}, {"Api-Key": "anything"}, {"Authorization": "Bearer anything"}])
async def test_with_the_operators_own_model_owners_of_keys_are_served(
    headers: Mapping[str, str], tmp_path: Path
) -> None:
    async with http_api(tmp_path=tmp_path, http={"mode": "keys"}) as api:
        replies = [await tried(api, *route, headers) for route in ROUTES]
        assert [(await api.get(path, headers=FOREIGN)).status for path in ("/health", "/ready")] == [200, 200]
    assert [(reply.status, reply.error["type"]) for reply in replies] == [(401, "authentication_error")] * len(ROUTES)
    assert api.upstream.requests == []


@pytest.mark.fault("request: a caller at the DIAL route whom Core does not authenticate")
async def test_with_a_model_of_the_operators_own_the_mode_dial_asks_core_whose_key_it_is(tmp_path: Path) -> None:
    config = {"keys": {"key-one": {"project": "ONE", "role": "default"}}, "roles": {"default": {"limits": {}}}}
    async with (
        local_core(config, tmp_path) as core,
        http_api(says("Hello."), tmp_path=tmp_path, http={"mode": "dial"}, dial_endpoint=core.url) as api,
    ):
        statuses = [(await ask(api, key)).status for key in ("key-one", "anything")]
    assert statuses == [200, 401]


@pytest.mark.fault("request: a key of Core, or none, at the DIAL route of a product that `up` has started")
async def test_request_keys_let_the_users_of_core_in_each_as_an_owner_and_nobody_past_it(tmp_path: Path) -> None:
    port = free_port()
    endpoint = f"http://127.0.0.1:{port}"
    async with http_api(
        then=says("Hi."), tmp_path=tmp_path, http={"request_keys": True}, dial_endpoint=endpoint
    ) as api:
        keys = {key: {"project": key, "role": "default"} for key in ("key-one", "key-two")}
        entry = {"general-purpose-agent": {"endpoint": f"{api.url}{CHAT}"}}
        async with local_core({"keys": keys, "applications": entry}, tmp_path, port=port) as core:
            for key in keys:
                async with chat_reader(core.url, key) as reader:
                    assert (await reader.ask("Hi")).content == "Hi."
            past = [await tried(api, *route, headers) for route in ROUTES for headers in ({}, {"Api-Key": "key-one"})]
            page = (await api.get("/page")).status
            schema = await api.get(APPLICATION_SCHEMA)
        assert (await ask(api, "key-one")).status == 500, "without Core nobody is let in"
    assert ({reply.status for reply in past}, page) == ({401}, 200)
    assert schema.json["type"] == "object", "Core reads it for no user"


@pytest.mark.fault("request: a caller at the DIAL route whom Core does not authenticate")
async def test_with_a_model_of_the_operators_own_the_mode_open_serves_this_machine_only(tmp_path: Path) -> None:
    async with http_api(tmp_path=tmp_path) as api:
        replies = [await tried(api, *route, {"Api-Key": "k", **FOREIGN}) for route in ROUTES]
        assert [(await api.get(path, headers=FOREIGN)).status for path in ("/health", "/ready")] == [200, 200]
    assert [(reply.status, reply.error["code"]) for reply in replies] == [(403, "not_local")] * len(ROUTES)
    assert api.upstream.requests == []


@pytest.mark.fault("request: a file of another owner, at the DIAL route")
async def test_an_owner_reaches_files_of_its_own_by_the_agents_key_and_no_others(tmp_path: Path) -> None:
    config = {"keys": {"agents-key": {"project": "ONE", "role": "default"}}, "roles": {"default": {"limits": {}}}}
    ann = await key_of("ann", tmp_path)
    async with local_core(config, tmp_path) as core, chat_reader(core.url, "agents-key") as agent:
        own, others = [
            (await agent.upload(f"http/{name}/a.txt", f"text of {name}".encode(), "text/plain", by_program=True))["url"]
            for name in ("ann", "bob")
        ]
        reading = [wants("file_content_extraction_tool", file_url=url) for url in (own, others)]
        values: dict[str, Any] = {"dial_endpoint": core.url, "dial_api_key": "agents-key", "http": {"mode": "keys"}}
        async with http_api(*reading, says("Done."), tmp_path=tmp_path, **values) as api:
            assert (await ask(api, ann)).status == 200
    [first, second] = [m["content"] for m in api.upstream.requests[2].messages if m["role"] == "tool"]
    assert "text of ann" in first
    assert "text of bob" not in second
    assert "There is no" in second


@pytest.mark.fault("request: a key that asks too often, at the DIAL route")
async def test_too_many_requests_are_a_500_because_core_swallows_a_429(tmp_path: Path) -> None:
    ann = await key_of("ann", tmp_path)
    async with http_api(says("Hello."), tmp_path=tmp_path, http={"mode": "keys", "requests_per_minute": 1}) as api:
        replies = [await ask(api, ann) for _ in range(2)]
    assert [reply.status for reply in replies] == [200, 500]
    assert replies[1].error["code"] == "rate_limit_exceeded"


async def test_behind_core_any_machine_calls_the_dial_route_by_any_name(tmp_path: Path) -> None:
    async with product(says("Hello."), tmp_path=tmp_path) as p:
        headers = {"Api-Key": "key-one", **FOREIGN}
        replies = [
            await sent_to(p, body=HELLO, headers=headers),
            await sent_to(p, f"{AGENT}/configuration", method="GET", headers=headers),
        ]
        api = await sent_to(p, "/v1/models", method="GET", headers=headers)
    assert [reply.status for reply in (*replies, api)] == [200, 200, 403]


BAD_HEADS: list[tuple[dict[str, Any], int, str]] = [
    ({"json": HELLO, "headers": {"Origin": "https://evil.example"}}, 403, "foreign_origin"),
    ({"json": HELLO, "headers": {"Sec-Fetch-Site": "cross-site"}}, 403, "foreign_origin"),
    ({"data": b"{}", "headers": {"Content-Type": "text/plain"}}, 415, "unsupported_media_type"),
    ({"data": b"x" * (LIMIT + 1), "headers": JSON}, 413, "body_too_large"),
]
DEEP = {
    "far": nested(100_000),
    "a little": nested(100),
    "cut off": b'{"messages": ' + b"[" * 100_000,
    "after a long text": b'{"a\\\\": "' + b"x" * 2**17 + b'", "b": ' + b'{"c": ' * 101,
    "many values": b'{"a": [' + b"1, " * 60_000 + b"1]}",
    "UTF-16": nested(5000).decode().encode("utf-16"),
}
MALFORMED = {
    "not UTF-8": b'{"messages": [{"role": "user", "content": "\xff"}]}',
    "half a character": b'{"messages": [{"role": "user", "content": "\\ud800"}]}',
    "a number of 5,000 digits": b'{"n": %s}' % (b"9" * 5000),
    "a list": b"[]", "a text": b'"text"', "null": b"null", "cut off": b'{"messages": [', "empty": b"",
}  # fmt: skip


@pytest.mark.fault("request: a foreign web page, another content type or a declared length over the limit")
async def test_behind_core_bad_requests_are_refused_by_their_head_whatever_their_key(tmp_path: Path) -> None:
    paths = [path for method, path in ROUTES if method == "POST"]
    async with product(tmp_path=tmp_path, dial_body_bytes=LIMIT) as p:
        for options, *expected in BAD_HEADS:
            for headers in (options["headers"], {**options["headers"], "Api-Key": "key-one"}):
                replies = [await sent_to(p, path, **{**options, "headers": {**headers, **BY_HEADER}}) for path in paths]
                assert [[reply.status, reply.error["code"]] for reply in replies] == [expected] * len(paths)
    assert p.upstream.requests == []


@pytest.mark.fault("request: JSON nested 200,000 deep, a little too deep, or in UTF-16")
@pytest.mark.fault("request: a body that is no JSON object, not UTF-8, or holds half a character")
@pytest.mark.fault("request: a body of unknown length over the limit")
async def test_a_body_that_is_not_a_small_shallow_object_is_refused_while_it_is_read(tmp_path: Path) -> None:
    async def posted(data: Any) -> set[tuple[int, str, bool]]:
        """The answers of all the DIAL routes that take a body."""
        headers = {"Api-Key": "key-one", **JSON, **BY_HEADER}
        paths = [path for method, path in ROUTES if method == "POST"]
        replies = [await sent_to(p, path, data=data() if callable(data) else data, headers=headers) for path in paths]
        return {
            (reply.status, reply.error["code"], "The request body" in reply.error["display_message"])
            for reply in replies
        }

    text = '[{"' * 50_000 + "\\" * 3
    async with product(says("Hello."), tmp_path=tmp_path, dial_body_bytes=LIMIT) as p:
        for name, body in DEEP.items():
            assert {reply[:2] for reply in await posted(body)} == {(400, "invalid_json")}, name
        for name, body in MALFORMED.items():
            assert {reply[::2] for reply in await posted(body)} == {(400, True)}, name
        assert {reply[:2] for reply in await posted(lambda: pieces(8))} == {(413, "body_too_large")}
        reply = await sent_to(p, body={"messages": [said(text)]}, headers={"Api-Key": "key-one"})
    assert (reply.status, p.upstream.requests[0].last["content"]) == (200, text), "brackets in a text are not nesting"


@pytest.mark.fault("request: fields in a body that only headers may set")
@pytest.mark.fault("request: a header that breaks its parser")
async def test_headers_come_as_headers_only_and_one_that_breaks_its_parser_is_a_sentence(tmp_path: Path) -> None:
    extra = {"api_key": "other", "jwt": "x", "headers": {"X-A": "1"}, "original_request": 1, "deployment_id": "other"}
    breaking = {"Api-Key": "key-one", "X-DIAL-APPLICATION-PROPERTIES": "[" * 7000}  # Python 3.13 reads it, as no JSON
    async with product(says("Hello."), tmp_path=tmp_path) as p:
        taken = await sent_to(p, body={**HELLO, **extra}, headers={"Api-Key": "key-one"})
        failed = await sent_to(p, body=HELLO, headers=breaking)
    assert (taken.status, "x-a" in p.upstream.requests[0].headers) == (200, False)
    assert (failed.status, failed.error["message"].startswith(("A header of", "The value of X-DIAL"))) == (400, True)


@settings(max_examples=30)
@given(st.lists(st.text('\\"[]{}ab') | st.none(), min_size=98, max_size=103), st.integers(1, 9))
async def test_nesting_is_counted_wherever_the_body_is_cut(keys: list[str | None], size: int) -> None:
    value: Any = '["'
    for key in keys:
        value = [value] if key is None else {key: value}
    text = json.dumps(value)
    pieces = [text[start : start + size].encode() for start in range(0, len(text), size)]

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": pieces.pop(0), "more_body": bool(pieces)}

    async def send(message: object) -> None:
        raise AssertionError(message)

    exchange = _Exchange(receive, send)
    exchange.limit = 2**20
    while pieces and exchange.fault is None:
        await exchange.receive()
    assert (exchange.fault is not None) is (len(keys) > DEEPEST)
