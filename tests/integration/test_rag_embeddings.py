"""Embeddings by an address: batches, retries, order, and what a server may answer wrongly."""

import asyncio
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from aiohttp import web

from task.cli.doctor import results
from task.embedding.weights import EmbeddingUnavailable
from task.errors import SettingsError
from task.llm.base import Usage
from task.llm.embeddings import EmbeddingsEndpoint
from task.llm.transport import Retries
from task.product.parts import default_tools
from task.search.embeddings import RemoteEmbeddings
from task.search.ranking import DocumentIndex
from task.search.readings import Readings
from task.search.shelf import DocumentCache, Shelf
from task.settings import Settings, load_settings
from task.tools.models import Caller, nobody
from task.tools.rag.rag_tool import RagTool
from tests.support.document_turns import PLATE, reads_the_excerpts, repeats_the_tool, searches
from tests.support.documents import DirectReaders, MemoryFiles, MemoryStore, manual
from tests.support.embedding import word_vector
from tests.support.embeddings_peer import MODEL, EmbeddingsPeer, embeddings_peer, failure
from tests.support.product import product
from tests.support.tool_calls import caller_of

WORDS = ("tray", "oven", "plate", "heat", "clean", "turn", "door", "timer")
TEXTS = [f"{first} {second} {number}" for number, first in enumerate(WORDS) for second in WORDS]


def of(found: EmbeddingsPeer, *, waits: list[float] | None = None, **options: Any) -> Any:
    """Embeddings whose retries do not wait, but note how long they would have."""

    async def sleep(seconds: float) -> None:
        (waits if waits is not None else []).append(seconds)

    endpoint = EmbeddingsEndpoint(None, found.url, MODEL, "here", MODEL, "sk-word", retries=Retries(sleep=sleep))
    return RemoteEmbeddings(endpoint, **options)


def readings(store: MemoryStore | None = None) -> Readings:
    return Readings(MemoryFiles({"files/b/manual.txt": manual().encode()}), DirectReaders(), store=store)


def expected(texts: list[str]) -> Any:
    return np.stack([word_vector(text) for text in texts])


