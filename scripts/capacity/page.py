"""Write docs/capacity.md from evaluation/capacity.toml; `--check` only reports whether it is current."""

from __future__ import annotations

import csv
import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

from scripts.capacity.assumptions import Assumptions, Engines, LogNormal, Prices
from scripts.capacity.costs import DOORS, FILE, Cost, Costs, DoorCosts, load
from scripts.capacity.model import ENGINES, Model, Sizing
from scripts.pages import publish

SOURCE = Path(__file__).parent / "page.md"
CHECKED = FILE.with_name("capacity_check.csv")
USERS = [10.0**power for power in range(3, 8)]
LOADS = (0.3, 0.6, 0.8, 0.9)
PIECES = {
    "turn": "a turn: an answer of one word",
    "call": "each call of a tool, with its request to the model",
    "word": "each chunk of an answer",
    "kilobyte": "each kB of a request to the model",
    "streamed": "each second in which an answer streams, with its events",
    "checkpoint": "each time that the trace of a turn under way is kept",
}
OTHER = {
    "code_call": ("a call of code, interpreter and kernel", 1e3, "ms of CPU"),
    "kernel": ("the start of a kernel", 1e3, "ms of CPU"),
    "kernel_memory": ("an idle kernel", 1e-6, "MB"),
    "embedding_chunk": ("a chunk of an index, embedding process", 1e3, "ms of CPU"),
    "index_chunk": ("a chunk of an index, agent", 1e3, "ms of CPU"),
    "index_chunk_memory": ("a chunk of an index, in Redis", 1e-3, "kB"),
    "index_redis": ("a new document", 1, "commands of Redis"),
    "question": ("a question to a document, agent", 1e3, "ms of CPU"),
    "question_embedding": ("a question to a document, embedding process", 1e3, "ms of CPU"),
    "question_redis": ("a question to a document", 1, "commands of Redis"),
    "agent_memory": ("an agent without work", 1e-6, "MB"),
    "run_memory": ("a turn under way", 1e-3, "kB"),
}
NEEDS = {
    "turns": "turns a second",
    "running": "turns under way",
    "words": "chunks a second",
    "agent_cores": "agents, cores in use",
    "replicas": "**agents, replicas**",
    "agent_memory": "agents, GB of memory",
    "connections": "PostgreSQL, connections at most",
    "statements": "PostgreSQL, statements a second",
    "commits": "PostgreSQL, commits a second",
    "iops": "PostgreSQL, I/O operations a second",
    "wal": "PostgreSQL, MB of WAL a second",
    "postgres_cores": "PostgreSQL, cores in use",
    "stored": "PostgreSQL, GB after 30 days",
    "nginx_cores": "nginx, cores in use",
    "redis": "Redis, commands a second",
    "redis_memory": "Redis, GB of indexes",
    "kernels": "interpreter, kernels alive",
    "code_cores": "interpreter, cores in use",
    "kernel_memory": "interpreter, GB of memory",
    "index_cores": "document search, cores in use",
    "price": "**a month, without the model, $**",
    "model_price": "the model's tokens a month, $",
}


def page(costs: Costs, checked: Sequence[Sequence[str]]) -> str:
    tables = {
        "slowness": f"{costs.slowness:.2g}",
        "pieces": "\n\n".join(f"{name}:\n\n{pieces(costs.doors[door])}" for door, name in DOORS.items()),
        "idle": row(costs.idle),
        "other": table(("piece of work", "cost", ""), _others(costs)),
        "assumed": table(("what", "assumed"), [*_assumed(Assumptions()), *_assumed(Engines()), *_assumed(Prices())]),
        "sizes": "\n\n".join(f"{name}:\n\n{sizes(Model(costs, door))}" for door, name in DOORS.items()),
        "waits": waits(costs),
        "limits": limits(costs),
        "checked": table(checked[0], checked[1:]),
    }
    text = SOURCE.read_text(encoding="utf-8")
    for name, lines in tables.items():
        assert f"{{{name}}}" in text, name
        text = text.replace(f"{{{name}}}", lines)
    return text


