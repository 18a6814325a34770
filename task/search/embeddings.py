"""The vectors of texts, from the embedding process or from a model behind an address."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, Protocol

from cachetools import TTLCache

from task.closing import together
from task.core_client.models import Caller
from task.embedding.client import Observer, Progress
from task.embedding.environment import State
from task.embedding.model import EmbeddingUnavailable
from task.errors import ProviderError
from task.llm.base import Usage
from task.llm.embeddings import EmbeddingsEndpoint
from task.llm.failures import CONTEXT_LENGTH, MALFORMED
from task.search.index_store import VectorStore
from task.search.readings import DAY_SECONDS
from task.telemetry.operations import queued

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

BATCH = 64
AT_ONCE = 4  # requests for documents; a question has its own, so that it does not wait
CACHE_BYTES = 32 * 2**20
_ROW_BYTES = 200  # of a kept row, beside its numbers
_REFUSED = (401, 403)
_SPLIT = (400, 413, 422)  # how servers say that a request has too many texts


class Embeddings(Protocol):
    """A model that makes vectors; `model_name` distinguishes them from those of other models."""

    @property
    def model_name(self) -> str: ...

    def state(self) -> State:
        """Whether it can be used now."""
        ...

    async def start(self) -> None: ...

    async def embed(
        self, texts: Sequence[str], observer: Observer | None = None, caller: Caller | None = None
    ) -> NDArray[np.float32]:
        """One normalised row for each text; `caller` is whom the work is for.

        Raises:
            EmbeddingUnavailable: there are no vectors; the text gives the reason and what would help.
        """
        ...

    async def close(self) -> None: ...


class KeyRefused(EmbeddingUnavailable):
    """The model refuses this caller's key; another caller's may do."""


def digest(text: str) -> bytes:
    """Identifies a text that is embedded."""
    return sha256(text.encode(errors="replace")).digest()


class RemoteEmbeddings:
    """Vectors from an endpoint, in batches, each text once: in memory for `seconds`, and as long as `store` keeps it.

    A batch that the endpoint refuses as too large is halved, and so are those that follow.
    """

    def __init__(
        self, endpoint: EmbeddingsEndpoint, store: VectorStore, *, batch: int = BATCH, seconds: int = DAY_SECONDS
    ) -> None:
        self._endpoint = endpoint
        self._store = store
        self._batch = batch
        self._documents = asyncio.Semaphore(AT_ONCE)
        self._kept: TTLCache[bytes, NDArray[np.float32]] = TTLCache(CACHE_BYTES, seconds, getsizeof=_row_bytes)
        self._dimensions: int | None = None  # of the newest answer

    @property
    def model_name(self) -> str:
        return self._endpoint.identity

    def state(self) -> State:
        return State("ready", "ready")

    async def start(self) -> None:
        return None

    async def close(self) -> None:
        return None

    async def embed(
        self, texts: Sequence[str], observer: Observer | None = None, caller: Caller | None = None
    ) -> NDArray[np.float32]:
        import numpy as np

        def sendable() -> tuple[list[bytes], list[str]]:
            whole = [text.encode(errors="replace").decode() for text in texts]  # half a surrogate pair cannot be sent
            return [digest(text) for text in whole], whole

        digests, whole = await asyncio.to_thread(sendable)
        with queued("embedding"):
            try:
                rows = await self._rows(dict(zip(digests, whole, strict=True)), observer, caller)
            except ProviderError as error:
                raise _unavailable(error, self._endpoint.name) from error
        return await asyncio.to_thread(lambda: np.stack([rows[key] for key in digests]))

    async def _rows(
        self, texts: dict[bytes, str], observer: Observer | None, caller: Caller | None
    ) -> dict[bytes, NDArray[np.float32]]:
        found = {key: row for key in texts if (row := self._kept.get(key)) is not None}
        missing = [key for key in texts if key not in found]
        if missing and len(texts) > 1:  # a question belongs to one user, and is not kept outside
            found |= await self._store.known(self.model_name, missing)
        if found and self._dimensions is None:  # the model may have changed since those were kept
            key = next(iter(texts))
            found[key] = (await self._fetched({key: texts[key]}, caller))[key]
        for _ in range(2):  # the second time if the model changes right now
            rows = {key: row for key, row in found.items() if len(row) == self._dimensions}
            others = {key: text for key, text in texts.items() if key not in rows}
            found = rows | await self._made(others, len(texts), observer, caller)
            if len({len(row) for row in found.values()}) <= 1:
                return found
        raise EmbeddingUnavailable(f"{self._endpoint.name} answers with vectors of different lengths. Tell the user.")

    async def _made(
        self, texts: dict[bytes, str], total: int, observer: Observer | None, caller: Caller | None
    ) -> dict[bytes, NDArray[np.float32]]:
        if len(texts) <= self._batch:
            found = await self._fetched(texts, caller)
            if found and total > 1:
                await self._store.learn(self.model_name, found)
            return found
        rows: dict[bytes, NDArray[np.float32]] = {}
        waiting = iter(texts.items())

        async def work() -> None:
            while True:
                async with self._documents:
                    some = {key: text for _, (key, text) in zip(range(self._batch), waiting, strict=False)}
                    if not some:
                        return
                    found = await self._fetched(some, caller)
                    rows.update(found)
                    await self._store.learn(self.model_name, found)
                    if observer is not None:
                        observer(Progress(total - len(texts) + len(rows), total))

        await together(work() for _ in range(AT_ONCE))
        return rows

    async def _fetched(self, texts: dict[bytes, str], caller: Caller | None) -> dict[bytes, NDArray[np.float32]]:
        if not texts:
            return {}
        keys = list(texts)
        try:
            answer = await self._endpoint.embed(
                list(texts.values()), caller.api_key if caller else "", caller.headers if caller else {}
            )
        except ProviderError as error:
            if len(keys) == 1 or not (error.status_code in _SPLIT or error.code == CONTEXT_LENGTH):
                raise
            half = len(keys) // 2
            first, second = ({key: texts[key] for key in part} for part in (keys[:half], keys[half:]))
            found = await self._fetched(first, caller)
            self._batch = min(self._batch, len(keys) - half)  # only now: the refusal was about the size
            return found | await self._fetched(second, caller)
        if caller is not None and answer.tokens:
            caller.spend(Usage(prompt_tokens=answer.tokens), self._endpoint.name)
        self._dimensions = answer.rows.shape[1]
        rows = dict(zip(keys, answer.rows, strict=True))
        self._kept.update((key, row) for key, row in rows.items() if _row_bytes(row) <= self._kept.maxsize)
        return rows


def _row_bytes(row: NDArray[np.float32]) -> int:
    return row.nbytes + _ROW_BYTES


def _unavailable(error: ProviderError, name: str) -> EmbeddingUnavailable:
    advice = "Tell the user; use another tool until then."
    if error.status_code in _REFUSED:
        return KeyRefused(f"The embedding model {name} refuses the key (HTTP {error.status_code}). {advice}")
    if error.status_code == 404:
        reason = f"There is no embedding model {name}; an operator has to correct AGENT_RAG__EMBEDDINGS"
    elif error.status_code == 429:
        reason = f"The embedding model {name} is receiving too many requests; try again later"
    elif error.code == MALFORMED or error.status_code in _SPLIT:
        reason = f"The embedding model {name} cannot be used: {str(error).rstrip('.')}"
    else:
        reason = f"The embedding model {name} does not answer; try again later"
    return EmbeddingUnavailable(f"{reason}. {advice}")
