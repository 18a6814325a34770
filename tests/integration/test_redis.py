"""One Redis for several agents: what they share there, and what is left while it is away or refuses."""

import asyncio
import re
import time
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
from redis.asyncio import Redis

from task.cli.doctor import results
from task.dial.request import CallerLimit
from task.errors import TooManyRuns
from task.product import opened
from task.product.health import Health
from task.settings import Settings
from task.shared.redis_store import REPLICAS, SHARED, RedisStore
from task.store.access import StoreOptions
from task.store.store import open_store
from task.tools.mcp.hub import MCPHub, ServerSpec
from task.tools.models import Caller
from tests.support.certificates import certificate
from tests.support.clock import FakeClock
from tests.support.http_api import NOWHERE
from tests.support.mcp_wire import listed, raw_server
from tests.support.redis_server import RedisServer, redis_server
from tests.support.stores import sqlite_url
from tests.support.waiting import until

pytestmark = pytest.mark.system

ROOT = Path(__file__).parents[2]
OWNER = "ann"
PATIENT = 20.0  # on a busy machine


@asynccontextmanager
async def agents(redis: RedisServer | str, count: int = 2, **options: Any) -> AsyncGenerator[list[RedisStore]]:
    """The connections of several agents to one Redis."""
    url = redis if isinstance(redis, str) else redis.url
    chosen: dict[str, Any] = {"short_seconds": PATIENT, **options}
    async with AsyncExitStack() as stack:
        stores = [RedisStore(url, **chosen) for _ in range(count)]
        for store in stores:
            stack.push_async_callback(store.close)
        yield stores


@pytest.mark.fault("search in documents: many requests at once at several agents, some with wrong clocks")
async def test_a_limit_counts_over_all_agents_however_many_ask_at_once() -> None:
    async with redis_server() as redis, agents(redis, 4) as stores:
        began = monotonic()
        waits = await asyncio.gather(*(store.take("ann", 60) for store in stores * 30))
        other = await stores[0].take("bob", 60)
    allowed = waits.count(0.0)
    assert 60 <= allowed <= 60 + (monotonic() - began) + 1
    assert all(wait is not None and 0 <= wait <= 1.01 for wait in waits)
    assert other == 0.0


@pytest.mark.fault("search in documents: many requests at once at several agents, some with wrong clocks")
async def test_clocks_of_agents_that_differ_by_minutes_move_no_limit(tmp_path: Path) -> None:
    def skewed(seconds: float) -> float:
        return time.time() + seconds

    async with redis_server() as redis, agents(redis) as stores, AsyncExitStack() as stack:
        opened = [
            await open_store(
                StoreOptions(sqlite_url(tmp_path / str(ahead)), clock=partial(skewed, ahead), chores=False, redis=store)
            )
            for ahead, store in zip((-300, 300), stores, strict=True)
        ]
        for store in opened:
            stack.push_async_callback(store.close)
        allowed = [await store.limits.take("ann", 2) is None for store in (*opened, *opened)]
    assert allowed == [True, True, False, False]


