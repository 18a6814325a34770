"""Who calls local Core: a project's key, a user's token, or an application with its per-request key."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from aiohttp import web

Access = Literal["READ", "READ_WRITE"]


@dataclass(slots=True)
class PerRequestKey:
    """What Core remembers with the key it mints for one call of a deployment.

    `attached` maps canonical relative URLs (`files/{bucket}/{path}`, folders end in `/`) to the access they give.
    `granted` holds, by receiving deployment, the access that the application grants to what it calls next.
    `expires_at` is in seconds of the application's clock.
    """

    value: str
    initiator: Identity
    deployment: str
    execution_path: tuple[str, ...]
    expires_at: float
    conversation_id: str = ""
    job_title: str = ""
    attached: dict[str, Access] = field(default_factory=dict[str, Access])
    granted: dict[str, dict[str, Access]] = field(default_factory=dict[str, dict[str, Access]])


@dataclass(frozen=True, slots=True)
class Identity:
    """The root caller: `owner` is the bucket location `Keys/{project}/` or `Users/{sub}/`.

    With `key`, the request comes from the application that the key was minted for; owner, roles and claims are then
    the initiator's.
    """

    owner: str
    roles: tuple[str, ...]
    project: str | None = None
    claims: Mapping[str, Any] = field(default_factory=dict[str, Any])
    key: PerRequestKey | None = None


IDENTITY: web.RequestKey[Identity] = web.RequestKey("identity", Identity)
