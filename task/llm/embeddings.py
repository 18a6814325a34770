"""Vectors of texts from a deployment of DIAL Core or from any OpenAI-compatible `/embeddings`."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

import aiohttp
import orjson

from task.errors import ProviderError
from task.llm.dial import core_headers
from task.llm.failures import CORE, MALFORMED, MODEL_SERVER, TIMEOUT
from task.llm.transport import RETRIES, Retries, answer_bytes

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

ANSWER_SECONDS = 120.0
MAX_BYTES = 256 * 2**20
_ONCE = Retries(attempts=1)


@dataclass(frozen=True, slots=True)
class Embedded:
    """One normalised float32 row for each text, and the tokens that the provider counted."""

    rows: NDArray[np.float32]
    tokens: int


@dataclass(frozen=True, slots=True)
class EmbeddingsEndpoint:
    """Embeddings at `url`; `name` is the model's for users and prices, `identity` tells its vectors from others'.

    `model` is sent unless it is empty. `api_key` None: each request has its caller's, as DIAL Core expects; an empty
    one is not sent. Without a session each request opens one of its own.
    """

    session: aiohttp.ClientSession | None
    url: str
    name: str
    identity: str
    model: str = ""
    api_key: str | None = None
    server: str = MODEL_SERVER
    retries: Retries = RETRIES
    seconds: float = ANSWER_SECONDS

    async def embed(self, texts: Sequence[str], api_key: str, headers: Mapping[str, str]) -> Embedded:
        """The vectors of the texts in their order, from one request; `api_key` and `headers` are the caller's.

        Raises:
            ProviderError: the provider cannot be reached, refuses, fails, or answers with anything but these vectors.
        """
        asked = {"input": list(texts), **({"model": self.model} if self.model else {})}
        sent = {"Accept": "application/json"}
        if self.api_key is None:
            sent |= {**headers, **core_headers(api_key)}
        elif self.api_key:
            sent["Authorization"] = f"Bearer {self.api_key}"

        async def answer() -> bytes:
            content = bytearray()
            try:
                async with asyncio.timeout(self.seconds):
                    pieces = answer_bytes(self.session, self.url, orjson.dumps(asked), sent, _ONCE, self.server)
                    async for piece in pieces:
                        content += piece
                        if len(content) > MAX_BYTES:
                            raise _malformed("is endless")
            except TimeoutError as error:
                raise ProviderError("The model provider has been silent for too long.", code=TIMEOUT) from error
            return bytes(content)

        # An answer that breaks off is requested again as a whole, so the retries are around all of it.
        return await asyncio.to_thread(embedded, await self.retries.run(answer), len(texts))


def core_embeddings(session: aiohttp.ClientSession | None, endpoint: str, deployment: str) -> EmbeddingsEndpoint:
    """The embeddings of a deployment of the Core at `endpoint`, called with each caller's own key."""
    url = f"{endpoint.rstrip('/')}/openai/deployments/{quote(deployment, safe='/')}/embeddings"
    return EmbeddingsEndpoint(session, url, deployment, deployment, server=CORE)


def openai_embeddings(
    session: aiohttp.ClientSession | None, url: str, model: str, api_key: str = ""
) -> EmbeddingsEndpoint:
    """The embeddings of an OpenAI-compatible server; `url` ends with `/embeddings`, before any query."""
    return EmbeddingsEndpoint(session, url, model, f"{model} at {urlsplit(url).hostname}", model, api_key)


def embedded(body: bytes, count: int) -> Embedded:
    """The vectors of an answer, ordered by their `index`, as numbers or as base64 of little-endian float32.

    Raises:
        ProviderError: they are not `count` vectors of one length and of finite numbers.
    """
    import numpy as np

    def row(vector: Any) -> NDArray[np.float64]:
        if isinstance(vector, str):
            return np.frombuffer(base64.b64decode(vector, validate=True), dtype="<f4").astype(np.float64)
        numbers = np.asarray(vector, dtype=np.float64)
        if numbers.ndim != 1:
            raise ValueError("a vector is not a list of numbers")
        return numbers

    try:
        content = orjson.loads(body)
        items = content["data"]
        if any("index" in item for item in items):
            items = sorted(items, key=lambda item: item["index"])
            if [item["index"] for item in items] != list(range(len(items))):
                raise ValueError("the vectors are not numbered from 0 without gaps")
        with np.errstate(over="ignore", invalid="ignore"):
            matrix = np.stack([row(item["embedding"]) for item in items])
            lengths = np.linalg.norm(matrix, axis=1, keepdims=True)
        if len(matrix) != count or not matrix.size or not np.isfinite(lengths).all():
            raise ValueError("vectors are missing, empty or not finite")
        tokens = (content.get("usage") or {}).get("prompt_tokens") or 0
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise _malformed(f"is not a list of embeddings of one length, {count} in number") from error
    return Embedded((matrix / np.maximum(lengths, 1e-12)).astype(np.float32), tokens if isinstance(tokens, int) else 0)


def _malformed(what: str) -> ProviderError:
    return ProviderError(f"The model provider's answer {what}.", code=MALFORMED)
