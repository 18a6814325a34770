"""How much one caller takes from another: the first words of a caller beside one who asks for as much as is allowed.

The wicked caller sends the worst text of every parser as a question and has it answered, has HTML read that takes
long, streams 200 chunks a second, has 100 documents indexed, keeps 8 kernels counting and follows a silent run 500
times. Each of these is measured alone first, then all at once, repeated until the documents are indexed.
Whoever is within the documented limits is answered, or the benchmark fails. With a PORT it is the wicked caller.
"""

import asyncio
import itertools
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from time import perf_counter

import aiohttp
import orjson
import uvloop

from tests.benchmarks import processes
from tests.benchmarks.bench_agent import ROUTE
from tests.benchmarks.figures import Figure, measure_and_report
from tests.benchmarks.load import Load, request
from tests.benchmarks.upstream import HTML, WICKED, planned
from tests.support.interpreter import TOKEN, running_interpreter
from tests.unit.test_worst_inputs import CASES, Repeated

ASKED, PAUSE = 300, 0.1  # of the other caller: a question each tenth of a second
CHARACTERS, LENGTH = 2_500, 40_000  # of a document, of a wicked text
DOCUMENTS, AT_ONCE, KERNELS, LISTENERS, SPIN = 100, 40, 8, 500, 10_000_000
STREAMS, WORDS, PAUSE_MS = 4, 500, 20  # 200 chunks a second for ten seconds
SECONDS, TIMES, SHARE = 600.0, 3.0, 10.0
DOCUMENTS_INDEXED = "documents"


class Wicked:
    """One caller's requests, all with one key."""

    def __init__(self, port: int) -> None:
        self.load = Load(port)
        self.port = port

    async def ask(self, script: str, **headers: str) -> None:
        question = request(ROUTE, script, key="wicked")
        for name, value in headers.items():
            question = question.replace(b"\r\n", f"\r\n{name}: {value}\r\n".encode(), 1)
        await self.load.ask(question, SECONDS)

    async def worst_texts(self) -> None:
        """One after the other, as a question and as an answer."""
        for _, *parts in CASES.values():
            text = Repeated(*parts)(LENGTH)
            await self.ask(f"words 1\n{text}")
            await self.ask(f"echo\n{text}")

    async def worst_files(self, round_: int) -> None:
        first = WICKED + round_ * len(HTML)
        await asyncio.gather(*(self.ask(f"search {first + number}") for number in range(len(HTML))))

    async def streams(self) -> None:
        await asyncio.gather(*(self.ask(f"paced {WORDS} {PAUSE_MS}") for _ in range(STREAMS)))

    async def documents(self, round_: int) -> None:
        slots = asyncio.Semaphore(AT_ONCE)

        async def index(number: int) -> None:
            async with slots:
                await self.ask(f"search {number}")

        await asyncio.gather(*(index(1 + round_ * DOCUMENTS + number) for number in range(DOCUMENTS)))

    async def kernels(self) -> None:
        spinning = (self.ask(f"spin {SPIN}", **{"X-CONVERSATION-ID": f"spin {number}"}) for number in range(KERNELS))
        await asyncio.gather(*spinning)

    async def follow(self, session: aiohttp.ClientSession, stack: AsyncExitStack) -> None:
        """Follow a run that is silent."""
        url = f"http://127.0.0.1:{self.port}"
        body = {"messages": [{"role": "user", "content": planned((), SECONDS, 1, 0.0)}]}
        async with session.post(f"{url}/runs", json=body) as response:
            assert response.status < 300, await response.text()
            run_id = (await response.json())["run_id"]
        for _ in range(LISTENERS):
            following = await stack.enter_async_context(session.get(f"{url}/runs/{run_id}/events"))
            assert following.status == 200, await following.text()


