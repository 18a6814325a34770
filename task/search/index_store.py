"""Where the vectors of documents are kept and compared with a question's: in memory, with copies in a Redis."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from task.search.ranking import Dense, StoredVectors, dense_index, similarities
from task.search.readings import Readings

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


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
        import numpy as np

        return await asyncio.to_thread(lambda: dense_index(np.frombuffer(content, dtype="<f4").reshape(chunks, -1)))

    async def keep(self, key: str, rows: NDArray[np.float32]) -> Dense:
        """Keep the normalised rows of a document's chunks."""
        if self._readings.is_shared:
            content = await asyncio.to_thread(lambda: rows.astype("<f4").tobytes())
            await self._readings.put(f"index:{key}", content)
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
