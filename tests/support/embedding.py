"""Vectors without a model: texts that share words are close to each other."""

import asyncio
from collections.abc import Sequence
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from task.embedding.embedder import Embedder, Observer
from task.search.ranking import tokens

DIMENSIONS = 64


class WordVectors(Embedder):
    """Counts words into 64 places; `texts` were embedded so far. It embeds nothing while `gate` is closed."""

    @property
    def model_name(self) -> str:
        return "words"

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.calls = 0
        self.cancelled = 0
        self.gate = asyncio.Event()
        self.gate.set()

    async def embed(
        self, texts: Sequence[str], observer: Observer | None = None, caller: object = None
    ) -> NDArray[np.float32]:
        self.calls += 1
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if observer is not None:
            observer(len(texts))
        self.texts += texts
        return np.stack([word_vector(text) for text in texts])

    async def start(self) -> None:
        return None

    async def close(self) -> None:
        return None


def word_vector(text: str, dimensions: int = DIMENSIONS) -> NDArray[np.float32]:
    vector = np.full(dimensions, 1e-3, dtype=np.float32)
    for token in tokens(text):
        vector[crc32(token.encode()) % dimensions] += 1
    return (vector / np.linalg.norm(vector)).astype(np.float32)
