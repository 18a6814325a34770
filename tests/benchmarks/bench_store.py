"""The cost of the store: a page of a full store, a trace beside an answer, an event, the start.

`python -m tests.benchmarks.bench_store`; with BENCH_STORE_URL=postgresql://… for another database than a file.
"""

import asyncio
import os
import random
from collections.abc import Awaitable, Callable
from functools import partial
from itertools import product
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import uvloop
from sqlalchemy import Connection, insert

from task.conversation.messages import FunctionCall, ToolCall, assistant, tool_message, user
from task.llm.base import Usage
from task.runs.traces import TraceRecorder, TraceStart
from task.store import tables
from task.store.access import StoreOptions
from task.store.records import SessionFilter, packed
from task.store.search import reindex
from task.store.store import Store, open_store
from task.store.trace_records import TraceFilter
from tests.benchmarks.figures import Figure, measure_and_report, median_seconds, quiet_machine

SESSIONS, TRACES, OWNERS = 10_000, 100_000, 4
CONVERSATIONS = 500  # that one transaction adds
REPEATS, ROUNDS, TURNS = 30, 100, 20
CALL = ToolCall("call_1", FunctionCall("calculator", '{"expression": "25*47"}'))


async def measure(folder: Path) -> list[Figure]:
    url = os.environ.get("BENCH_STORE_URL") or f"sqlite:///{folder / 'store.db'}"
    started = perf_counter()
    store = await open_store(StoreOptions(url))
    opened = perf_counter() - started
    try:
        return [
            Figure("store: first opening", opened * 1e3, "ms"),
            *await cost_figures(store),
            *await page_figures(store),
            *await conversation_figures(store),
        ]
    finally:
        await store.close()


async def cost_figures(store: Store) -> list[Figure]:
    """CPU of this process for traces of short and long runs, and for events."""
    await _traced(store, TURNS)  # warms up
    alone = await median_seconds(lambda: _traced(store, 0), ROUNDS, process_time)
    long = await median_seconds(lambda: _traced(store, TURNS), ROUNDS, process_time)

    async def crowd() -> None:
        await asyncio.gather(*(_traced(store, 0) for _ in range(ROUNDS)))

    together = await median_seconds(crowd, 3, process_time) / ROUNDS
    events = 2000
    run = await store.runs.start("owner-0")
    started = process_time()
    for number in range(events):
        store.runs.append_event(run.run_id, "text", text=f"word {number} ")
    await store.runs.finish(run, "finished")
    spent = process_time() - started
    return [
        Figure("trace of a short answer, CPU", alone * 1e3, "ms"),
        Figure("trace of one of many answers at once, CPU", together * 1e3, "ms"),
        Figure("trace, CPU per extra tool turn", (long - alone) / TURNS * 1e3, "ms", 0.2),
        Figure("event of a run, CPU", spent / events * 1e6, "µs", 20),
    ]


async def page_figures(store: Store) -> list[Figure]:
    """Pages of 50 out of 10,000 sessions and 100,000 traces."""
    await store.database.write(_fill)
    deep = (await store.traces.list("owner-1")).cursor
    for _ in range(20):
        deep = (await store.traces.list("owner-1", 1000, deep)).cursor
    filtered = {
        "by experiment": TraceFilter(experiment="e7"),
        "by status": TraceFilter(status="failed"),
        "of one session": TraceFilter(session_id="sess_00000001"),
        "of no such door": TraceFilter(door="none"),
        "of a rare model": TraceFilter(model="rare"),
        "rated down": TraceFilter(rating="down"),
        "with a tool": TraceFilter(tool="calculator"),
        "with a rare tool": TraceFilter(tool="rare"),
        "with a common word": TraceFilter(text="product"),
        "without that word": TraceFilter(text="nowhere"),
    }
    pages: dict[str, Callable[[], Awaitable[Any]]] = {
        "sessions": lambda: store.sessions.list("owner-1"),
        "traces of one owner": lambda: store.traces.list("owner-1"),
        "traces, twenty thousand further on": lambda: store.traces.list("owner-1", cursor=deep),
        "traces of all owners": lambda: store.traces.list(None),
        **{f"traces {name}": partial(store.traces.list, "owner-1", which=which) for name, which in filtered.items()},
    }
    return [
        Figure(f"page of {name}", await median_seconds(work, REPEATS) * 1e3, "ms", 50, judged=quiet_machine())
        for name, work in pages.items()
    ]


