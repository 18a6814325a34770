"""Measure the work of the tools' own processes: kernels, documents that are indexed and searched, Redis."""

from __future__ import annotations

import asyncio
import statistics
import tempfile
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

from redis.asyncio import Redis

from scripts.capacity.assumptions import Assumptions
from tests.benchmarks import processes
from tests.benchmarks.bench_agent import ROUTE
from tests.benchmarks.bench_interpreter import code_tool, memory, run_code, server
from tests.benchmarks.load import Load, request
from tests.benchmarks.replicas import cpu_of
from tests.support.interpreter import Talk
from tests.support.redis_server import redis_server

CALLS, KERNELS, DOCUMENTS, SEARCHES = 40, 6, 4, 4
CHARACTERS = 30_000
MIB = 2**20


async def other_costs() -> dict[str, float]:
    return {**await _interpreter(), **await _documents()}


async def _interpreter() -> dict[str, float]:
    with server() as running:
        spent = partial(_spent, running.process.pid)
        tool = await code_tool(running)
        await run_code(tool)
        call = await spent(lambda: run_code(tool), CALLS)
        await tool.close()
        async with running.client() as client:
            talks = [Talk(client, f"conversation {number}", f"person {number}") for number in range(KERNELS)]
            first = iter(talks)
            kernel = await spent(lambda: next(first).run("1 + 1"), KERNELS)
    return {
        "code_call": call, "kernel": max(kernel - call, 0.0), "kernel_memory": await memory() * MIB,
    }  # fmt: skip


async def _spent(pid: int, work: Callable[[], Awaitable[object]], times: int) -> float:
    """CPU seconds of the process and its children for one piece of the work."""
    before = cpu_of(pid, itself=True)
    for _ in range(times):
        await work()
    await asyncio.sleep(0.5)
    return (cpu_of(pid, itself=True) - before) / times


async def _documents() -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        async with (
            redis_server() as server,
            Redis(port=server.port) as redis,
            processes.upstream(
                str(CHARACTERS), module="tests.benchmarks.document_upstream", core=None
            ) as upstream,
            processes.application(
                upstream, Path(folder), core=None, AGENT_RAG__PROCESS_DIR=f"{folder}/embedder",
                AGENT_REDIS_URL=server.url,
            ) as app,
        ):  # fmt: skip
            load = Load(app.port)
            await app.at_rest()
            await load.ask(request(ROUTE, "search 0"))  # loads the model
            found = [await _search(app, redis, load, number) for number in range(1, DOCUMENTS + 1)]
            again = [await _search(app, redis, load, 1) for _ in range(SEARCHES)]
            load.close()
    index, question = ([statistics.mean(column) for column in zip(*rows, strict=True)] for rows in (found, again))
    chunks = CHARACTERS / Assumptions().chunk_characters
    agent, children, commands, size = (new - old for new, old in zip(index, question, strict=True))
    return {
        "index_chunk": max(agent, 0.0) / chunks, "embedding_chunk": max(children, 0.0) / chunks,
        "index_redis": commands, "index_chunk_memory": max(size, 0.0) / chunks,
        "question": question[0], "question_embedding": question[1], "question_redis": question[2],
    }  # fmt: skip


async def _search(
    app: processes.Application, redis: Redis, load: Load, number: int
) -> tuple[float, float, float, float]:
    """CPU seconds of the agent and of its children, Redis' commands, and bytes in Redis."""
    before = app.cpu(), cpu_of(app.pid), *await _redis(redis)
    await load.ask(request(ROUTE, f"search {number}"))
    await app.at_rest()
    after = app.cpu(), cpu_of(app.pid), *await _redis(redis)
    agent, children, commands, size = (late - early for early, late in zip(before, after, strict=True))
    return agent, children, commands - 1, size  # without the one that asked for this


async def _redis(redis: Redis) -> tuple[float, float]:
    found = await redis.info()
    return float(found["total_commands_processed"]), float(found["used_memory"])
