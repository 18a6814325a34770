"""Many conversations for minutes before the whole product: agent, interpreter with real kernels, deterministic model.

`python -m tests.benchmarks.product_load [--seconds 240] [--conversations 100] [--observed]` prints the figures and
exits 1 when a goal is missed. A person asks, waits for the whole answer, thinks, and asks again; every fifth question
needs code. The code adds to a variable of its kernel and the answer has to say the sum, so that no conversation may
lose its state.
With `--observed` half of the conversations have an agent with metrics, spans and JSON log lines, and the other half one
without; the difference is what they cost.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import tempfile
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter

import aiohttp
import orjson
import psutil
import uvloop

from task.store.store import open_store
from tests.benchmarks import processes
from tests.benchmarks.figures import Figure, quiet_machine, report
from tests.benchmarks.upstream import WORD
from tests.support.collector import collector
from tests.support.interpreter import TOKEN, running_interpreter

SECONDS, CONVERSATIONS = 240.0, 100
WORDS, PAUSE_MS, EVERY = 40, 20, 5  # of an answer, between its words, of whose questions one needs code
THINKS = (2.0, 6.0)  # seconds
ANSWER_SECONDS = 120
WARM_UP = 0.25  # the share of the time after which memory is to be what it stays
MIB = 2**20


@dataclass(slots=True)
class Findings:
    """What the people of one agent got: seconds of their answers, and what was wrong, by its kind."""

    answers: list[float] = field(default_factory=list[float])
    with_code: list[float] = field(default_factory=list[float])
    errors: Counter[str] = field(default_factory=Counter[str])


@dataclass(slots=True)
class Person:
    """One conversation. Its first code runs at a question of its own, so that not all need a kernel at once."""

    number: int
    url: str
    key: str
    findings: Findings
    total: int = 0

    async def converse(self, session: aiohttp.ClientSession, until: float) -> None:
        chosen = random.Random(self.number)
        await asyncio.sleep(chosen.uniform(0, THINKS[1]))
        session_id = await self._started(session)
        turn = self.number
        while perf_counter() < until:
            turn += 1
            try:
                await self._ask(session, session_id, code=turn % EVERY == 0)
            except (aiohttp.ClientError, TimeoutError, AssertionError) as error:
                self.findings.errors[f"{type(error).__name__}: {error}"[:200]] += 1
            await asyncio.sleep(chosen.uniform(*THINKS))

    async def _started(self, session: aiohttp.ClientSession) -> str:
        async with session.post(f"{self.url}/session/start", headers=self._headers) as response:
            return (await response.json())["session_id"]

    async def _ask(self, session: aiohttp.ClientSession, session_id: str, *, code: bool) -> None:
        asked, script = self.number + 1, f"paced {WORDS} {PAUSE_MS}"
        if code:
            script, self.total = f"add {asked}", self.total + asked
        body = {"session_id": session_id, "stream": True, "messages": [{"role": "user", "content": script}]}
        started = perf_counter()
        async with session.post(f"{self.url}/v1/chat/completions", json=body, headers=self._headers) as response:
            answer = await response.read()
            assert response.status == 200, f"HTTP {response.status}"
        seconds = perf_counter() - started
        text = "".join(map(_text, answer.splitlines()))
        if code:
            assert f"sum={self.total};" in text, "another sum" if "sum=" in text else "no sum"
        else:
            assert text == WORD * WORDS, "an incomplete answer"
        self.findings.answers.append(seconds)
        if code:
            self.findings.with_code.append(seconds)

    @property
    def _headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.key}"}


def _text(line: bytes) -> str:
    if not line.startswith(b"data: {"):
        return ""
    chunk = orjson.loads(line[6:])
    assert "error" not in chunk, chunk["error"].get("code") or "an error"
    return "".join(choice["delta"].get("content") or "" for choice in chunk["choices"])


@asynccontextmanager
async def agent(
    folder: Path, upstream: int, interpreter: str, people: Sequence[int], **settings: str
) -> AsyncGenerator[tuple[processes.Application, list[Person]]]:
    """An agent, and its people with a key each."""
    folder.mkdir()
    store = await open_store(f"sqlite:///{folder / 'store.db'}", chores=False)
    try:
        keys = [(await store.keys.create(f"person-{number}"))[1] for number in people]
    finally:
        await store.close()
    running = processes.application(
        upstream, folder, core=None, PYINTERPRETER_MCP_URL=interpreter, AGENT_MCP_TOKEN=TOKEN, AGENT_HTTP__MODE="keys",
        AGENT_LIMITS__TOOL_SECONDS=str(ANSWER_SECONDS), **settings,
    )  # fmt: skip
    async with running as app:
        findings = Findings()
        yield (
            app,
            [Person(n, f"http://127.0.0.1:{app.port}", key, findings) for n, key in zip(people, keys, strict=True)],
        )


async def megabytes(pids: Sequence[int], seconds: float) -> list[float]:
    """The memory of the processes, once a second."""
    found: list[float] = []
    until = perf_counter() + seconds
    while perf_counter() < until:
        found.append(sum(psutil.Process(pid).memory_info().rss for pid in pids) / MIB)
        await asyncio.sleep(1)
    return found


def grown(samples: Sequence[float]) -> float:
    """The memory at the end as a multiple of that after the warm-up; medians, because it goes up and down."""
    tenth = max(len(samples) // 10, 1)
    first = int(len(samples) * WARM_UP)
    return statistics.median(samples[-tenth:]) / statistics.median(samples[first : first + tenth])


def percentile(values: Sequence[float], share: float) -> float:
    return sorted(values)[min(int(share * len(values)), len(values) - 1)] if values else float("inf")


async def load(
    folder: Path, seconds: float, conversations: int, *, observed: bool
) -> tuple[list[Figure], Counter[str]]:
    """The figures of so many conversations in so many seconds, and how often what was wrong."""
    quiet = quiet_machine()
    async with AsyncExitStack() as stack:
        upstream = await stack.enter_async_context(processes.upstream(core=None))
        kernels = folder / "kernels"
        kernels.mkdir()
        interpreter = stack.enter_context(running_interpreter(kernels))
        kinds: dict[str, dict[str, str]] = {"plain": {}}
        if observed:
            url, _ = await stack.enter_async_context(collector())
            off, on = (
                {"AGENT_METRICS__ENABLED": "false"},
                {"AGENT_LOG_FORMAT": "json", "OTEL_EXPORTER_OTLP_ENDPOINT": url},
            )
            kinds = {"plain": off, "observed": on}
        agents: list[tuple[processes.Application, list[Person]]] = []
        for place, (kind, settings) in enumerate(kinds.items()):
            people = range(place, conversations, len(kinds))
            started = agent(folder / kind, upstream, interpreter.url, people, **settings)
            agents.append(await stack.enter_async_context(started))
        for app, _ in agents:
            await app.at_rest()
        before = [app.cpu() for app, _ in agents]
        pids = [*(app.pid for app, _ in agents), interpreter.process.pid]
        timeout = aiohttp.ClientTimeout(ANSWER_SECONDS)
        connector = aiohttp.TCPConnector(limit=0)
        session = await stack.enter_async_context(aiohttp.ClientSession(timeout=timeout, connector=connector))
        until = perf_counter() + seconds
        people = [person for _, people in agents for person in people]
        measuring = asyncio.create_task(megabytes(pids, seconds))
        await asyncio.gather(*(person.converse(session, until) for person in people))
        memory = await measuring
        findings = [people[0].findings for _, people in agents]
        errors = sum((found.errors for found in findings), Counter[str]())
        answers = [value for found in findings for value in found.answers]
        code = [value for found in findings for value in found.with_code]
        spent = [
            (app.cpu() - cpu) / max(len(found.answers), 1) * 1e3
            for (app, _), cpu, found in zip(agents, before, findings, strict=True)
        ]
        figures = [
            Figure("answers", len(answers), ""),
            Figure("of them with code", len(code), ""),
            Figure("errors", errors.total(), "", 0),
            Figure("answer, median", percentile(answers, 0.5), "s"),
            Figure("answer, p99", percentile(answers, 0.99), "s", 5, judged=quiet),
            Figure("answer with code, median", percentile(code, 0.5), "s"),
            Figure("answer with code, p99", percentile(code, 0.99), "s", 5, judged=quiet),
            Figure("memory of agent and interpreter at the end", memory[-1], "MB"),
            Figure("the same ÷ after the warm-up", grown(memory), "", 1.05, tolerance=0.0),
            Figure("agent, CPU per answer", spent[0], "ms"),
        ]
        if observed:
            ratio = spent[1] / spent[0]
            figures += [
                Figure("the same with metrics, spans, JSON log lines", spent[1], "ms"),
                Figure("observed ÷ not observed", ratio, "", 1.05, tolerance=0.0),
            ]
        return figures, errors


def main() -> None:
    options = argparse.ArgumentParser(prog="make bench-load")
    options.add_argument("--seconds", type=float, default=SECONDS)
    options.add_argument("--conversations", type=int, default=CONVERSATIONS)
    options.add_argument("--observed", action="store_true")
    given = options.parse_args()
    if given.seconds < 10 or given.conversations < 2:
        options.error("SECONDS is at least 10, CONVERSATIONS at least 2")
    with tempfile.TemporaryDirectory() as folder:
        figures, errors = uvloop.run(load(Path(folder), given.seconds, given.conversations, observed=given.observed))
    for error, count in errors.most_common():
        print(f"{count:6} × {error}")
    report(figures, check=True)


if __name__ == "__main__":
    main()
