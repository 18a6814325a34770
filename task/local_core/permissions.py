"""Per-request permissions: an application lets what it calls next reach files that the application reaches itself."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from aiohttp import web
from pydantic import AliasChoices, BaseModel, ConfigDict, Field, ValidationError

from task.local_core.access import AccessRules
from task.local_core.identity import IDENTITY, Access, Identity, PerRequestKey
from task.local_core.keys import Keys
from task.local_core.refusal import PlainAnswer, Refusal, json_answer
from task.local_core.urls import InvalidUrl, canonical

PATH = "/v1/ops/resource/per-request-permissions"


class _Entry(BaseModel):
    model_config = ConfigDict(frozen=True)

    url: str
    permissions: list[Literal["READ", "WRITE"]] = Field(default_factory=lambda: ["READ"])


class _Body(BaseModel):
    """The current form of the body, or the older one that calls the list `resources`."""

    model_config = ConfigDict(frozen=True)

    receiver: str = ""
    entries: list[_Entry] = Field(
        default_factory=list[_Entry], validation_alias=AliasChoices("resourcePermissions", "resources")
    )


@dataclass(frozen=True, slots=True)
class Permissions:
    """The routes; what is granted goes into the keys minted for the receiver while the granting key lives."""

    keys: Keys
    access: AccessRules

    def register(self, app: web.Application) -> None:
        app.router.add_post(f"{PATH}/grant", self.grant)
        app.router.add_post(f"{PATH}/revoke", self.revoke)
        app.router.add_post(f"{PATH}/list", self.list)

    async def grant(self, request: web.Request) -> web.Response:
        identity, key = _application(request)
        body = await _parsed(request, with_entries=True)
        rights = dict(self._checked(identity, body.entries))
        key.granted.setdefault(body.receiver, {}).update(rights)
        self.keys.renew(key)
        return PlainAnswer(200)

    async def revoke(self, request: web.Request) -> web.Response:
        _, key = _application(request)
        body = await _parsed(request, with_entries=True)
        rights = key.granted.get(body.receiver, {})
        for entry in body.entries:
            rights.pop(_canonical(entry.url), None)
        return PlainAnswer(200)

    async def list(self, request: web.Request) -> web.Response:
        _, key = _application(request)
        body = await _parsed(request, with_entries=False)
        rights = key.granted.get(body.receiver, {})
        return json_answer(
            request,
            {
                "receiver": body.receiver,
                "resourcePermissions": [
                    {"url": url, "permissions": access.split("_")} for url, access in rights.items()
                ],
            },
        )

    def _checked(self, identity: Identity, entries: Iterable[_Entry]) -> Iterable[tuple[str, Access]]:
        for entry in entries:
            url = _canonical(entry.url)
            writes = "WRITE" in entry.permissions
            allowed = self.access.may_write(identity, url) if writes else self.access.may_read(identity, url)
            if not allowed:
                raise Refusal(403, f"You don't have an access to: {url}")
            yield url, "READ_WRITE" if writes else "READ"


def _application(request: web.Request) -> tuple[Identity, PerRequestKey]:
    identity = request[IDENTITY]
    if identity.key is None:
        raise Refusal(403, "Per-request permissions need a per-request key")
    return identity, identity.key


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


def _canonical(url: str) -> str:
    try:
        return canonical(url)
    except InvalidUrl as error:
        raise Refusal(400, str(error)) from None
