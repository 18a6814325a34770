"""Where the vectors of documents are kept and compared with a question's: in memory, with copies in a Redis."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import struct
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from task.search.ranking import Dense, StoredVectors, dense_index, similarities
from task.search.readings import Readings

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

logger = logging.getLogger(__name__)

_MAGIC = b"DRI3"
_DIMENSIONS = struct.Struct("!I")
_DIGEST_BYTES = 32
_AT_ONCE = 500  # keys of one request to Redis


class Damaged(ValueError):
    """The bytes are not the vectors of this document."""


class VectorsGone(Exception):
    """The vectors are no longer where the index left them; they have to be made again."""


@dataclass(frozen=True, slots=True)
class NewVectors:
    """The normalised rows of a document's chunks, the digests of the embedded texts, and the model's name."""

    model: str
    digests: Sequence[bytes]
    rows: NDArray[np.float32]


class VectorStore(Protocol):
    """Vectors of documents by key, and of single texts by model and digest; none of it fails, except as documented."""

    async def find(self, key: str, chunks: int) -> Dense | None:
        """The vectors of a document with so many chunks, if they are kept."""
        ...

    async def keep(self, key: str, vectors: NewVectors) -> Dense: ...

    async def drop(self, key: str, dimensions: int) -> None:
        """Forget a document's vectors of this length."""
        ...

    async def similarities(self, dense: Dense, vector: NDArray[np.float32]) -> NDArray[np.float32]:
        """The cosine of the question's vector and of each chunk's, in the order of the chunks.

        Raises:
            VectorsGone: the store has no such vectors any more, or cannot be reached.
        """
        ...

    def making(self, key: str) -> AbstractAsyncContextManager[bool]:
        """Held while a document is embedded; True: another agent may have finished it, so look again."""
        ...

    async def known(self, model: str, digests: Sequence[bytes]) -> dict[bytes, NDArray[np.float32]]:
        """The vectors of these texts that are kept."""
        ...

    async def learn(self, model: str, rows: Mapping[bytes, NDArray[np.float32]]) -> None: ...

    async def close(self) -> None: ...


class MemoryVectors:
    """FAISS indexes in this process; what was made is also kept in the Redis of `readings`, where there is one."""

    def __init__(self, readings: Readings) -> None:
        self._readings = readings

    async def find(self, key: str, chunks: int) -> Dense | None:
        if (content := await self._readings.get(f"index:{key}")) is None:
            return None
        try:
            return dense_index(await asyncio.to_thread(unpacked, content, chunks))
        except (Damaged, ValueError):
            logger.warning("a stored index is damaged and was dropped")
            await self._readings.drop(f"index:{key}")
            return None

    async def keep(self, key: str, vectors: NewVectors) -> Dense:
        if self._readings.is_shared:
            await self._readings.put(f"index:{key}", await asyncio.to_thread(packed, vectors.rows))
        return await asyncio.to_thread(dense_index, vectors.rows)

    async def drop(self, key: str, dimensions: int) -> None:
        await self._readings.drop(f"index:{key}")

    async def similarities(self, dense: Dense, vector: NDArray[np.float32]) -> NDArray[np.float32]:
        if isinstance(dense, StoredVectors):
            raise VectorsGone
        return await asyncio.to_thread(similarities, dense, vector)

    def making(self, key: str) -> AbstractAsyncContextManager[bool]:
        return nullcontext(False)

    async def known(self, model: str, digests: Sequence[bytes]) -> dict[bytes, NDArray[np.float32]]:
        if not self._readings.is_shared:
            return {}
        found: dict[bytes, NDArray[np.float32]] = {}
        for start in range(0, len(digests), _AT_ONCE):
            some = digests[start : start + _AT_ONCE]
            values = await self._readings.get_many([_text_key(model, digest) for digest in some])
            for digest, value in zip(some, values, strict=True):
                with suppress(ValueError):  # what is damaged is made again
                    if value is not None:
                        found[digest] = unpacked(value, 1)[0]
        return found

    async def learn(self, model: str, rows: Mapping[bytes, NDArray[np.float32]]) -> None:
        if not self._readings.is_shared:
            return
        items = [(_text_key(model, digest), packed(row.reshape(1, -1))) for digest, row in rows.items()]
        for start in range(0, len(items), _AT_ONCE):
            await self._readings.put_many(dict(items[start : start + _AT_ONCE]))

    async def close(self) -> None:
        return None


def packed(vectors: NDArray[np.float32]) -> bytes:
    """Rows as bytes."""
    body = _DIMENSIONS.pack(vectors.shape[1]) + vectors.astype("<f4").tobytes()
    return _MAGIC + hashlib.sha256(body).digest() + body


def unpacked(content: bytes, chunks: int) -> NDArray[np.float32]:
    """The rows that were packed, one per chunk.

    Raises:
        Damaged: the bytes are cut, changed, of another version, or belong to another document.
    """
    body = memoryview(content)[len(_MAGIC) + _DIGEST_BYTES :]
    if content[: len(_MAGIC)] != _MAGIC or hashlib.sha256(body).digest() != content[len(_MAGIC) :][:_DIGEST_BYTES]:
        raise Damaged("these bytes are not an index")
    import numpy as np

    (dimensions,) = _DIMENSIONS.unpack_from(body)
    vectors = np.frombuffer(body[_DIMENSIONS.size :], dtype="<f4").reshape(-1, dimensions)
    if len(vectors) != chunks:
        raise Damaged("this index belongs to another document")
    return vectors


def _text_key(model: str, digest: bytes) -> str:
    return "vector:" + hashlib.sha256(model.encode() + digest).hexdigest()
