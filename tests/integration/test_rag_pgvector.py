"""Vectors in a real PostgreSQL with pgvector: shared by agents, and searched in memory while it cannot be used."""

import asyncio
import re
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

import asyncpg
import numpy as np
import pytest
import pytest_asyncio

from task.cli.doctor import results
from task.errors import ToolError
from task.search.ranking import Hit, StoredVectors, ranked
from task.search.readings import Readings
from task.search.shelf import DocumentCache, Opened, Shelf
from task.search.vectors import PgVectors, VectorsGone
from task.settings import Settings
from task.tools.models import Caller, nobody
from tests.support.document_turns import PLATE, reads_the_excerpts, repeats_the_tool, searches
from tests.support.documents import DirectReaders, MemoryFiles, manual
from tests.support.embedding import WordVectors, word_vector
from tests.support.embeddings_peer import MODEL, embeddings_peer
from tests.support.ports import free_port
from tests.support.postgres_server import PostgresServer, pgvector_server
from tests.support.product import product
from tests.support.tool_calls import caller_of

pytestmark = [pytest.mark.system, pytest.mark.asyncio(loop_scope="module")]

MANUAL = "files/bucket/manual.txt"
ANN = caller_of("ann", "chat-1", "key-ann")
CALLER = Caller("key-ann", nobody)
QUESTION = "How do I clean the turntable plate?"


@dataclass
class Agent:
    """An agent with the database at `url`, and no other store; `seconds` is its clock."""

    url: str
    model: WordVectors = field(default_factory=WordVectors)
    answer_seconds: int = 10
    kept_seconds: int = 3600
    seconds: float = 0.0

    def __post_init__(self) -> None:
        readings = Readings(MemoryFiles({MANUAL: manual().encode()}), DirectReaders())
        self.vectors = PgVectors(
            self.url, readings, seconds=self.kept_seconds, answer_seconds=self.answer_seconds,
            clock=lambda: self.seconds,
        )  # fmt: skip
        self.shelf = Shelf(readings, self.model, DocumentCache.create(), vectors=self.vectors)

    async def found(self) -> list[Hit]:
        """What a search finds, as the tool does it."""
        opened = await self.shelf.open(MANUAL, ANN)
        index = await self.shelf.indexed(opened, lambda _: None, CALLER)
        cosines = await self.shelf.similarities(opened, index, word_vector(QUESTION), lambda _: None, CALLER)
        return ranked([index], QUESTION, [cosines])

    async def opened(self) -> Opened:
        return await self.shelf.open(MANUAL, ANN)


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def running() -> AsyncGenerator[PostgresServer]:
    async with pgvector_server() as found:
        yield found


@pytest_asyncio.fixture(loop_scope="module")
async def server(running: PostgresServer) -> PostgresServer:
    """The server as it started, with an empty database."""
    if running.process is None:
        await running.start()
    running.database = "postgres"
    name = f"test_{uuid4().hex}"
    connection = await asyncpg.connect(running.url)
    await connection.execute(f"create database {name} template template0")
    await connection.close()
    running.database = name
    return running


async def in_memory() -> list[Hit]:
    return await Agent(f"postgresql://nobody@127.0.0.1:{free_port()}/none").found()


def places(hits: list[Hit]) -> list[tuple[int, float]]:
    return [(hit.chunk, round(hit.similarity, 4)) for hit in hits]


async def test_agents_share_what_one_has_indexed_and_find_what_is_found_in_memory(server: PostgresServer) -> None:
    one, other = Agent(server.url), Agent(server.url)
    assert places(await one.found()) == places(await other.found()) == places(await in_memory())
    assert (one.model.calls, other.model.calls) == (1, 0)
    found = (await other.opened()).index
    assert found is not None
    assert isinstance(found.dense, StoredVectors)


@pytest.mark.fault("search in documents: agents that index one document at the same time")
async def test_agents_that_index_one_document_at_the_same_time_keep_one_index(server: PostgresServer) -> None:
    rows = np.eye(3, 4, dtype=np.float32)
    first, *others = [await Agent(server.url).vectors.keep("a document", rows) for _ in range(3)]
    assert others == [first, first]  # none replaces what another may be searching
    found = await asyncio.gather(*(Agent(server.url).found() for _ in range(3)))
    assert all(places(item) == places(found[0]) for item in found)
    connection = await asyncpg.connect(server.url)
    assert await connection.fetchval("select count(*) from dial_agent_rag_index_2") == 2
    await connection.close()
    assert places(await Agent(server.url).found()) == places(found[0])


@pytest.mark.fault("search in documents: an index that expired, or that somebody deleted")
async def test_an_index_that_expired_or_that_somebody_deleted_is_made_again(server: PostgresServer) -> None:
    agent = Agent(server.url, kept_seconds=0)
    await agent.found()  # made, and expired at once
    connection = await asyncpg.connect(server.url)
    try:
        assert await agent.vectors.find("another", 1) is None
        keys = "select count(*) from dial_agent_rag_index_2"
        assert await connection.fetchval(keys) == 1
        await Agent(server.url).found()
        assert await connection.fetchval(keys) == 1
        assert await connection.fetchval("select count(distinct index_id) from dial_agent_rag_vector_2") == 1

        await connection.execute("delete from dial_agent_rag_index_2")
        agent = Agent(server.url)
        before = await agent.found()
        await connection.execute("delete from dial_agent_rag_index_2")
        assert places(await agent.found()) == places(before)
        assert agent.model.calls == 2
    finally:
        await connection.close()


