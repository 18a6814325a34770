"""Keep indexed documents in Redis, for replicas and restarts: packed, and checked when they are read."""

from __future__ import annotations

import hashlib
import json
import logging
import struct
import zlib
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeVar

from task.tools.rag.chunks import Chunk, ChunkedDocument, ChunkPlace
from task.tools.rag.search import DocumentIndex, build_index

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from redis.asyncio import Redis

logger = logging.getLogger(__name__)

MAX_BYTES = 128 * 2**20
PREFIX = "dial-agent:rag:"
REST_SECONDS = 5.0  # how long a Redis that failed is left alone
ANSWER_SECONDS = 10.0
_CONNECT_SECONDS = 2.0
_MAGIC = b"DRI2"
_LENGTHS = struct.Struct("!III")  # bytes of the packed text, bytes of the packed places, dimensions of a vector
_DIGEST_BYTES = 32
_Answer = TypeVar("_Answer")


class RedisStore:
    """Bytes by key in the Redis at `url`; while it is away, the store is empty and keeps nothing."""

    def __init__(
        self,
        url: str,
        *,
        rest_seconds: float = REST_SECONDS,
        answer_seconds: float = ANSWER_SECONDS,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._url = url
        self._patience = answer_seconds
        self._rest = rest_seconds
        self._clock = clock
        self._redis: Redis | None = None
        self._resting_until = float("-inf")

    async def get(self, key: str) -> bytes | None:
        found = await self._run(lambda redis: redis.get(PREFIX + key))
        return found if isinstance(found, bytes) else None

    async def put(self, key: str, value: bytes, seconds: int) -> None:
        if len(value) <= MAX_BYTES:
            await self._run(lambda redis: redis.set(PREFIX + key, value, ex=seconds))

    async def drop(self, key: str) -> None:
        await self._run(lambda redis: redis.delete(PREFIX + key))

    async def close(self) -> None:
        if self._redis is not None:
            await self._redis.aclose()

    async def _run(self, command: Callable[[Redis], Awaitable[_Answer]]) -> _Answer | None:
        from redis.exceptions import RedisError

        if self._clock() < self._resting_until:
            return None
        try:
            return await command(self._connected())
        except (RedisError, OSError, TimeoutError) as error:
            self._resting_until = self._clock() + self._rest
            logger.warning("Redis does not answer (%s); indexes are not shared for now", type(error).__name__)
            return None

    def _connected(self) -> Redis:
        if self._redis is None:
            from redis.asyncio import Redis
            from redis.asyncio.retry import Retry
            from redis.backoff import NoBackoff
            from redis.exceptions import ConnectionError as Broken

            # A kept connection may have ended long ago, so a second one is tried; a time-out is not retried.
            retry = Retry(NoBackoff(), 1, supported_errors=(Broken,))
            self._redis = Redis.from_url(
                self._url, socket_timeout=self._patience, socket_connect_timeout=_CONNECT_SECONDS, retry=retry
            )
        return self._redis


class Damaged(ValueError):
    """The bytes are not an indexed document."""


def packed(index: DocumentIndex) -> bytes:
    document = index.document
    # Line by line: one call for all of a long document would block the event loop.
    rows = (json.dumps(row) for row in (document.notes, *(_row(chunk, document.text) for chunk in index.chunks)))
    text = zlib.compress(document.text.encode(errors="surrogatepass"), 1)
    places = zlib.compress("\n".join(rows).encode(), 1)
    vectors: NDArray[np.float32] = index.dense.reconstruct_n(0, index.dense.ntotal)
    body = _LENGTHS.pack(len(text), len(places), index.dense.d) + text + places + vectors.astype("<f4").tobytes()
    return _MAGIC + hashlib.sha256(body).digest() + body


def unpacked(content: bytes) -> DocumentIndex:
    """The index that was packed; its document has no name.

    Raises:
        Damaged: the bytes are cut, changed, or of another version.
    """
    body = memoryview(content)[len(_MAGIC) + _DIGEST_BYTES :]
    if content[: len(_MAGIC)] != _MAGIC or hashlib.sha256(body).digest() != content[len(_MAGIC) :][:_DIGEST_BYTES]:
        raise Damaged("these bytes are not an indexed document")
    import numpy as np

    text_bytes, places_bytes, dimensions = _LENGTHS.unpack_from(body)
    packed_text, rest = body[_LENGTHS.size :][:text_bytes], body[_LENGTHS.size + text_bytes :]
    text = zlib.decompress(packed_text).decode(errors="surrogatepass")
    notes, *rows = (json.loads(row) for row in zlib.decompress(rest[:places_bytes]).split(b"\n"))
    chunks = tuple(_chunk(row, text) for row in rows)
    vectors = np.frombuffer(rest[places_bytes:], dtype="<f4").reshape(-1, dimensions)
    return build_index(ChunkedDocument("", text, chunks, tuple(notes)), vectors)


def _row(chunk: Chunk, text: str) -> list[Any]:
    place = chunk.place
    own = None if chunk == _usual(place, text) else str(chunk)
    return [place.start, place.end, place.page, place.headings, place.header, place.rows, own]


def _chunk(row: list[Any], text: str) -> Chunk:
    start, end, page, headings, header, rows, own = row
    place = ChunkPlace(start, end, page, tuple(headings), header, (rows[0], rows[1]) if rows else None)
    return Chunk(_usual(place, text) if own is None else own, place)


def _usual(place: ChunkPlace, text: str) -> str:
    body = text[place.start : place.end]
    return f"{place.header}\n{body}" if place.header else body
