"""The caller of the HTTP door: anyone on this machine, the owner of a key, or a user known to DIAL Core."""

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Literal

import aiohttp
from cachetools import TTLCache

from task.api.failures import Failure, refused
from task.conversation.inputs import forwarded
from task.core_client.files import OwnersKey, filing
from task.errors import ToolError
from task.llm.dial import UserToken
from task.product import Services
from task.runs.request import RunCaller

Mode = Literal["open", "keys", "dial"]
LOCAL_OWNER = "local"
REMEMBERED_SECONDS = 60.0
MOST_REMEMBERED = 10_000
_NO_CORE = "DIAL Core cannot be asked now whose key this is. Try again in a moment."
_JWT = re.compile(r"eyJ[\w-]+\.[\w-]+\.[\w-]*")  # a header that is a JSON object, claims, a signature


@dataclass(frozen=True, slots=True)
class ApiCaller(RunCaller):
    """The caller, with all that is the owner's: sessions, runs, traces and files.

    `folder` is where the owner's files are below the bucket of `core_key`. An operator reads what belongs to any owner.
    """

    folder: str = ""
    operator: bool = False


@dataclass(slots=True)
class Identity:
    """Finds the caller. `core_key` is the agent's own key at DIAL Core, for the modes in which callers have none."""

    mode: Mode
    core_key: str
    services: Services
    per_minute: int
    _known: TTLCache[str, tuple[str, str]] = field(
        default_factory=lambda: TTLCache(MOST_REMEMBERED, REMEMBERED_SECONDS)
    )

    async def caller(self, headers: Mapping[str, str]) -> ApiCaller:
        """The caller of a request with these headers.

        Raises:
            Failure: no key or a wrong one (401), or too many requests (429).
            StoreUnavailable: the keys cannot be looked up now.
        """
        travelling = forwarded(headers)
        if self.mode == "open":
            folder = f"http/{LOCAL_OWNER}"
            return ApiCaller(LOCAL_OWNER, filing(self.core_key, folder), travelling, folder)
        scheme, _, token = headers.get("authorization", "").partition(" ")
        bearer, key = token.strip() if scheme.lower() == "bearer" else "", headers.get("api-key", "")
        if not bearer and not key:
            raise refused(401, "A key is needed: send it as `Authorization: Bearer KEY`.", code="missing_api_key")
        if bearer and key and bearer != key:
            text = "`Authorization` and `Api-Key` contain different keys; send one of them."
            raise refused(400, text, code="two_keys")
        if self.mode == "keys":
            known = await (await self.services.store.get()).keys.verify(bearer or key)
            if known is None:
                raise _unknown()
            folder, counted = f"http/{known.owner}", known.key_id
            own_key = OwnersKey(self.core_key, folder)
            found = ApiCaller(known.owner, own_key, travelling, folder, known.operator)
        else:
            bucket, shown, counted = await self._at_core(bearer or key, is_bearer=bool(bearer))
            found = ApiCaller(f"dial:{bucket}", filing(shown, "http"), travelling, "http")
        store = await self.services.store.get()
        seconds = await store.limits.take(f"http:{counted}", self.per_minute)
        if seconds is not None:
            text = f"This key may send {self.per_minute} requests in a minute. Try again in a moment."
            raise refused(429, text, code="rate_limit_exceeded", retry_after=seconds)
        return found

    async def user_of_request(self, headers: Mapping[str, str]) -> ApiCaller:
        """The user for whom DIAL Core made the per-request key. Raises: Failure (401, or 503 without Core)."""
        key = headers.get("api-key", "")
        bucket = await self._bucket(key, per_request=True)
        return ApiCaller(f"dial:{bucket}", key, forwarded(headers))

    async def _at_core(self, secret: str, *, is_bearer: bool) -> tuple[str, str, str]:
        digest = sha256(secret.encode("utf-8", "replace")).hexdigest()
        bucket, shown = self._known.get(digest, ("", secret))
        if not bucket:
            # A bearer value is a user's token, or the key of a client that knows no other header.
            shown = UserToken(secret) if is_bearer else secret
            if is_bearer and not _JWT.fullmatch(secret):
                with suppress(Failure):
                    bucket, shown = await self._bucket(secret), secret
            bucket = bucket or await self._bucket(shown)
            self._known[digest] = bucket, shown
        # A user's tokens change every few minutes.
        return bucket, shown, f"user:{bucket}" if isinstance(shown, UserToken) else digest[:32]

    async def _bucket(self, secret: str, *, per_request: bool = False) -> str:
        try:
            return await self.services.files.principal(secret, per_request=per_request)
        except ToolError as error:
            cause = error.__cause__
            is_refused = isinstance(cause, aiohttp.ClientResponseError) and cause.status in (401, 403)
            if is_refused or isinstance(cause, ValueError):  # a key that no header can carry
                raise _unknown() from error
            detail = f"no answer from DIAL Core at {self.services.endpoint}"
            raise refused(503, _NO_CORE, code="core_unavailable", retry_after=5, detail=detail) from error


def _unknown() -> Failure:
    return refused(401, "This key is unknown, or it was revoked.", code="invalid_api_key")