@pytest.mark.fault("search in documents: models of different dimension in one index, store or answer")
async def test_an_index_of_another_length_is_replaced(server: PostgresServer) -> None:
    agent = Agent(server.url)
    await agent.found()
    opened = await agent.opened()
    assert opened.index is not None
    short = word_vector(QUESTION, 32)
    with pytest.raises(ToolError, match="different lengths"):  # this model goes on to answer with the other length
        await agent.shelf.similarities(opened, opened.index, short, lambda _: None, CALLER)
    assert agent.model.calls == 3  # and it was asked anew, not answered from the index


@pytest.mark.fault(
    "search in documents: a PostgreSQL of vectors that is gone, silent, read-only, full or without the extension"
)
@pytest.mark.parametrize("how", ["stopped", "frozen", "read-only", "full", "no extension"])
async def test_while_the_database_cannot_be_used_the_search_goes_on_in_memory(
    server: PostgresServer, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    expected = places(await in_memory())
    caplog.clear()
    agent = Agent(server.url, answer_seconds=2)
    connection = await asyncpg.connect(server.url)
    match how:
        case "stopped":
            await agent.found()
            await server.stop()
        case "frozen":
            await agent.found()
        case "read-only":
            await connection.execute(f"alter database {server.database} set default_transaction_read_only = on")
        case "full":
            await agent.found()
            agent = Agent(server.url)
            await connection.execute("delete from dial_agent_rag_index_2")
            await connection.execute(
                "create function full_disk() returns trigger language plpgsql as "
                "$$ begin raise exception 'could not extend file' using errcode = '53100'; end $$"
            )
            await connection.execute(
                "create trigger f before insert on dial_agent_rag_vector_2 execute function full_disk()"
            )
        case _:
            await connection.execute("create role plain login")
            await connection.execute("revoke create on schema public from public")
            agent = Agent(re.sub("//tester@", "//plain@", server.url))
    connection.terminate()
    async with asyncio.timeout(60):
        if how == "frozen":
            with server.frozen():
                assert places(await agent.found()) == expected
        else:
            assert places(await agent.found()) == expected
        assert places(await agent.found()) == expected
    lines = [record.getMessage() for record in caplog.records if "AGENT_RAG__INDEX_URL" in record.getMessage()]
    assert len(lines) == 1
    assert "tester" not in lines[0]


@pytest.mark.fault(
    "search in documents: a PostgreSQL of vectors that is gone, silent, read-only, full or without the extension"
)
async def test_a_database_that_is_back_is_used_again_after_a_rest(server: PostgresServer) -> None:
    agent = Agent(server.url)
    await server.stop()
    await agent.found()
    await server.start()
    with pytest.raises(VectorsGone):
        await agent.vectors.similarities(StoredVectors(1, 64), word_vector(QUESTION))
    agent.seconds += 60
    other = Agent(server.url)
    await other.found()
    assert await agent.vectors.find((await other.opened()).key, len((await other.opened()).document.chunks))


@pytest.mark.fault(
    "search in documents: a certificate of a PostgreSQL of vectors that is foreign or missing, or an option "
    "that is none"
)
async def test_a_certificate_that_is_missing_or_an_option_that_is_none_is_one_log_line(
    server: PostgresServer, caplog: pytest.LogCaptureFixture
) -> None:
    for option in ("sslmode=verify-full&sslrootcert=/none/ca.pem", "sslmode=require", "sslmode=perhaps"):
        caplog.clear()
        assert await Agent(f"{server.url}?{option}").found()
        assert len([record for record in caplog.records if "AGENT_RAG__INDEX_URL" in record.getMessage()]) == 1


@pytest.mark.fault("search in documents: a PostgreSQL of vectors that lacks something, in the eyes of an operator")
async def test_doctor_names_what_the_database_lacks(server: PostgresServer) -> None:
    async def row(url: str) -> tuple[str, str]:
        [check] = await results(Settings.model_validate({"rag": {"index_url": url}}), "document index")
        return check.state, check.found

    assert await row(server.url) == ("ok", "PostgreSQL with pgvector answers")
    state, found = await row(server.url.replace("//tester@", "//stranger@"))
    assert state == "note"
    assert 'role "stranger" does not exist' in found
    assert await results(Settings(), "document index") == []


async def test_the_product_searches_in_the_database_of_its_settings(
    server: PostgresServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    turns = [searches(PLATE), reads_the_excerpts, repeats_the_tool]
    async with embeddings_peer() as found:
        rag = {"embeddings": found.url, "embeddings_model": MODEL, "index_url": server.url}
        for folder in (tmp_path / "one", tmp_path / "two"):
            folder.mkdir()
            before = len(found.texts)
            async with product(*turns, tmp_path=folder, rag=rag) as p:
                url = await p.reader.upload("manual.txt", manual(8_000).encode(), "text/plain")
                answer = await p.reader.ask(PLATE, url)
            assert "Wash it in warm soapy water" in answer.content
    assert found.texts[before:] == [PLATE]  # the second agent embeds the question, and nothing of the document
    assert "AGENT_RAG__INDEX_URL" not in caplog.text
