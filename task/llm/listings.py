"""What DIAL Core tells about its models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import quote

import aiohttp
import orjson
from cachetools import TTLCache

from task.llm.credentials import core_headers
from task.llm.window import ANSWER_TOKENS

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
