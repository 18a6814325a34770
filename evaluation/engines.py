"""The same questions on every engine: vectors in memory, in PostgreSQL, and from a server by HTTP."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING
from uuid import uuid4

from aiohttp import web

from evaluation.corpus import Question
from evaluation.library import measured, rank_among
from evaluation.measures import figure
from evaluation.report import table
from task.core_client.files import DialFiles
from task.errors import AgentError
from task.llm.embeddings import openai_embeddings
from task.llm.transport import new_session
from task.search.chunks import ChunkedDocument
from task.search.embeddings import Embeddings, RemoteEmbeddings
from task.search.ranking import DocumentIndex, Lexical, StoredVectors, indexed_texts, ranked
from task.search.readings import Readings
from task.search.vectors import MemoryVectors, PgVectors

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

SECONDS = 3600
Rows = Mapping[str, "NDArray[np.float32]"]


@dataclass(frozen=True, slots=True)
class EngineFigures:
    """Shares of the questions whose answer is in the first chunk, or in one of the first three, and MRR."""

    first: float
    third: float
    reciprocal: float


async def engines(
    documents: Mapping[str, ChunkedDocument], asked: Sequence[Question], packaged: Embeddings, index_url: str = ""
) -> dict[str, EngineFigures]:
    """The figures by engine; PostgreSQL is left out where no `index_url` names one."""
    readings = Readings(DialFiles(""))  # nothing is read through them
    memory = MemoryVectors(readings)
    rows = await _embedded(documents, packaged)
    found = {"in memory": await _figures(documents, rows, asked, packaged, memory)}
    if index_url:
        database = PgVectors(index_url, readings, seconds=SECONDS)
        try:
            found["pgvector"] = await _figures(documents, rows, asked, packaged, database)
        finally:
            await database.close()
    async with new_session() as session, served(packaged) as url:
        remote = RemoteEmbeddings(openai_embeddings(session, url, packaged.model_name))
        rows = await _embedded(documents, remote)
        found["in memory, embedded by HTTP"] = await _figures(documents, rows, asked, remote, memory)
    return found


def engines_report(found: Mapping[str, EngineFigures], questions: int, files: int) -> str:
    """A table with a row for each engine."""
    rows = [
        [name, *(f"{value:.3f}" for value in (one.first, one.third, one.reciprocal))] for name, one in found.items()
    ]
    title = f"{questions} questions over {files} files at once, hybrid:"
    return f"{title}\n\n{table(('Vectors', 'R@1', 'R@3', 'MRR'), rows)}"


@asynccontextmanager
async def served(model: Embeddings) -> AsyncGenerator[str]:
    """The address of an OpenAI-compatible server on loopback that embeds with `model`."""

    async def answer(request: web.Request) -> web.Response:
        rows = await model.embed((await request.json())["input"])
        items = [{"index": place, "embedding": row.tolist()} for place, row in enumerate(rows)]
        return web.json_response({"object": "list", "data": items})

    app = web.Application(client_max_size=2**26)
    app.router.add_post("/v1/embeddings", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1/embeddings"
    finally:
        await runner.cleanup()


async def _embedded(documents: Mapping[str, ChunkedDocument], model: Embeddings) -> Rows:
    return {name: await model.embed(indexed_texts(document)) for name, document in documents.items()}


async def _figures(
    documents: Mapping[str, ChunkedDocument],
    rows: Rows,
    asked: Sequence[Question],
    model: Embeddings,
    store: MemoryVectors,
) -> EngineFigures:
    indexes = {key: await _indexed(document, rows[key], store) for key, document in documents.items()}
    ranks: list[int | None] = []
    for question in asked:
        [vector] = await model.embed([question.question])
        cosines = [await store.similarities(index.dense, vector) for index in indexes.values()]
        hits = ranked(list(indexes.values()), question.question, cosines)
        ranks.append(rank_among(indexes, question, hits))
    return EngineFigures(*(figure(values).mean for values in measured(ranks)))


async def _indexed(document: ChunkedDocument, rows: NDArray[np.float32], store: MemoryVectors) -> DocumentIndex:
    texts = indexed_texts(document)
    dense = await store.keep(uuid4().hex, rows)
    if isinstance(store, PgVectors) and not isinstance(dense, StoredVectors):
        raise AgentError("The PostgreSQL cannot be used: see the log.")
    return DocumentIndex(document, dense, Lexical(texts))
