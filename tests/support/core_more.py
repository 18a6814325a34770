"""What a real Core offers beyond local Core: client channels, sharing, application types, ids of traces.

The tests' Core has them by the version that it plays.
"""

import asyncio
import json
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from io import BytesIO
from typing import Any
from zipfile import ZIP_DEFLATED, ZipFile

from aiohttp import ClientSession, ClientTimeout, web

from task.local.core import deployments, files
from task.local.core.access import PRINCIPAL, Access, parse
from task.local.core.config import CoreApplication
from task.local.core.core import CORE, CoreSettings
from task.local.core.responses import PlainResponse, Refusal, json_object, json_response

CHANNEL_HEADER = "X-DIAL-CLIENT-CHANNEL-ID"
HEARTBEAT_SECONDS = 0.2
TYPE = "dial:applicationType"
META_SCHEMA = "https://dial.epam.com/application_type_schemas/schema#"
Json = dict[str, Any]


@dataclass(slots=True)
class Channel:
    """An open client channel: batches on their way to the chat, and what waits for its reports."""

    owner: str
    to_chat: asyncio.Queue[list[Json] | None] = field(default_factory=asyncio.Queue[list[Json] | None])
    waiting: dict[str, asyncio.Future[Json]] = field(default_factory=dict[str, asyncio.Future[Json]])


@dataclass(slots=True)
class StoredSkill:
    """A skill of Core's: its files, the owners that may read it, and the statuses of the answers about it."""

    files: dict[str, bytes]
    readers: set[str]
    answered: list[int] = field(default_factory=list[int])


SKILLS: web.AppKey[dict[str, StoredSkill]] = web.AppKey("skills", dict)
CHANNELS: web.AppKey[dict[str, Channel]] = web.AppKey("channels", dict)


def add_routes(app: web.Application, settings: CoreSettings) -> None:
    """Add what Core of the settings' version has."""
    app[CHANNELS] = {}
    app.add_routes([web.get("/v1/application_type_schemas/{what:schemas|schema|meta_schema}", show_types)])
    app.add_routes([web.post("/v1/ops/resource/share/list", list_shared)])
    if settings.version >= 44:
        for name, handler in {"subscribe": subscribe, "interact": interact, "report": report}.items():
            app.add_routes([web.post(f"/v1/ops/client-channel/{name}", handler)])
        app.add_routes([web.post("/v1/ops/client-channel/unsubscribe", unsubscribe)])
    app[SKILLS] = {}
    if settings.version >= 48:
        app.add_routes([web.get("/v2/skills/{path:.+}", download_skill)])
    if settings.version >= 49:
        app.on_response_prepare.append(add_trace_id)


async def download_skill(request: web.Request) -> web.Response:
    """The whole skill as a ZIP archive, for those who may read it."""
    skill = request.app[SKILLS].get(f"skills/{request.match_info['path']}")
    if skill is None:
        raise Refusal(404, "Not found")
    skill.answered.append(200 if request[PRINCIPAL].owner in skill.readers else 403)
    return web.Response(status=skill.answered[-1], body=zipped(skill.files) if skill.answered[-1] == 200 else None)


