"""Indexes in memory, as bytes, and in a store that may be away or damaged."""

import asyncio
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from task.documents.extract import extract
from task.errors import SettingsError
from task.search.chunks import chunk_document
from task.search.ranking import DocumentIndex, build_index, indexed_texts, search
from task.search.shelf import DocumentCache
from task.settings import load_settings
from task.shared.redis_store import RedisStore
from tests.support.embedding import word_vector


def index_of(text: str, name: str = "notes.md") -> DocumentIndex:
    document = chunk_document(name, extract(name, text.encode()).blocks, ("a note",))
    return build_index(document, np.stack([word_vector(text) for text in indexed_texts(document)]))


def test_the_documented_cache_keeps_an_index_with_its_chunks_for_its_time() -> None:
    import faiss

    cache, index = DocumentCache.create(), faiss.IndexFlatL2(4)
    cache.set("conversation_files/b/a.txt", index, ["one", "two"])
    assert cache.get("conversation_files/b/a.txt") == (index, ["one", "two"])
    assert cache.get("another") is None

    cache = DocumentCache.create(ttl_seconds=0)
    cache.set("key", faiss.IndexFlatL2(4), ["one"])
    assert cache.get("key") is None


@pytest.mark.fault("search in documents: eviction while in use")
def test_the_cache_stays_within_its_bytes_without_what_is_larger_and_what_was_got_stays_usable() -> None:
    kept = index_of("# Tray\n\nWash it in warm water.")
    cache = DocumentCache.create(max_bytes=400_000)
    cache.set_index("first", kept)
    got = cache.get_index("first")
    for number in range(200):
        cache.set_index(f"document {number}", index_of("The door seal is checked every spring. " * 60))
    assert 0 < cache.size_bytes <= 400_000
    assert cache.get_index("first") is None
    assert got is not None
    assert search([got], "warm water", word_vector("warm water"))[0].chunk == 0

    cache = DocumentCache.create(max_bytes=1000)
    cache.set_index("large", index_of("word " * 1000))
    assert (cache.get_index("large"), cache.size_bytes) == (None, 0)


def test_threads_may_share_the_cache() -> None:
    cache, index, start = DocumentCache.create(max_bytes=50_000), index_of("word " * 300), threading.Barrier(8)

    def work(number: int) -> None:
        start.wait(5)
        for step in range(200):
            cache.set_index(f"{number}-{step % 7}", index)
            cache.get_index(f"{(number + 1) % 8}-{step % 7}")

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    assert cache.size_bytes <= 50_000


@pytest.mark.fault("search in documents: Redis gone and back")
async def test_a_redis_that_is_down_returns_nothing_and_is_not_retried_at_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    seconds = 100.0
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        url = f"redis://:secret-word@127.0.0.1:{probe.getsockname()[1]}/0"
    store = RedisStore(url, rest_seconds=5, clock=lambda: seconds)
    assert await store.get("key") is None
    await store.put("key", b"value", 60)
    seconds += 6
    assert await store.get("key") is None
    assert len(caplog.records) == 1  # of one outage
    assert "secret-word" not in caplog.text
    await store.close()


@pytest.mark.fault("search in documents: a Redis that is silent or frozen")
async def test_a_redis_that_is_silent_is_waited_for_once() -> None:
    asked: list[bytes] = []

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.read(10))
        await reader.read()
        writer.close()

    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    store = RedisStore(f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}/0", answer_seconds=0.1)
    async with asyncio.timeout(20):
        assert await store.get("key") is None
        assert await store.get("key") is None
    await store.close()
    server.close()
    assert len(asked) == 1


@pytest.mark.fault("search in documents: an address of Redis with a wrong scheme, port, option or file, or two of them")
@pytest.mark.fault("search in documents: a store's address that is none")
@pytest.mark.parametrize("url", ["localhost:6379", "http://:secret@localhost:6379", "redis:///0", "unix://"])
def test_an_address_that_is_not_a_redis_is_refused_at_the_start(url: str, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"AGENT_REDIS_URL .*such as redis://localhost:6379/0") as refused:
        load_settings(environ={"AGENT_REDIS_URL": url}, directory=tmp_path)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    "url", ["redis://:secret@cache:6379/0", "rediss://cache?ssl_cert_reqs=none", "unix:///run/redis.sock?db=1"]
)
def test_every_way_to_a_redis_is_accepted(url: str, tmp_path: Path) -> None:
    settings = load_settings(environ={"AGENT_REDIS_URL": url}, directory=tmp_path)
    assert settings.redis_url is not None
    assert settings.redis_url.get_secret_value() == url
    RedisStore(url).check()


@pytest.mark.fault("search in documents: an address of Redis with a wrong scheme, port, option or file, or two of them")
@pytest.mark.parametrize(
    ("url", "named"),
    [
        ("redis://cache?ssl_ca=x", "no option 'ssl_ca'"),
        ("redis://:secret@cache:abc/0", "port is not a number"),
        ("redis://:secret@cache/first", "its database is not a number"),
        ("unix:///run/redis.sock?db=first", "its database is not a number"),
        ("redis://cache?decode_responses=true", "no option 'decode_responses'"),
        ("rediss://:secret@cache?ssl_cert_reqs=perhaps", "ssl_cert_reqs is none, optional or required"),
        ("redis://:secret@cache?ssl_ca_certs=ca.crt", "ssl_ca_certs needs rediss://"),
        ("rediss://:secret@cache?ssl_ca_certs=/nowhere/ca.crt", "ssl_ca_certs /nowhere/ca.crt: No such file"),
        (f"rediss://:secret@cache?ssl_ca_certs={__file__}", "contains no certificate"),
    ],
)
def test_an_address_with_options_that_cannot_be_used_is_refused_at_the_start(url: str, named: str) -> None:
    with pytest.raises(SettingsError, match=named) as refused:
        RedisStore(url).check()
    assert "secret" not in str(refused.value)
