"""Per-request permissions: an application lets what it calls next reach files that the application reaches itself."""

from __future__ import annotations

from typing import Literal

from aiohttp import web
from pydantic import AliasChoices, BaseModel, Field, ValidationError

from task.local.core.callers import IDENTITY, Access, Identity, PerRequestKey
from task.local.core.core import CORE, Core
from task.local.core.responses import PlainResponse, Refusal, json_response
from task.local.core.urls import canonical

PATH = "/v1/ops/resource/per-request-permissions"


class _Entry(BaseModel):
    url: str
    permissions: list[Literal["READ", "WRITE"]] = Field(default_factory=lambda: ["READ"])


class _Body(BaseModel):
    """The current form of the body, or the older one that calls the list `resources`."""

    receiver: str = ""
    entries: list[_Entry] = Field(
        default_factory=list[_Entry], validation_alias=AliasChoices("resourcePermissions", "resources")
    )


def permission_routes() -> list[web.RouteDef]:
    """What is granted is added to the keys created for the receiver while the granting key lives."""
    return [web.post(f"{PATH}/grant", _grant), web.post(f"{PATH}/revoke", _revoke), web.post(f"{PATH}/list", _list)]


async def _grant(request: web.Request) -> web.Response:
    core, identity, key = request.app[CORE], request[IDENTITY], _key(request)
    body = await _parsed(request, with_entries=True)
    rights = dict(_checked(core, identity, entry) for entry in body.entries)
    key.granted.setdefault(body.receiver, {}).update(rights)
    core.keys.renew(key)
    return PlainResponse(200)


async def _revoke(request: web.Request) -> web.Response:
    key = _key(request)
    body = await _parsed(request, with_entries=True)
    rights = key.granted.get(body.receiver, {})
    for entry in body.entries:
        rights.pop(canonical(entry.url), None)
    return PlainResponse(200)


async def _list(request: web.Request) -> web.Response:
    key = _key(request)
    body = await _parsed(request, with_entries=False)
    rights = key.granted.get(body.receiver, {})
    entries = [{"url": url, "permissions": access.split("_")} for url, access in rights.items()]
    return json_response(request, {"receiver": body.receiver, "resourcePermissions": entries})


def _checked(core: Core, identity: Identity, entry: _Entry) -> tuple[str, Access]:
    url = canonical(entry.url)
    writes = "WRITE" in entry.permissions
    allowed = core.access.may_write(identity, url) if writes else core.access.may_read(identity, url)
    if not allowed:
        raise Refusal(403, f"You don't have an access to: {url}")
    return url, "READ_WRITE" if writes else "READ"


def _key(request: web.Request) -> PerRequestKey:
    key = request[IDENTITY].key
    if key is None:
        raise Refusal(403, "Per-request permissions need a per-request key")
    return key


async def _parsed(request: web.Request, *, with_entries: bool) -> _Body:
    try:
        body = _Body.model_validate_json(await request.read())
    except ValidationError:
        raise Refusal(400, "The request body is not valid") from None
    if not body.receiver:
        raise Refusal(400, "The receiver is missing")
    if with_entries and not body.entries:
        raise Refusal(400, "The list of resources is empty")
    return body
