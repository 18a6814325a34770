"""What DIAL Core tells about its models."""

from __future__ import annotations

from typing import Any, cast
from urllib.parse import quote

import aiohttp
import orjson
from cachetools import TTLCache

KEPT_SECONDS = 300


class ModelListings:
    """Asks Core's listings with the caller's key and keeps what it heard for five minutes."""

    def __init__(self, session: aiohttp.ClientSession, endpoint: str) -> None:
        self._session, self._endpoint = session, endpoint.rstrip("/")
        self._images: TTLCache[str, bool] = TTLCache(1000, KEPT_SECONDS)

    async def accepts_images(self, model: str, api_key: str) -> bool:
        """Whether the model's listing names pictures among its input types; False when Core does not tell."""
        if model not in self._images:
            listing = await self._get(f"/openai/models/{quote(model, safe='')}", api_key)
            if listing is None:
                return False
            types = cast("list[str]", listing.get("input_attachment_types") or [])
            self._images[model] = any(kind == "*/*" or kind.startswith("image/") for kind in types)
        return self._images[model]

    async def chat_models(self, api_key: str) -> list[str]:
        """The ids of the chat models the caller may use, in Core's order; empty when Core does not tell."""
        listing = await self._get("/openai/models", api_key)
        items = cast("list[dict[str, Any]]", (listing or {}).get("data") or [])
        return [str(item["id"]) for item in items if (item.get("capabilities") or {}).get("chat_completion")]

    async def _get(self, path: str, api_key: str) -> dict[str, Any] | None:
        try:
            async with self._session.get(
                f"{self._endpoint}{path}", headers={"Api-Key": api_key}, timeout=aiohttp.ClientTimeout(5)
            ) as response:
                content = orjson.loads(await response.read()) if response.status == 200 else None
        except (aiohttp.ClientError, TimeoutError, orjson.JSONDecodeError):
            return None
        return cast("dict[str, Any]", content) if isinstance(content, dict) else None
