"""Applications behind a Core under test, on loopback, and the callers in front of it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aiohttp import ClientResponse, ClientSession, ClientTimeout, web
from yarl import URL

from task.llm.transport import sendable
from tests.support.core import RunningCore, local_core, served
from tests.support.core_more import META_SCHEMA, TYPE
from tests.support.replies import Reply

if TYPE_CHECKING:
    from aidial_client import AsyncDial

KEYS = {
    "key-one": {"project": "One", "role": "basic"},
    "key-one-more": {"project": "One", "roles": ["basic"]},
    "key-two": {"project": "Two", "role": "other"},
}
DONE = b"data: [DONE]\n\n"

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True)
class Seen:
    """A request as it reached the application."""

    method: str
    url: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def key(self) -> str:
        return self.headers["Api-Key"]


@dataclass(slots=True)
class Peer:
    """An application at `url`; `cancelled` is set once one of its handlers was cancelled.

    `during` is awaited with the key of each request, while the key is alive.
    """

    url: str = ""
    requests: list[Seen] = field(default_factory=list[Seen])
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)
    during: Callable[[str], Awaitable[None]] | None = None

    @property
    def last(self) -> Seen:
        return self.requests[-1]


@asynccontextmanager
async def peer(answer: Handler) -> AsyncGenerator[Peer]:
    """An application that answers every request with `answer` and records the requests."""
    running = Peer()

    async def handle(request: web.Request) -> web.StreamResponse:
        running.requests.append(Seen(request.method, request.raw_path, request.headers, await request.read()))
        try:
            if running.during is not None:
                await running.during(running.last.key)
            return await answer(request)
        except asyncio.CancelledError:
            running.cancelled.set()
            raise

    app = web.Application(client_max_size=2**26)
    app.router.add_route("*", "/{path:.*}", handle)
    async with served(app) as url:
        running.url = url
        yield running


def answers(status: int = 200, body: Any = None, **headers: str) -> Handler:
    """An application that gives one JSON answer; headers in Python's spelling."""

    async def answer(_: web.Request) -> web.Response:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return web.json_response(body if body is not None else {"choices": []}, status=status, headers=named)

    return answer


def streams(*parts: bytes, seconds: float = 0) -> Handler:
    """An application that sends the parts as an event stream, `seconds` apart."""

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for part in parts:
            await response.write(part)
            await asyncio.sleep(seconds)
        return response

    return answer


def chunk(delta: Mapping[str, Any], finish_reason: str | None = None, id: str = "r1", **more: Any) -> bytes:
    """One event of a streamed completion; `more` stands beside its choices."""
    choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
    document = {"id": id, "object": "chat.completion.chunk", "created": 1, "choices": [choice], **more}
    return b"data: " + json.dumps(document).encode() + b"\n\n"


def config(applications: Mapping[str, Any] | None = None, **sections: Any) -> dict[str, Any]:
    """A configuration with the keys of the tests; an application may be given as its endpoint alone."""
    entries = {
        name: {"endpoint": entry} if isinstance(entry, str) else entry for name, entry in (applications or {}).items()
    }
    return {"keys": KEYS, "applications": entries} | sections


def application_type(
    endpoint: str, *files: str, id: str = "https://types.test/agent", schema: str | None = None, **more: Any
) -> dict[str, Any]:
    """An entry of `applicationTypeSchemas` whose applications answer at this endpoint.

    Its properties are free-form and kept from other users, `context` and `files` are lists of DIAL files. With
    `schema`, an address, Core reads others from there. `more` has keywords such as `ConfigurationEndpoint`.
    """
    server = {"dial:meta": {"dial:propertyOrder": 1, "dial:propertyKind": "server"}}
    file = {"type": "string", "format": "dial-file-encoded", "dial:file": True}
    listed = {name: {"type": "array", "items": file} | server for name in ("context", *files)}
    written = {
        "type": "object",
        "properties": {"instructions": {"type": "string"} | server, "tools": {"type": "array"} | server} | listed,
    }
    return {
        "$schema": META_SCHEMA,
        "$id": id,
        f"{TYPE}DisplayName": "Agent",
        f"{TYPE}EditorUrl": "https://types.test/editor",
        f"{TYPE}CompletionEndpoint": endpoint,
        **written,
        **({f"{TYPE}SchemaEndpoint": schema} if schema else {}),
        **{name if ":" in name else f"{TYPE}{name}": value for name, value in more.items()},
    }


async def make_application(
    session: ClientSession, name: str, properties: Any, type: str | None = "https://types.test/agent", **fields: Any
) -> str:
    """Store an application of a type in the caller's bucket, under an encoded name; returns its id."""
    async with session.get("/v1/bucket") as answer:
        url = f"applications/{(await answer.json())['bucket']}/{name}"
    document = {"application_type_schema_id": type, "application_properties": properties, **fields}
    async with session.put(URL(f"/v1/{url}", encoded=True), json=document) as answer:
        assert answer.status == 200, await answer.text()
        return (await answer.json())["url"]


@asynccontextmanager
async def calling(core: RunningCore, key: str | None = "key-one") -> AsyncGenerator[ClientSession]:
    """A client session of one caller with bounded waits; without a key it sends no credentials."""
    headers = {"Api-Key": key} if key else {}
    async with ClientSession(core.url, headers=headers, timeout=ClientTimeout(total=10)) as session:
        yield session


@asynccontextmanager
async def application(
    answer: Handler, tmp_path: Path, entry: Mapping[str, Any] | None = None, **switches: Any
) -> AsyncGenerator[tuple[Peer, RunningCore, ClientSession]]:
    """The application `app` behind a Core, that Core, and a caller of it.

    `entry` is more of its configuration, `switches` as of `local_core`.
    """
    async with (
        peer(answer) as app,
        local_core(config({"app": {"endpoint": app.url} | dict(entry or {})}), tmp_path, **switches) as core,
        calling(core) as session,
    ):
        yield app, core, session


def dialling(core: RunningCore, key: str = "key-one") -> AsyncDial:
    """aidial-client of one caller, without retries; to be entered with `async with`."""
    from aidial_client import AsyncDial

    return AsyncDial(base_url=core.url, api_key=key, max_retries=0)


async def ask(
    session: ClientSession, deployment: str = "app", body: Any = None, query: str = "", **headers: str
) -> Reply:
    """A completion's whole answer; the body is a minimal request unless given, bytes are sent as they are."""
    async with completion(session, deployment, body, query, **headers) as answer:
        return Reply(answer.status, answer.headers, await answer.read())


def completion(
    session: ClientSession, deployment: str = "app", body: Any = None, query: str = "", **headers: str
) -> AbstractAsyncContextManager[ClientResponse]:
    """A completion as an answer still being read, to be entered with `async with`."""
    document = {"messages": [{"role": "user", "content": "Hello"}], "stream": True} if body is None else body
    data = document if isinstance(document, bytes) else json.dumps(document).encode()
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    path = URL(f"/openai/deployments/{deployment}/chat/completions{query and '?' + query}", encoded=True)
    return session.post(path, data=sendable(data), headers={"Content-Type": "application/json"} | named)