def zipped(files: Mapping[str, bytes]) -> bytes:
    """A ZIP archive of the files."""
    packed = BytesIO()
    with ZipFile(packed, "w", ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return packed.getvalue()


async def add_trace_id(request: web.Request, response: web.StreamResponse) -> None:
    """The id of the caller's trace, or of a new one."""
    parts = request.headers.get("traceparent", "").split("-")
    response.headers["X-DIAL-TRACE-ID"] = parts[1] if len(parts) == 4 else secrets.token_hex(16)


async def show_types(request: web.Request) -> web.Response:
    """The application types, one of them as its applications' JSON Schema, or what all of them follow."""
    core = request.app[CORE]
    if request.match_info["what"] == "meta_schema":
        return json_response({"$id": META_SCHEMA})
    if request.match_info["what"] == "schemas":
        shown = ("$id", *(f"{TYPE}{name}" for name in ("DisplayName", "EditorUrl", "ViewerUrl", "IconUrl")))
        types = core.config.application_type_schemas
        return json_response([{name: schema[name] for name in shown if name in schema} for schema in types])
    wanted = CoreApplication(application_type_schema_id=request.query.get("id"))
    if (schema := await deployments.type_of(core, wanted)) is None:
        raise Refusal(404, "Schema not found")
    return json_response({name: value for name, value in schema.items() if not name.endswith("Endpoint")})


def share(app: web.Application, owner: str, url: str, access: Access = "READ") -> None:
    """Share a file or folder (its URL ends in `/`) with the owner of a bucket, such as `Keys/Two/`."""
    app[CORE].access.shared.setdefault(owner, {})[parse(url).url] = access


async def list_shared(request: web.Request) -> web.Response:
    """What others share with the caller; of what the caller shares, nothing."""
    core, caller, body = request.app[CORE], request[PRINCIPAL], json_object(await request.read())
    if caller.key is not None:
        raise Refusal(403, "Sharing is not allowed with a per-request key")
    kinds, found = body.get("resourceTypes", []), list[Json]()
    for url, access in core.access.shared.get(caller.owner, {}).items() if body.get("with", "me") == "me" else ():
        resource = parse(url)
        kept = None if resource.is_folder else core.store.read(caller, url)
        node = files.item_node(kept) if kept else files.folder_node(resource, (), {})
        if node["resourceType"] in kinds and (kept or resource.is_folder):
            node.pop("items", None)
            found.append(node | {"permissions": access.split("_")})
    return json_response({"resources": found})


async def subscribe(request: web.Request) -> web.StreamResponse:
    """A chat opens a channel: an event stream of the batches that applications send to it."""
    number, channel = secrets.token_hex(8), Channel(request[PRINCIPAL].owner)
    request.app[CHANNELS][number] = channel
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream", CHANNEL_HEADER: number})
    await response.prepare(request)
    await response.write(b": open\n\n")
    try:
        while (calls := await channel.to_chat.get()) is not None:
            for call in calls:
                await response.write(b"data: " + json.dumps(call).encode() + b"\n\n")
    finally:
        request.app[CHANNELS].pop(number, None)
        for waiting in channel.waiting.values():
            if not waiting.done():
                waiting.set_result({"error": {"code": -32000, "message": "The client channel is closed"}})
    return response


def _channel(request: web.Request) -> Channel:
    if (number := request.headers.get(CHANNEL_HEADER)) is None:
        raise Refusal(400, f"Header {CHANNEL_HEADER} is missing")
    if (channel := request.app[CHANNELS].get(number)) is None:
        raise Refusal(404, "Client channel is not found")
    if channel.owner != request[PRINCIPAL].owner:
        raise Refusal(403, "Client channel belongs to another user")
    return channel


async def interact(request: web.Request) -> web.StreamResponse:
    """An application asks the chat: heartbeats, then one event with what the chat has reported of each request."""
    channel, asked = _channel(request), json.loads(await request.read())
    batch: list[Json] = asked if isinstance(asked, list) else [asked]
    # Applications choose their ids, so two of them may choose the same.
    sent = [call | {"id": secrets.token_hex(8)} for call in batch]
    reports = {call["id"]: asyncio.get_running_loop().create_future() for call in sent}
    channel.waiting.update(reports)
    await channel.to_chat.put(sent)
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    try:
        while (await asyncio.wait(reports.values(), timeout=HEARTBEAT_SECONDS))[1]:
            await response.write(b": heartbeat\n\n")
        outcomes = [
            {"jsonrpc": "2.0", "id": call["id"]} | report.result()
            for call, report in zip(batch, reports.values(), strict=True)
        ]
        await response.write(b"data: " + json.dumps(outcomes).encode() + b"\n\n")
    finally:
        for number in reports:
            channel.waiting.pop(number, None)
    return response


async def report(request: web.Request) -> web.Response:
    """The chat reports the outcome of one request, or of several."""
    channel, body = _channel(request), json.loads(await request.read())
    for outcome in body if isinstance(body, list) else [body]:
        waiting = channel.waiting.get(outcome["id"])
        if waiting is not None and not waiting.done():
            waiting.set_result({name: outcome[name] for name in ("result", "error") if name in outcome})
    return PlainResponse(200)


async def unsubscribe(request: web.Request) -> web.Response:
    """The chat closes its channel."""
    await _channel(request).to_chat.put(None)
    return PlainResponse(200)


Answer = Callable[[Json], Awaitable[str | None]]


@dataclass(slots=True)
class Chat:
    """DIAL Chat at its end of a channel: `asked` are the requests that came, `headers` go with a completion."""

    session: ClientSession
    number: str
    asked: list[Json] = field(default_factory=list[Json])

    @property
    def headers(self) -> dict[str, str]:
        return {CHANNEL_HEADER: self.number}

    async def close(self) -> None:
        """Unsubscribe, as Chat does when its page closes."""
        async with self.session.post("/v1/ops/client-channel/unsubscribe", headers=self.headers):
            pass


@asynccontextmanager
async def chat_channel(core_url: str, key: str, answer: Answer) -> AsyncGenerator[Chat]:
    """A chat that listens, and reports for each request what `answer` returns; None: it never reports."""
    limit = ClientTimeout(total=60)
    async with (
        ClientSession(core_url, headers={"Api-Key": key}, timeout=limit, raise_for_status=True) as session,
        # It stays open for as long as the chat is, which is longer than any request.
        session.post("/v1/ops/client-channel/subscribe", timeout=ClientTimeout(sock_connect=60)) as stream,
    ):
        chat = Chat(session, stream.headers[CHANNEL_HEADER])

        async def listen() -> None:
            async for line in stream.content:
                if line.startswith(b"data: "):
                    chat.asked.append(call := json.loads(line.removeprefix(b"data: ")))
                    outcomes.create_task(settle(call))

        async def settle(call: Json) -> None:
            if (result := await answer(call)) is not None:
                body = {"id": call["id"], "result": result}
                async with session.post("/v1/ops/client-channel/report", json=body, headers=chat.headers):
                    pass

        async with asyncio.TaskGroup() as outcomes:
            listening = outcomes.create_task(listen())
            try:
                yield chat
            finally:
                listening.cancel()
