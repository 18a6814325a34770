"""The vectors of texts, from the embedding model in this process or from one behind an address."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from task.closing import together
from task.core_client.models import Caller
from task.embedding.embedder import Embedder, Observer
from task.embedding.weights import EmbeddingUnavailable, State
from task.errors import ProviderError
from task.llm.base import Usage
from task.llm.embeddings import EmbeddingsEndpoint
from task.llm.failures import CONTEXT_LENGTH, MALFORMED
from task.shares import Shares
from task.telemetry.operations import queued

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

BATCH = 64
AT_ONCE = 4  # requests for documents; a question has its own, so that it does not wait
_REFUSED = (401, 403)
_SPLIT = (400, 413, 422)  # how servers say that a request has too many texts


class KeyRefused(EmbeddingUnavailable):
    """The model refuses this caller's key; another caller's may do."""


class RemoteEmbeddings:
    """Vectors from an endpoint, in batches; one that it refuses as too large is halved, and so are those after it."""

    def __init__(self, endpoint: EmbeddingsEndpoint, *, batch: int = BATCH) -> None:
        self._endpoint = endpoint
        self._batch = batch
        self._documents = Shares(AT_ONCE)

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
        """One normalised row for each text; `caller` is whom the work is for.

        Raises:
            EmbeddingUnavailable: there are no vectors; the text gives the reason and what would help.
        """
        import numpy as np

        with queued("embedding"):
            try:
                pieces = await self._pieces(texts, observer, caller)
            except ProviderError as error:
                raise _unavailable(error, self._endpoint.name) from error
        if len({piece.shape[1] for piece in pieces}) > 1:
            raise EmbeddingUnavailable(
                f"{self._endpoint.name} answers with vectors of different lengths. Tell the user."
            )
        return await asyncio.to_thread(np.concatenate, pieces)

    async def _pieces(
        self, texts: Sequence[str], observer: Observer | None, caller: Caller | None
    ) -> list[NDArray[np.float32]]:
        if len(texts) <= self._batch:
            return await self._fetched(texts, caller)
        done, size = 0, self._batch

        async def work(part: Sequence[str]) -> list[NDArray[np.float32]]:
            nonlocal done
            async with self._documents.place():
                rows = await self._fetched(part, caller)
            done += len(part)
            if observer is not None:
                observer(done)
            return rows

        found = await together(work(texts[start : start + size]) for start in range(0, len(texts), size))
        return [piece for pieces in found for piece in pieces]

    async def _fetched(self, texts: Sequence[str], caller: Caller | None) -> list[NDArray[np.float32]]:
        if len(texts) > (size := self._batch):  # which has been halved since
            return await self._fetched(texts[:size], caller) + await self._fetched(texts[size:], caller)
        # Half a surrogate pair cannot be sent.
        sent = [text.encode(errors="replace").decode() for text in texts]
        try:
            answer = await self._endpoint.embed(
                sent, caller.api_key if caller else "", caller.headers if caller else {}
            )
        except ProviderError as error:
            if len(texts) == 1 or not (error.status_code in _SPLIT or error.code == CONTEXT_LENGTH):
                raise
            half = len(texts) // 2
            first = await self._fetched(texts[:half], caller)
            self._batch = min(self._batch, len(texts) - half)  # only now: the refusal was about the size
            return first + await self._fetched(texts[half:], caller)
        if caller is not None and answer.tokens:
            caller.spend(Usage(prompt_tokens=answer.tokens), self._endpoint.name)
        return [answer.rows]


Embeddings = Embedder | RemoteEmbeddings


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