async def conversation_figures(store: Store) -> list[Figure]:
    """Lists and searches of one person with 10,000 conversations of four messages."""
    for first in range(0, SESSIONS, CONVERSATIONS):
        await store.database.write(partial(_fill_conversations, first))
    searches = {
        "list of conversations": SessionFilter(origins=("page", "console"), families=True),
        "search that finds one": SessionFilter(f"needle{SESSIONS // 2}", families=True),
        "search that finds nothing": SessionFilter("missing needle", families=True),
        "search that finds most": SessionFilter("word1 ", families=True),
    }
    figures = list[Figure]()
    for name, which in searches.items():
        seconds = await median_seconds(lambda which=which: store.sessions.list("person", 40, None, which), REPEATS)
        figures.append(Figure(f"{name}, of {SESSIONS:,}", seconds * 1e3, "ms", 100, judged=quiet_machine()))
    return figures


def _fill_conversations(first: int, connection: Connection) -> None:
    chosen = random.Random(first)
    numbers = range(first, first + CONVERSATIONS)
    sessions = [
        {
            "id": f"sess_p{n:07x}", "family": f"sess_p{n:07x}", "owner": "person", "title": f"needle{n}",
            "origin": "page", "started_at": float(n), "updated_at": float(n), "version": 1, "length": 4,
        }
        for n in numbers
    ]  # fmt: skip
    connection.execute(insert(tables.sessions), sessions)
    rows = list[dict[str, Any]]()
    for n, place in product(numbers, range(4)):
        text = " ".join(f"word{number}" for number in chosen.choices(range(20_000), k=120))
        message = assistant(text) if place % 2 else user(text)
        rows.append({"session_id": f"sess_p{n:07x}", "position": place, "data": packed(message.as_stored())})
    connection.execute(insert(tables.messages), rows)
    reindex(connection, *(f"sess_p{n:07x}" for n in numbers))


def _fill(connection: Connection) -> None:
    sessions = [
        {
            "id": f"sess_{n:08x}", "owner": f"owner-{n % OWNERS}", "title": f"Number {n}", "started_at": float(n),
            "updated_at": float(n), "version": 1, "length": 2,
        }
        for n in range(SESSIONS)
    ]  # fmt: skip
    connection.execute(insert(tables.sessions), sessions)
    observer = TraceRecorder(None, TraceStart("", "http", "gpt-4o", asked=(user("25*47?"),)), "")
    _run_turns(observer, 1)
    from task.store.traces import _row

    data = _row(observer.trace(), None)["data"]
    for start in range(0, TRACES, 10_000):
        numbers = range(start, start + 10_000)
        connection.execute(insert(tables.traces), [_trace_row(n, data) for n in numbers])
        connection.execute(insert(tables.trace_words), list(map(_words, numbers)))


def _words(n: int) -> dict[str, str]:
    tools = " calculator rare " if n % 10_000 == 1 else " calculator "
    return {"trace_id": f"trace_{n:08x}", "tools": tools, "text": f"what is the product of {n} and 47? " * 8}


def _trace_row(n: int, data: str) -> dict[str, Any]:
    return {
        "id": f"trace_{n:08x}", "owner": f"owner-{n % OWNERS}", "door": "http",
        "session_id": f"sess_{n % SESSIONS:08x}",
        "experiment": f"e{n % 100}", "model": "rare" if n % 10_000 == 1 else "gpt-4o",
        "rating": "down" if n % 500 == 1 else None, "status": "failed" if n % 1000 == 1 else "finished",
        "started_at": float(n), "completed_at": n + 1.0, "total_tokens": 100, "data": data,
    }  # fmt: skip


async def _traced(store: Store, turns: int) -> None:
    observer = TraceRecorder(store.traces, TraceStart("owner-0", "http", "gpt-4o", asked=(user("25*47?"),)))
    _run_turns(observer, turns)
    observer.record()
    await store.writer.flush()


def _run_turns(observer: TraceRecorder, turns: int) -> None:
    for _ in range(turns):
        observer.model_answered(assistant(None, [CALL]), Usage(100, 10), 0.1)
        observer.call_ended(CALL, tool_message(CALL, "1175"), 0.001)
    observer.model_answered(assistant("It is 1175."), Usage(120, 5), 0.1)
    observer.end("finished")


if __name__ == "__main__":
    measure_and_report(measure, uvloop.run)
