"""Where the vectors of documents are kept and compared with a question's: in memory, with copies in a Redis."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import struct
from typing import TYPE_CHECKING

from task.search.ranking import Dense, StoredVectors, dense_index, similarities
from task.search.readings import Readings

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

logger = logging.getLogger(__name__)

_MAGIC = b"DRI3"
_DIMENSIONS = struct.Struct("!I")
_DIGEST_BYTES = 32


class Damaged(ValueError):
    """The bytes are not the vectors of this document."""


class VectorsGone(Exception):
    """The vectors are no longer where the index left them; they have to be made again."""


class MemoryVectors:
    """FAISS indexes in this process; what was made is also kept in the Redis of `readings`, where there is one.

    Nothing fails but as documented.
    """

    def __init__(self, readings: Readings) -> None:
        self._readings = readings

    async def find(self, key: str, chunks: int) -> Dense | None:
        """The vectors of a document with so many chunks, if they are kept."""
        if (content := await self._readings.get(f"index:{key}")) is None:
            return None
        try:
            return dense_index(await asyncio.to_thread(unpacked, content, chunks))
        except (Damaged, ValueError):
            logger.warning("a stored index is damaged and was dropped")
            await self._readings.drop(f"index:{key}")
            return None

    async def keep(self, key: str, rows: NDArray[np.float32]) -> Dense:
        """Keep the normalised rows of a document's chunks."""
        if self._readings.is_shared:
            await self._readings.put(f"index:{key}", await asyncio.to_thread(packed, rows))
        return await asyncio.to_thread(dense_index, rows)

    async def drop(self, key: str, dimensions: int) -> None:
        """Forget a document's vectors of this length."""
        await self._readings.drop(f"index:{key}")

    async def similarities(self, dense: Dense, vector: NDArray[np.float32]) -> NDArray[np.float32]:
        """The cosine of the question's vector and of each chunk's, in the order of the chunks.

        Raises:
            VectorsGone: there are no such vectors any more, or their database cannot be reached.
        """
        if isinstance(dense, StoredVectors):
            raise VectorsGone
        return await asyncio.to_thread(similarities, dense, vector)

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
