"""Chat models that DIAL Core serves as deployments."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypedDict, cast
from urllib.parse import quote

import aiohttp
import orjson
from cachetools import TTLCache

from task.conversation.messages import Message
from task.llm.base import Delta, ModelOptions, ToolSchema
from task.llm.chat_chunks import chat_deltas
from task.llm.chat_request import Profile, profile_for, request_body
from task.llm.transport import RETRIES, Post, Retries, answer_bytes
from task.llm.window import ANSWER_TOKENS


class UserToken(str):
    """A token of an identity provider. It goes where a key goes, and is shown to DIAL Core as a bearer token."""

    __slots__ = ()


def core_headers(secret: str) -> dict[str, str]:
    """The header that shows DIAL Core a key or a token."""
    if isinstance(secret, UserToken):
        return {"Authorization": f"Bearer {secret}"}
    return {"Api-Key": str(secret)}


class ClientCredentials(TypedDict, total=False):
    """Arguments of aidial-client's constructors."""

    api_key: str
    bearer_token: str


def client_credentials(secret: str) -> ClientCredentials:
    """The arguments that have aidial-client show a key or a token."""
    return {"bearer_token": str(secret)} if isinstance(secret, UserToken) else {"api_key": str(secret)}


@dataclass(frozen=True, slots=True)
class DialChatModel:
    """A deployment of the Core at `endpoint`, asked with the key or token of this one request; `headers` travel
    on.

    Without `profile` the deployment's name tells it.
    """

    session: aiohttp.ClientSession
    endpoint: str
    deployment: str
    api_key: str
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    api_version: str | None = None
    profile: Profile | None = None
    retries: Retries = RETRIES

    @property
    def name(self) -> str:
        return self.deployment

    def stream(
        self, messages: Sequence[Message], tools: Sequence[ToolSchema], options: ModelOptions
    ) -> AsyncGenerator[Delta]:
        profile = self.profile or profile_for(self.deployment)
        body = request_body(self.deployment, messages, tools, options, profile)
        post = Post(self._url(), body, {**self.headers, **core_headers(self.api_key)})
        return chat_deltas(answer_bytes(self.session, post, self.retries), (self.api_key,))

    def _url(self) -> str:
        path = f"{self.endpoint.rstrip('/')}/openai/deployments/{quote(self.deployment, safe='/')}/chat/completions"
        return f"{path}?api-version={quote(self.api_version)}" if self.api_version else path


KEPT_SECONDS = 300


@dataclass(frozen=True, slots=True)
class _Facts:
    images: bool
    request_tokens: int | None


class ModelListings:
    """Asks Core's listings with the caller's key and keeps what it heard for five minutes."""

    def __init__(self, session: aiohttp.ClientSession, endpoint: str) -> None:
        self._session, self._endpoint = session, endpoint.rstrip("/")
        self._kept: TTLCache[str, _Facts] = TTLCache(1000, KEPT_SECONDS)

    async def accepts_images(self, model: str, api_key: str) -> bool:
        """Whether the model's listing names pictures among its input types; False when Core does not tell."""
        facts = await self._facts(model, api_key)
        return facts is not None and facts.images

    async def request_tokens(self, model: str, api_key: str) -> int | None:
        """How many tokens a request may have, with room for the answer left; None when Core does not tell."""
        facts = await self._facts(model, api_key)
        return facts.request_tokens if facts is not None else None

    async def chat_models(self, api_key: str) -> list[str]:
        """The ids of the chat models the caller may use, in Core's order; empty when Core does not tell."""
        listing = await self._get("/openai/models", api_key)
        items = cast("list[dict[str, Any]]", (listing or {}).get("data") or [])
        return [str(item["id"]) for item in items if (item.get("capabilities") or {}).get("chat_completion")]

    async def _facts(self, model: str, api_key: str) -> _Facts | None:
        if model not in self._kept:
            listing = await self._get(f"/openai/models/{quote(model, safe='')}", api_key)
            if listing is None:
                return None
            types = cast("list[str]", listing.get("input_attachment_types") or [])
            images = any(kind == "*/*" or kind.startswith("image/") for kind in types)
            self._kept[model] = _Facts(images, _request_tokens(listing.get("limits")))
        return self._kept[model]

    async def _get(self, path: str, api_key: str) -> dict[str, Any] | None:
        try:
            async with self._session.get(
                f"{self._endpoint}{path}", headers=core_headers(api_key), timeout=aiohttp.ClientTimeout(5)
            ) as response:
                content = orjson.loads(await response.read()) if response.status == 200 else None
        except (aiohttp.ClientError, TimeoutError, orjson.JSONDecodeError):
            return None
        return cast("dict[str, Any]", content) if isinstance(content, dict) else None


def _request_tokens(limits: Any) -> int | None:
    told = cast("dict[str, Any]", limits) if isinstance(limits, dict) else {}
    prompt, total = told.get("max_prompt_tokens"), told.get("max_total_tokens")
    if isinstance(prompt, int) and prompt > 0:
        return prompt
    return total - min(ANSWER_TOKENS, total // 4) if isinstance(total, int) and total > 0 else None
