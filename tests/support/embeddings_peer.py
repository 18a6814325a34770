"""An OpenAI-compatible `/embeddings` on loopback whose vectors count words, and whose faults a test sets."""

import asyncio
import base64
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from aiohttp import web
from numpy.typing import NDArray

from tests.support.core_peers import Peer, peer
from tests.support.embedding import DIMENSIONS, word_vector

MODEL = "words-64"


@dataclass
class EmbeddingsPeer:
    """It takes `most` texts at once, and each of `failures` answers one request.

    `change` may alter the items of an answer; `busiest` is how many requests were worked on at a time.
    """

    peer: Peer = field(default_factory=Peer)
    dimensions: int = DIMENSIONS
    most: int = 2048
    as_base64: bool = False
    failures: list[web.Response] = field(default_factory=list[web.Response])
    change: Callable[[list[dict[str, Any]]], Any] = lambda items: items
    open_keys: set[str] | None = None
    busiest: int = 0
    working: int = 0

    @property
    def url(self) -> str:
        return f"{self.peer.url}/v1/embeddings"

    @property
    def batches(self) -> list[int]:
        """How many texts each request had."""
        return [len(request.json["input"]) for request in self.peer.requests]

    @property
    def texts(self) -> list[str]:
        return [text for request in self.peer.requests for text in request.json["input"]]

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.working += 1
        self.busiest = max(self.busiest, self.working)
        try:
            await asyncio.sleep(0)
            return await self._answer(request)
        finally:
            self.working -= 1

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        texts: list[str] = (await request.json())["input"]
        if self.failures:
            return self.failures.pop(0)
        if self.open_keys is not None and request.headers.get("Api-Key") not in self.open_keys:
            return failure(403, "Access denied")
        if len(texts) > self.most:
            return failure(413, f"batch size {len(texts)} > maximum allowed batch size {self.most}")
        rows = [word_vector(text, self.dimensions) for text in texts]
        items = [
            {"object": "embedding", "index": place, "embedding": self._encoded(row)} for place, row in enumerate(rows)
        ]
        usage = {"prompt_tokens": sum(len(text.split()) for text in texts), "total_tokens": 0}
        return web.json_response({"object": "list", "data": self.change(items), "model": MODEL, "usage": usage})

    def _encoded(self, row: NDArray[np.float32]) -> Any:
        return base64.b64encode(row.astype("<f4").tobytes()).decode() if self.as_base64 else row.tolist()


def failure(status: int, message: str, **headers: str) -> web.Response:
    body = {"error": {"message": message, "type": "invalid_request_error", "code": None}}
    return web.json_response(body, status=status, headers={name.replace("_", "-"): v for name, v in headers.items()})


@asynccontextmanager
async def embeddings_peer(**options: Any) -> AsyncGenerator[EmbeddingsPeer]:
    found = EmbeddingsPeer(**options)
    async with peer(found.answer) as running:
        found.peer = running
        yield found
