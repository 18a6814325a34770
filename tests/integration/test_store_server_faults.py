"""A PostgreSQL that takes no writes, has no room, or shows a certificate that is not trusted."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import asyncpg
import pytest

from task.conversation.messages import user
from task.errors import SettingsError, StoreUnavailable
from task.store.database import open_database
from task.store.store import Store
from tests.support.certificates import Certificate, certificate
from tests.support.postgres_server import postgres_server
from tests.support.stores import opened

pytestmark = pytest.mark.system

OWNER = "ann"
NOT_ROOT = os.geteuid() != 0
READ_ONLY = "The store's database is read-only. An operator has to let AGENT_STORE__URL lead to the primary"
FULL = "The store is full"


async def add(store: Store) -> None:
    await store.sessions.start(OWNER)


@pytest.mark.fault("store: a database server that is read-only")
async def test_a_database_that_is_read_only_is_named_read_and_written_again_afterwards() -> None:
    async with postgres_server() as server, opened(server.url) as store:
        await add(store)
        operator = await asyncpg.connect(server.url)
        await operator.execute("ALTER SYSTEM SET default_transaction_read_only = on")
        await operator.execute("SELECT pg_reload_conf()")
        await _until_refused(store)
        with pytest.raises(StoreUnavailable, match=READ_ONLY):
            await add(store)
        assert len((await store.sessions.list(OWNER)).items) >= 1
        with pytest.raises(StoreUnavailable, match=READ_ONLY):
            async with opened(server.url):  # an agent that starts meanwhile
                pass
        await operator.execute("SET default_transaction_read_only = off")
        await operator.execute("ALTER SYSTEM RESET default_transaction_read_only")
        await operator.execute("SELECT pg_reload_conf()")
        await operator.close()
        await _until_written(store)


async def _until_refused(store: Store) -> None:
    for _ in range(500):
        try:
            await add(store)
        except StoreUnavailable:
            return
    raise AssertionError("the database was written all the time")


async def _until_written(store: Store) -> None:
    for _ in range(499):
        try:
            await add(store)
        except StoreUnavailable:
            continue
        return
    await add(store)


@contextmanager
def small_disk(mebibytes: int) -> Generator[Path]:
    """A file system of this size for the user postgres; the test is skipped where none can be mounted."""
    folder = Path(tempfile.mkdtemp(prefix="disk"))
    try:
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={mebibytes}m", "none", str(folder)], check=False)
        if mounted.returncode:
            pytest.skip("no file system can be mounted here")
        try:
            shutil.chown(folder, "postgres", "postgres")
            yield folder
        finally:
            subprocess.run(["umount", "--lazy", str(folder)], check=True)
    finally:
        folder.rmdir()


@pytest.mark.fault("store: a database server that is full")
async def test_a_database_without_room_is_named_and_written_again_once_there_is_some() -> None:
    with small_disk(40) as disk:
        async with postgres_server() as server:
            operator = await asyncpg.connect(server.url)
            await operator.execute(f"CREATE TABLESPACE small LOCATION '{disk}'")
            await operator.execute("CREATE DATABASE small TABLESPACE small")
            await operator.close()
            server.database = "small"
            async with opened(server.url) as store:
                session = await store.sessions.start(OWNER)
                long = random.Random(1).randbytes(1_000_000).hex()  # does not compress
                filling = await asyncpg.connect(server.url)
                await filling.execute("CREATE TABLE filler (text text)")
                rows = "INSERT INTO filler SELECT repeat('x', 1000) FROM generate_series(1, 100)"
                with pytest.raises(asyncpg.PostgresError):
                    await filling.execute(f"DO $$ BEGIN FOR i IN 1..1000 LOOP {rows}; COMMIT; END LOOP; END $$")
                with pytest.raises(StoreUnavailable, match=FULL):
                    await store.sessions.append(OWNER, session.session_id, [user(long)], session.version)
                assert (await store.sessions.get(OWNER, session.session_id)).length == 0
                await filling.execute("DROP TABLE filler")
                await filling.close()
                await store.sessions.append(OWNER, session.session_id, [user(long)], session.version)
                assert (await store.sessions.get(OWNER, session.session_id)).length == 1


@pytest.mark.fault("store: a database server without TLS, or whose certificate is not trusted or another host's")
async def test_a_certificate_of_the_server_is_verified_and_its_authority_can_be_named() -> None:
    with certificates("localhost") as made:
        tls = [f"ssl_cert_file={made.certificate}", f"ssl_key_file={made.key}", "ssl=on"]
        async with postgres_server(*(item for option in tls for item in ("-c", option))) as server:
            by_name = server.url.replace("127.0.0.1", "localhost")
            root = f"&sslrootcert={made.authority}"
            for url in (f"{by_name}?sslmode=require", f"{by_name}?sslmode=verify-full{root}",
                        f"{server.url}?sslmode=verify-ca{root}"):  # fmt: skip
                async with opened(url) as store:
                    assert await store.keys.list() == ()
            for url in (f"{by_name}?sslmode=verify-full", f"{server.url}?sslmode=verify-full{root}"):
                with pytest.raises(StoreUnavailable, match="certificate of the store's server is not trusted"):
                    async with opened(url, patience=2):
                        pass


@pytest.mark.fault("store: a database server without TLS, or whose certificate is not trusted or another host's")
async def test_a_server_without_tls_is_named_where_the_address_demands_it() -> None:
    async with postgres_server() as server:
        with pytest.raises(StoreUnavailable, match="does not offer TLS"):
            async with opened(f"{server.url}?sslmode=require", patience=2):
                pass


@contextmanager
def certificates(name: str) -> Generator[Certificate]:
    """Files that the user postgres may read."""
    with tempfile.TemporaryDirectory(prefix="tls") as folder:
        made = certificate(Path(folder), name)
        if not NOT_ROOT:
            for file in (Path(folder), made.certificate, made.key):
                shutil.chown(file, "postgres", "postgres")
        yield made


@pytest.mark.fault("store: an address of a database server with a wrong scheme, option, mode or file")
@pytest.mark.parametrize(
    ("url", "named"),
    [
        ("mysql://me:SECRET@host/name", "it must be sqlite:///"),
        ("postgresql://me:SECRET@host/name?sslmode=always", "there is no sslmode 'always'"),
        ("postgresql://me:SECRET@host/name?sslmode=verify-full&sslrootcert=/nowhere/ca.crt", "/nowhere/ca.crt"),
        ("postgresql://me:SECRET@host/name?sslcert=x", "option 'sslcert' is not known"),
    ],
)
def test_an_address_of_a_server_that_cannot_be_meant_is_refused(url: str, named: str) -> None:
    with pytest.raises(SettingsError, match=named) as refused:
        open_database(url)
    assert "SECRET" not in str(refused.value)
