"""Chat models that DIAL Core serves as deployments, their listings, and the credentials that Core accepts."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, cast
from urllib.parse import quote

import aiohttp
from cachetools import TTLCache

from task.conversation.messages import Message
from task.llm.base import Delta, ModelOptions, ToolSchema
from task.llm.chat_chunks import chat_deltas
from task.llm.chat_request import ProviderProfile, RequestBodies, profile_for
from task.llm.failures import CORE
from task.llm.transport import LARGEST_LIST, RETRIES, Retries, answer_bytes, listing
from task.llm.window import ANSWER_TOKENS


class UserToken(str):
    """A token of an identity provider: passed around like a key, sent to DIAL Core as a bearer token."""

    __slots__ = ()


def core_headers(secret: str) -> dict[str, str]:
    """The header that authenticates with a key or a token."""
    return {"Authorization": f"Bearer {secret}"} if isinstance(secret, UserToken) else {"Api-Key": str(secret)}


@dataclass(frozen=True, slots=True)
class DialChatModel:
    """A deployment of the Core at `endpoint`, called with one caller's key or token and forwarded `headers`.

    Without `profile` the deployment's name determines it; without `session` each request opens one of its own.
    """

    session: aiohttp.ClientSession | None
    endpoint: str
    name: str
    api_key: str
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    api_version: str | None = None
    profile: ProviderProfile | None = None
    retries: Retries = RETRIES
    bodies: RequestBodies = field(default_factory=RequestBodies, compare=False, repr=False)

    def stream(
        self, messages: Sequence[Message], tools: Sequence[ToolSchema], options: ModelOptions
    ) -> AsyncGenerator[Delta]:
        profile = self.profile or profile_for(self.name)
        body = self.bodies.body(self.name, messages, tools, options, profile)
        headers = {**self.headers, **core_headers(self.api_key)}
        url = deployment_url(self.endpoint, self.name, self.api_version)
        pieces = answer_bytes(self.session, url, body, headers, self.retries, CORE)
        return chat_deltas(pieces, (self.api_key,))


@lru_cache(maxsize=1_000)
def deployment_url(endpoint: str, deployment: str, api_version: str | None) -> str:
    """The address of a deployment's chat completions."""
    path = f"{endpoint.rstrip('/')}/openai/deployments/{quote(deployment, safe='/')}/chat/completions"
    return f"{path}?api-version={quote(api_version)}" if api_version else path


KEPT_SECONDS = 300
MISSED_SECONDS = 60  # Core reads its configuration again that often
_NOT_LISTED = frozenset({403, 404})
_SECONDS = 5.0  # for an answer of Core's


class ModelListings:
    """Core's listings, requested with the caller's key and kept for five minutes."""

    def __init__(self, session: aiohttp.ClientSession, endpoint: str) -> None:
        self._session, self._endpoint = session, endpoint.rstrip("/")
        self._kept: TTLCache[str, dict[str, Any]] = TTLCache(1000, KEPT_SECONDS)
        self._lacking: TTLCache[str, bool] = TTLCache(1000, MISSED_SECONDS)

    async def accepts_images(self, model: str, api_key: str) -> bool:
        """Whether the model's listing has pictures among its input types; False if it is not available."""
        found = await self._listing(model, api_key)
        types = cast("list[str]", found.get("input_attachment_types") or [])
        return any(kind == "*/*" or kind.startswith("image/") for kind in types)

    async def request_tokens(self, model: str, api_key: str) -> int | None:
        """How many tokens a request may have, with room left for the answer; None if the listing does not name it."""
        match (await self._listing(model, api_key)).get("limits"):
            case {"max_prompt_tokens": int(prompt)} if prompt > 0:
                return prompt
            case {"max_total_tokens": int(total)} if total > 0:
                return total - min(ANSWER_TOKENS, total // 4)
            case _:
                return None

    async def chat_models(self, api_key: str) -> list[str]:
        """The ids of the chat models that the caller may use, in Core's order; empty if Core does not answer."""
        found = await self.get("/openai/models", api_key)
        items = cast("list[dict[str, Any]]", (found.get("data") or []) if isinstance(found, dict) else [])
        return [str(item["id"]) for item in items if (item.get("capabilities") or {}).get("chat_completion")]

    async def lacks(self, deployment: str, api_key: str) -> bool:
        """Whether the caller has no such model or application; False while Core does not answer that."""
        lacking = self._lacking.get(deployment)
        if lacking is None:
            name = quote(deployment, safe="")
            statuses = {await self._status(f"/openai/models/{name}", api_key)}
            if 200 not in statuses:
                statuses.add(await self._status(f"/openai/applications/{name}", api_key))
            lacking = statuses <= _NOT_LISTED
            if not statuses & {401, 403}:  # those are about this caller only
                self._lacking[deployment] = lacking
        return lacking

    async def _listing(self, model: str, api_key: str) -> dict[str, Any]:
        found = self._kept.get(model)
        if found is None:
            found = await self.get(f"/openai/models/{quote(model, safe='')}", api_key)
            if not isinstance(found, dict):
                return {}
            self._kept[model] = found = cast("dict[str, Any]", found)
        return found

    async def get(self, path: str, api_key: str, most: int = LARGEST_LIST) -> Any:
        """The JSON of at most so many bytes at this path of Core's; None where there is none for this key."""
        return await listing(self._session, f"{self._endpoint}{path}", core_headers(api_key), _SECONDS, most)

    async def _status(self, path: str, api_key: str) -> int | None:
        url, timeout = f"{self._endpoint}{path}", aiohttp.ClientTimeout(_SECONDS)
        try:
            async with self._session.get(url, headers=core_headers(api_key), timeout=timeout) as response:
                return response.status
        except (aiohttp.ClientError, TimeoutError):
            return None