@pytest.mark.fault("search in documents: vectors in another order, as numbers or base64")
@pytest.mark.parametrize("as_base64", [False, True])
async def test_vectors_are_ordered_by_their_index_as_numbers_or_base64(as_base64: bool) -> None:
    def shuffled(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return random.Random(1).sample(items, len(items))

    async with embeddings_peer(as_base64=as_base64, change=shuffled) as found:
        assert np.allclose(await of(found).embed(TEXTS), expected(TEXTS), atol=1e-6)
        assert found.peer.last.headers["Authorization"] == "Bearer sk-word"
        assert found.peer.last.json["model"] == MODEL


async def test_a_document_goes_in_batches_few_at_a_time_and_reports_progress() -> None:
    news: list[int] = []
    async with embeddings_peer() as found:
        rows = await of(found, batch=5).embed(TEXTS, news.append)
    assert np.allclose(rows, expected(TEXTS), atol=1e-6)
    assert max(found.batches) == 5
    assert found.busiest <= 4
    assert news[-1] == len(TEXTS)


@pytest.mark.fault("search in documents: more texts than an embeddings server takes at once")
async def test_a_batch_that_is_too_large_is_halved_and_so_are_the_next() -> None:
    async with embeddings_peer(most=10) as found:
        model = of(found, batch=64)
        assert np.allclose(await model.embed(TEXTS), expected(TEXTS), atol=1e-6)
        before = len(found.batches)
        await model.embed([f"{text} again" for text in TEXTS])
        assert max(found.batches[before:]) <= 10


@pytest.mark.fault("search in documents: an embeddings server that is busy, down, refuses or breaks off")
@pytest.mark.parametrize("status", [429, 500, 503])
async def test_a_busy_server_is_asked_again_after_as_long_as_it_says(status: int) -> None:
    waits: list[float] = []
    async with embeddings_peer(failures=[failure(status, "busy", Retry_After="7")]) as found:
        await of(found, waits=waits).embed(["tray"])
    assert waits == [7]


@pytest.mark.fault("search in documents: an embeddings server that is busy, down, refuses or breaks off")
async def test_an_answer_that_breaks_off_is_requested_again() -> None:
    cut = web.Response(body=b'{"data": [', headers={"Content-Length": "500"})
    cut.force_close()
    async with embeddings_peer(failures=[cut]) as found:
        await of(found).embed(["tray"])
        assert len(found.batches) == 2


@pytest.mark.fault("search in documents: an embeddings server that is busy, down, refuses or breaks off")
@pytest.mark.fault("search in documents: vectors that are too few, empty, not finite, or none")
@pytest.mark.parametrize(
    ("answers", "words"),
    [
        ([failure(429, "slow down")] * 3, "too many requests; try again later"),
        ([failure(503, "down")] * 3, "does not answer"),
        ([failure(401, "no key sk-word")], r"refuses the key \(HTTP 401\)"),
        ([failure(404, "no model")], "no embedding model words-64; an operator has to correct AGENT_RAG__EMBEDDINGS"),
        ([failure(400, "bad")], "cannot be used: The model provider refused"),
        ([web.Response(text="<html>")], "is not a list of embeddings"),
        ([web.json_response({"data": [{"index": 1, "embedding": [1]}]})], "is not a list of embeddings"),
        ([web.json_response({"data": []})], "is not a list of embeddings"),
        ([web.json_response({"data": [{"embedding": []}]})], "is not a list of embeddings"),
        ([web.json_response({"data": [{"embedding": [1.0, None]}]})], "is not a list of embeddings"),
        ([web.json_response({"data": [{"embedding": [1e300, 1e300]}]})], "is not a list of embeddings"),
        ([web.Response(text='{"data": [{"embedding": [NaN]}]}')], "is not a list of embeddings"),
        ([web.json_response({"data": [{"embedding": "?"}]})], "is not a list of embeddings"),
        ([web.json_response({"data": [{"embedding": [[1.0]]}]})], "is not a list of embeddings"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_a_server_that_fails_or_answers_nonsense_is_named_with_what_to_do(answers: Any, words: str) -> None:
    fresh = [web.Response(body=item.body, status=item.status, headers=item.headers) for item in answers]
    async with embeddings_peer(failures=fresh) as found:
        with pytest.raises(EmbeddingUnavailable, match=words) as raised:
            await of(found).embed(["tray"])
    assert "sk-word" not in str(raised.value)


@pytest.mark.fault("search in documents: models of different dimension in one index, store or answer")
async def test_vectors_of_different_lengths_in_one_answer_are_refused() -> None:
    def cut(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [{**item, "embedding": item["embedding"][: 64 - item["index"]]} for item in items]

    async with embeddings_peer(change=cut) as found:
        with pytest.raises(EmbeddingUnavailable, match="is not a list of embeddings"):
            await of(found).embed(TEXTS)


@pytest.mark.fault("search in documents: models of different dimension in one index, store or answer")
async def test_an_index_of_another_length_is_made_again_when_the_model_has_changed() -> None:
    store = MemoryStore()
    caller = Caller("key", nobody)
    async with embeddings_peer() as found:
        for dimensions in (64, 32):
            found.dimensions = dimensions
            model = of(found)
            shelf = Shelf(readings(store), model, DocumentCache.create())
            opened = await shelf.open("files/b/manual.txt", caller_of("ann", "chat", "key"))
            index = await shelf.indexed(opened, lambda _: None, caller)
            assert index.dense.d == 64  # the old one is found in the store
            [vector] = await model.embed(["clean the tray"], caller=caller)
            assert vector.shape == (dimensions,)
            cosines = await shelf.similarities(opened, index, vector, lambda _: None, caller)
            assert len(cosines) == len(index.chunks)
            again = await shelf.open("files/b/manual.txt", caller_of("ann", "chat", "key"))
            assert again.index is not None
            assert again.index.dense.d == dimensions


async def test_tokens_count_for_the_caller() -> None:
    spent: list[tuple[Usage, str]] = []
    caller = Caller("key", nobody, spend=lambda usage, model="": spent.append((usage, model)))
    async with embeddings_peer() as found:
        await of(found).embed(["clean the tray"], caller=caller)
    assert spent == [(Usage(prompt_tokens=3), MODEL)]


@pytest.mark.fault("search in documents: an embeddings deployment the caller may not use")
async def test_a_caller_who_may_not_use_the_deployment_is_refused_and_others_go_on() -> None:
    ann, bob = Caller("key-ann", nobody), Caller("key-bob", nobody)
    async with embeddings_peer(open_keys={"key-bob"}) as found:
        endpoint = EmbeddingsEndpoint(None, found.url, MODEL, MODEL)
        shelf = Shelf(readings(), RemoteEmbeddings(endpoint), DocumentCache.create())
        opened = await shelf.open("files/b/manual.txt", caller_of("ann", "chat", "key-ann"))
        refused, index = await asyncio.gather(
            *(shelf.indexed(opened, lambda _: None, caller) for caller in (ann, bob)), return_exceptions=True
        )  # both wait for the work that the first one's key started
    assert isinstance(refused, EmbeddingUnavailable)
    assert "refuses the key" in str(refused)
    assert isinstance(index, DocumentIndex)


@pytest.mark.parametrize("of_core", [True, False])
async def test_the_product_embeds_by_a_deployment_of_core_or_by_an_address(tmp_path: Path, of_core: bool) -> None:
    turns = [searches(PLATE), reads_the_excerpts, repeats_the_tool]
    async with embeddings_peer() as found:
        models = {"words": {"type": "embedding", "endpoint": found.url}}
        by_address = {"embeddings": found.url, "embeddings_model": MODEL, "embeddings_key": "sk-word"}
        rag = {"embeddings": "words"} if of_core else by_address
        async with product(*turns, tmp_path=tmp_path, models=models, rag=rag) as p:
            url = await p.reader.upload("manual.txt", manual(8_000).encode(), "text/plain")
            answer = await p.reader.ask(PLATE, url)
    assert answer.stages[0].status == "completed"
    assert "Wash it in warm soapy water" in answer.content
    assert PLATE in found.texts
    assert ("sk-word" in found.peer.last.headers.get("Authorization", "")) is not of_core


async def test_with_embeddings_by_address_nothing_has_to_be_installed() -> None:
    settings = Settings.model_validate({"rag": {"embeddings": "words", "weights": "/no/embedding"}})
    [row] = await results(settings, "search in documents")
    assert (row.state, row.found) == ("ok", "embedded by words")
    [tool] = [tool for tool in default_tools(settings) if isinstance(tool, RagTool)]
    assert (await tool.state()).kind == "ready"


@pytest.mark.fault("search in documents: an address of embeddings or of an index that is none")
@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"EMBEDDINGS": "ftp://host/v1/embeddings"}, "the name of a deployment, or an address"),
        ({"EMBEDDINGS": "https://host/v1"}, "such as https://host/v1/embeddings"),
        ({"EMBEDDINGS": "https://host:port/v1/embeddings"}, "such as https://host/v1/embeddings"),
        ({"EMBEDDINGS": "https://ann:secret@host/v1/embeddings"}, "without a key"),
        ({"EMBEDDINGS": "https://host/v1/embeddings"}, "AGENT_RAG__EMBEDDINGS_MODEL has to name its model"),
        ({"INDEX_URL": "mysql://host/name"}, "postgresql://user:password@host/name"),
        ({"INDEX_URL": "postgresql://ann:secret#word@host/name"}, "postgresql://user:password@host/name"),
    ],
)
def test_an_address_that_is_none_stops_the_start(given: Mapping[str, str], words: str, tmp_path: Path) -> None:
    environ = {f"AGENT_RAG__{name}": value for name, value in given.items()}
    with pytest.raises(SettingsError, match=words) as refused:
        load_settings(environ=environ, directory=tmp_path)
    assert "secret" not in str(refused.value)