@pytest.mark.fault("search in documents: Redis gone and back")
async def test_when_redis_goes_limits_are_counted_in_the_store_and_it_comes_back_by_itself(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = FakeClock()
    async with redis_server() as redis, agents(redis, 1, clock=clock.now) as [shared]:
        store = await open_store(StoreOptions(sqlite_url(tmp_path), chores=False, redis=shared))
        assert await store.limits.take("ann", 1) is None
        await redis.stop()
        assert await store.limits.take("ann", 1) is None  # the store has counted none of hers
        assert await store.limits.take("ann", 1) is not None
        for _ in range(3):
            await clock.advance(6)
            await store.limits.take("bob", 100)
        assert [record.message for record in caplog.records] == [
            "Redis cannot be reached. Until it can be used, limits, listings and documents are each agent's own."
        ]
        await redis.start()
        await clock.advance(6)
        assert [await shared.take("ann", 2), await shared.take("ann", 2)] == [0.0, 0.0]
        assert caplog.records[-1].message == "Redis can be used again."
        assert len(caplog.records) == 2
        await store.close()


@pytest.mark.fault("search in documents: a Redis that is silent or frozen")
async def test_a_frozen_redis_delays_a_request_by_its_short_patience_once() -> None:
    async with redis_server() as redis, agents(redis, 1, short_seconds=0.5, rest_seconds=3600) as [store]:
        async with asyncio.timeout(PATIENT):
            while await store.take("ann", 1000) is None:  # a busy machine may be as slow as a frozen one
                store._resting_until.clear()
        with redis.frozen():
            began = monotonic()
            async with asyncio.timeout(9):
                assert await asyncio.gather(*(store.take("ann", 1000) for _ in range(20))) == [None] * 20
                assert await store.take("ann", 1000) is None
        assert monotonic() - began < 9
        assert store.fault == "Redis does not answer in time"


REFUSING: dict[str, tuple[tuple[str, ...], str]] = {
    "read-only": (("--replicaof", "127.0.0.1", "9"), "This Redis is a read-only replica; AGENT_REDIS_URL must lead"),
    "full": (("--maxmemory", "1kb", "--maxmemory-policy", "noeviction"), "Redis is full; raise its maxmemory"),
    "no password": (("--requirepass", "right"), "Redis refuses the user name or the password of AGENT_REDIS_URL"),
    "wrong password": (("--requirepass", "right"), "Redis refuses the user name or the password of AGENT_REDIS_URL"),
    "acl": (
        ("--user", "default", "on", "nopass", "~*", "+@all", "-eval", "-set", "-get", "-del"),
        "Redis does not let the user of AGENT_REDIS_URL",
    ),
    "acl in scripts": (
        ("--user", "default", "on", "nopass", "~*", "+@all", "-time", "-set", "-get", "-del"),
        "Redis does not let the user of AGENT_REDIS_URL",
    ),
}


@pytest.mark.fault("search in documents: a Redis that is read-only, full, or refuses its user or a command")
@pytest.mark.parametrize("why", REFUSING)
async def test_a_redis_that_refuses_is_named_once_and_breaks_nothing(
    why: str, caplog: pytest.LogCaptureFixture
) -> None:
    options, named = REFUSING[why]
    async with redis_server(*options) as redis:
        url = redis.url.replace("//", "//:not-right@") if why == "wrong password" else redis.url
        async with agents(url, 1) as [store]:
            for _ in range(2):
                assert await store.take("ann", 1) is None
                assert await store.hold("here", "me") is None
                assert await store.get("text") is None
                await store.put("text", b"content", 60)
            assert store.fault.startswith(named)
    assert [record.message.startswith(named) for record in caplog.records] == [True]
    assert "not-right" not in caplog.text


async def test_the_documented_rights_of_a_user_are_enough_and_a_full_one_can_be_read() -> None:
    documented = (ROOT / "docs/operations.md").read_text(encoding="utf-8")
    [(keys, rights)] = re.findall(r"Allow `(~\S+)` and `([^`]+)`", documented)
    options = ("--user", "default", "on", "nopass", "resetkeys", keys, "-@all", *rights.split())
    async with redis_server(*options) as redis, agents(redis, 1) as [store]:
        assert await store.take("ann", 100) == 0
        assert await store.hold(REPLICAS, "me", 2) == 1
        assert await store.replicas() == 1
        await store.put("text", b"content", 60)
        assert await store.get("text") == b"content"
        await store.drop("text")
        await store.put_listing("server", b"[]", 60)
        assert await store.listing("server", 60) is not None
        await store.renew()
        await store.release(REPLICAS, "me")
        assert await store.replicas() == 0
        assert store.fault == ""
    async with redis_server() as redis, agents(redis, 1) as [store]:  # full, it still answers what is read
        await store.put("text", b"content", 60)
        async with Redis.from_url(redis.url) as client:
            await client.config_set("maxmemory", "1kb")
        assert await store.take("ann", 1) is None
        assert await store.get("text") == b"content"


@pytest.mark.fault("search in documents: an agent killed while it answers a caller's requests")
@pytest.mark.fault("search in documents: Redis gone and back")
async def test_places_are_limited_held_over_a_restart_and_free_after_the_lease_of_a_killed_agent() -> None:
    clock = FakeClock()
    async with (
        redis_server() as redis,
        agents(redis, 2, lease_seconds=4, beat_seconds=0.5, clock=clock.now) as [one, other],
    ):
        assert [await one.hold("room", "a", 2), await other.hold("room", "b", 2)] == [1, 2]
        assert [await one.hold("room", "c", 2), await one.hold("room", "a", 2)] == [0, 2]
        await redis.stop()
        await one.renew()
        await redis.start()  # empty
        await clock.advance(6)
        for store in (one, other):
            await store.renew()
        await one.release("room", "a")
        assert await other.hold("room", "c", 2) == 2
        assert other._beating is not None
        other._beating.cancel()  # as a killed process: it renews nothing and releases nothing

        async def free() -> bool:
            return await one.hold("room", "d", 1) == 1

        await until(free)


@pytest.mark.fault("search in documents: a damaged or another person's listing in Redis")
@pytest.mark.parametrize("forward_key", [False, True])
async def test_an_agent_that_starts_finds_the_listing_of_another_until_it_is_old_but_not_of_another_caller(
    forward_key: bool,
) -> None:
    offered, asked = ["one"], list[dict[str, Any]]()
    clock = FakeClock()
    async with (
        redis_server() as redis,
        agents(redis) as stores,
        raw_server({"tools/list": lambda _: listed(*offered)}, asked) as url,
        AsyncExitStack() as stack,
    ):
        spec = ServerSpec("it", url, forward_key=forward_key)
        one, other = (MCPHub([spec], redis=store, clock=clock.now) for store in stores)
        elsewhere = MCPHub([ServerSpec("it", url, token="another")], redis=stores[0])
        for hub in (one, other, elsewhere):
            stack.push_async_callback(hub.close)
        assert await names(one, "ann") == await names(other, "bob") == await names(other, "ann") == ["one"]
        keys = [request["headers"].get("Api-Key") for request in asked if request["method"] == "tools/list"]
        assert keys == (["key-of-ann", "key-of-bob"] if forward_key else [None])
        offered.append("two")
        assert await names(elsewhere, "ann") == ["one", "two"]  # asked for with another token
        renamed = MCPHub([ServerSpec("named", url, forward_key=forward_key)], redis=stores[0])
        stack.push_async_callback(renamed.close)
        assert await names(renamed, "ann") == ["one", "two"]  # what is listed has the server's name
        async with Redis.from_url(redis.url) as client:
            for key in await client.keys(f"{SHARED}mcp:*"):
                assert 0 < await client.ttl(key) <= 60
                await client.set(key, b"damaged")
        await clock.advance(61)
        await names(other, "bob")

        async def refreshed() -> bool:
            return await names(other, "bob") == ["one", "two"]

        await until(refreshed)


@pytest.mark.fault("search in documents: Redis gone and back")
async def test_doctor_and_readiness_report_whether_redis_can_be_used_and_name_no_address(tmp_path: Path) -> None:
    async with redis_server() as redis, agents(redis) as stores:
        for store in stores:
            await store.hold(REPLICAS, store.own_id)
        settings = Settings.model_validate({
            "backend": "openai", "openai_base_url": f"{NOWHERE}/v1", "data_dir": tmp_path, "redis_url": redis.url,
        })  # fmt: skip
        [row] = await results(settings, "redis")
        assert (row.state, row.found) == ("ok", "can be read and written; agents connected: 2")
        await redis.stop()
        [row] = await results(settings, "redis")
        assert (row.state, row.found) == ("bad", "Redis cannot be reached.")
    assert await results(Settings(), "redis") == []
    services, profile = opened(settings)
    try:
        await services.warm_up()
        report = await Health(services, profile).report()
    finally:
        await services.close()
    assert report.degraded == ("redis: Redis cannot be reached",)


@pytest.mark.fault("search in documents: a Redis whose certificate is not trusted or is another host's")
async def test_a_certificate_is_verified_and_its_authority_can_be_named(tmp_path: Path) -> None:
    made, foreign = certificate(tmp_path / "here"), certificate(tmp_path / "other", "elsewhere.test")

    def options(of: Any) -> tuple[str, ...]:
        return (
            "--tls-cert-file", str(of.certificate), "--tls-key-file", str(of.key), "--tls-auth-clients", "no",
            "--tls-ca-cert-file", str(of.authority),
        )  # fmt: skip

    async def taken(redis: RedisServer, url: str) -> tuple[float | None, str]:
        async with agents(url, 1) as [store]:
            return await store.take("ann", 100), store.fault

    untrusted = "The certificate of Redis is not trusted; add ?ssl_ca_certs="
    async with redis_server(*options(made)) as redis:
        url = redis.url.replace("redis:", "rediss:")
        wait, fault = await taken(redis, url)
        assert (wait, fault.startswith(untrusted)) == (None, True)
        assert await taken(redis, f"{url}?ssl_ca_certs={made.authority}") == (0.0, "")
        assert (await taken(redis, f"{url}?ssl_ca_certs={foreign.authority}"))[1].startswith(untrusted)
    async with redis_server(*options(foreign)) as redis:  # the right authority, and the name of another host
        url = redis.url.replace("redis:", "rediss:")
        assert (await taken(redis, f"{url}?ssl_ca_certs={foreign.authority}"))[1].startswith(untrusted)
    async with redis_server() as redis:
        assert await taken(redis, redis.url.replace("redis:", "rediss:")) == (None, "Redis does not answer in time")


def person(name: str) -> Caller:
    async def principal() -> str:
        return name

    return Caller(f"key-of-{name}", principal, "conversation")


async def names(hub: MCPHub, name: str) -> list[str]:
    return [tool.name for tool in (await hub.discover(person(name))).tools]


@pytest.mark.fault("search in documents: Redis gone and back")
async def test_requests_of_a_caller_are_counted_over_agents_and_by_each_without_redis() -> None:
    async def ann() -> str:
        return "ann"

    async def bob() -> str:
        return "bob"

    async with redis_server() as redis, agents(redis) as stores, AsyncExitStack() as stack:
        one, other = (CallerLimit(2, store) for store in stores)
        await stack.enter_async_context(one.admitted(ann))
        async with other.admitted(ann):
            with pytest.raises(TooManyRuns):
                await stack.enter_async_context(one.admitted(ann))
            async with one.admitted(bob), other.admitted(bob):
                pass
        async with other.admitted(ann):
            pass
        await redis.stop()
        async with other.admitted(ann), other.admitted(ann):
            with pytest.raises(TooManyRuns):
                await stack.enter_async_context(other.admitted(ann))