def sizes(model: Model, users: Sequence[float] = USERS) -> str:
    """The needs of so many daily users, a column for each number."""
    found = [model.sizing(count) for count in users]
    rows = [[title, *(short(_need(sizing, name)) for sizing in found)] for name, title in NEEDS.items()]
    return table(["daily users", *(f"{count:,.0f}" for count in users)], rows)


def pieces(costs: DoorCosts) -> str:
    head = ("piece of work", "agent, ms", "PostgreSQL, ms", "nginx, ms", "statements", "rows", "WAL, bytes")
    return table(head, [[title, *_cells(getattr(costs, name))] for name, title in PIECES.items()])


def waits(costs: Costs) -> str:
    models = {door: Model(costs, door) for door in DOORS}
    found = {door: [model.queueing(load) for load in LOADS] for door, model in models.items()}
    head = ("of a replica's core", *(f"{name}, {share}" for name in DOORS.values() for share in ("p50", "p99")))
    return table(
        head,
        [
            [
                f"{load:.0%}",
                *(f"{found[door][place].wait(share) * 1e3:.1f} ms" for door in DOORS for share in (0.5, 0.99)),
            ]
            for place, load in enumerate(LOADS)
        ],
    )


def limits(costs: Costs) -> str:
    most, models = Engines(), [Model(costs, door) for door in DOORS]
    rows = [
        [name, f"{limit(most):,.0f}", *(short(model.saturates(limit(most), need)) for model in models)]
        for name, (limit, need) in ENGINES.items()
    ]
    return table(("engine", "carries, as assumed", *(f"daily users, {name}" for name in DOORS.values())), rows)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return (
        "\n".join(f"| {' | '.join(line)} |" for line in lines)
        .replace("| --- | --- |", "|---|---|")
        .replace(" --- |", "---|")
    )


def row(cost: Cost) -> str:
    agent, postgres, _, statements, _, wal = _cells(cost)
    return f"{agent} ms of the agent's CPU, {postgres} ms of PostgreSQL's, {statements} statements, {wal} bytes of WAL"


def short(value: float) -> str:
    """Two digits, or whole numbers."""
    if value >= 100:
        digits = 2 - len(f"{value:.0f}")
        return f"{round(value, digits):,.0f}"
    return f"{value:.2g}" if value < 10 else f"{value:.0f}"


def _cells(cost: Cost) -> list[str]:
    times = [f"{round(value * 1e3, 6):.3g}" for value in (cost.agent, cost.postgres, cost.nginx)]
    return [*times, f"{cost.statements:.2g}", f"{cost.rows:.2g}", short(cost.wal)]


def _others(costs: Costs) -> list[list[str]]:
    return [[title, short(costs.other[name] * factor), unit] for name, (title, factor, unit) in OTHER.items()]


def _need(sizing: Sizing, name: str) -> float:
    return getattr(sizing, name) / (1e6 if name == "wal" else 1)


def _assumed(values: Assumptions | Engines | Prices) -> list[list[str]]:
    return [[item.name.replace("_", " "), _value(getattr(values, item.name))] for item in fields(values)]


def _value(value: object) -> str:
    match value:
        case LogNormal():
            return f"median {value.median:g}, 95th percentile {value.p95:g}"
        case dict():
            return ", ".join(f"{_key(key)} {part:g}" for key, part in value.items())  # pyright: ignore
        case _:
            return f"{value:,}"


def _key(key: object) -> str:
    return f"{key[0]} to {key[1]}:" if isinstance(key, tuple) else f"{key}"


def checks() -> list[list[str]]:
    with CHECKED.open(encoding="utf-8", newline="") as file:
        return list(csv.reader(file))


if __name__ == "__main__":
    sys.exit(publish("capacity.md", page(load(), checks()), "evaluation/capacity.toml", sys.argv[1:]))