ITEMS: dict[str, Callable[[Wicked, int], Awaitable[None]]] = {
    "worst texts": lambda caller, _: caller.worst_texts(),
    "worst files": lambda caller, round_: caller.worst_files(round_),
    "streams": lambda caller, _: caller.streams(),
    "kernels": lambda caller, _: caller.kernels(),
    DOCUMENTS_INDEXED: lambda caller, round_: caller.documents(round_),
}


async def of_wicked(port: int) -> None:
    """Print the seconds of each item alone; after a line of input, those of its slowest round beside the others."""
    caller = Wicked(port)
    await caller.ask("search 0")  # loads the model
    await caller.kernels()  # starts them

    async def seconds(name: str, round_: int) -> float:
        started = perf_counter()
        await ITEMS[name](caller, round_)
        return perf_counter() - started

    print(orjson.dumps({name: await seconds(name, 0) for name in ITEMS}).decode(), flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    timeout, connector = aiohttp.ClientTimeout(SECONDS), aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session, AsyncExitStack() as stack:
        await caller.follow(session, stack)
        enough = asyncio.gather(seconds(DOCUMENTS_INDEXED, 1), asyncio.sleep(ASKED * PAUSE))

        async def slowest(name: str) -> float:
            found, rounds = 0.0, itertools.count(1)
            while not enough.done():
                found = max(found, await seconds(name, next(rounds)))
            return found

        others = [name for name in ITEMS if name != DOCUMENTS_INDEXED]
        found = dict(zip(others, await asyncio.gather(*map(slowest, others)), strict=True))
        print(orjson.dumps(found | {DOCUMENTS_INDEXED: (await enough)[0]}).decode(), flush=True)
    await asyncio.to_thread(sys.stdin.readline)  # until it is ended


async def first_words(load: Load, until: asyncio.Future[bytes] | None = None) -> list[float]:
    """Seconds to the first word of the other caller's questions: `ASKED`, and more until then."""
    found = list[float]()
    while len(found) < ASKED or (until is not None and not until.done()):
        found.append((await load.ask(request(ROUTE, "words 1", key="other"))).first)
        await asyncio.sleep(PAUSE)
    return found


def p99(seconds: Sequence[float]) -> float:
    return sorted(seconds)[int(0.99 * len(seconds))]


async def measured(folder: Path) -> list[Figure]:
    async with AsyncExitStack() as stack:
        (kernels := folder / "kernels").mkdir()
        interpreter = stack.enter_context(running_interpreter(kernels))
        upstream = await stack.enter_async_context(processes.upstream(str(CHARACTERS), core=None))
        settings = {"PYINTERPRETER_MCP_URL": interpreter.url, "AGENT_MCP_TOKEN": TOKEN}
        app = await stack.enter_async_context(processes.application(upstream, folder, core=None, **settings))
        await app.at_rest()
        load = Load(app.port)
        stack.callback(load.close)
        command = ("-m", "tests.benchmarks.bench_fairness", str(app.port))
        wicked = await stack.enter_async_context(processes.process(*command, core=None, log=None))
        assert wicked.stdin is not None
        assert wicked.stdout is not None
        alone = orjson.loads(await asyncio.wait_for(wicked.stdout.readline(), SECONDS))
        idle = await first_words(load)
        wicked.stdin.write(b"\n")
        ended = asyncio.ensure_future(asyncio.wait_for(wicked.stdout.readline(), SECONDS))
        beside = await first_words(load, ended)
        together = orjson.loads(await ended)
        idle += await first_words(load)
    return [
        Figure("first word of an idle agent, p99", p99(idle) * 1e3, "ms"),
        Figure(
            "first word beside a wicked caller, p99", p99(beside) * 1e3, "ms", bare=p99(idle) * 1e3, bare_goal=TIMES
        ),
        *(Figure(f"{name}, beside the others ÷ alone", together[name] / alone[name], "", SHARE) for name in ITEMS),
    ]


if __name__ == "__main__":
    if len(sys.argv) > 1:
        uvloop.run(of_wicked(int(sys.argv[1])))
    else:
        measure_and_report(measured)
