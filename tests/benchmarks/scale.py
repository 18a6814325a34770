"""Many conversations before three replicas that are killed, frozen, cut off and replaced: what is lost or done twice.

`python -m tests.benchmarks.scale [--seed 1] [--seconds 300] [--conversations 200] [--logs FOLDER]` starts PostgreSQL,
Redis, HAProxy, nginx, two interpreters, three agents whose clocks are five minutes apart, and a deterministic model.
The first third of the time has no faults; then they come at random times, which follow from the seed, under the same
load. People read their answers as clients should: they send a request that fails once more under its
`Idempotency-Key`, and ask again for the events after the last one they have. At the end all sessions, runs and
questions are read back and compared with what people were told, and with what the tools have written; what cannot be
read in time is asked for again. Exit code 1 where something was lost or done twice, where an agent failed unexpectedly
(HTTP 500), or where as many questions were refused as answered; 2 where the machine was too slow to find out. FOLDER
gets the logs of the agents.
"""

import argparse
import asyncio
import random
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack
from glob import glob
from pathlib import Path
from time import perf_counter

import aiohttp

from tests.benchmarks import processes
from tests.benchmarks.scale_audit import Report, audit, unsettled, verdict
from tests.benchmarks.scale_faults import Faults
from tests.benchmarks.scale_people import ANSWER_SECONDS, Person, Turn
from tests.support.cluster import FAKETIME, cluster
from tests.support.interpreter import TOKEN
from tests.support.interpreter_fleet import interpreter_fleet
from tests.support.postgres_server import DEBIAN

SECONDS, CONVERSATIONS, SEED = 300.0, 200, 1
CLOCKS = (0, 300, -300)  # seconds by which the replicas' clocks are off
QUIET = 1 / 3  # the share of the time without faults
RATE = 5  # questions a second, which two cores answer
NEEDED = {"haproxy": "haproxy", "nginx": "nginx-light", "redis-server": "redis-server"}
CODERS = 20  # of so many people one runs code


def variables(upstream: int) -> dict[str, str]:
    """The settings of agents before the deterministic model."""
    return {
        "AGENT_BACKEND": "openai", "OPENAI_BASE_URL": f"http://127.0.0.1:{upstream}/v1",
        "OPENAI_API_KEY": "sk-test", "DEPLOYMENT_NAME": "bench", "AGENT_LOG_LEVEL": "WARNING",
    }  # fmt: skip


async def scale(folder: Path, seed: int, seconds: float, conversations: int) -> int:
    """Run it all and print the figures; the exit code."""
    async with AsyncExitStack() as stack:
        upstream = await stack.enter_async_context(processes.upstream(core=None))
        kernels = folder / "kernels"
        kernels.mkdir()
        fleet = await stack.enter_async_context(interpreter_fleet(kernels, 2))
        more = {"PYINTERPRETER_MCP_URL": fleet.url, "AGENT_MCP_TOKEN": TOKEN}
        made = await stack.enter_async_context(cluster(folder, variables(upstream) | more, clocks=CLOCKS))
        connector, timeout = aiohttp.TCPConnector(limit=0), aiohttp.ClientTimeout(ANSWER_SECONDS)
        session = await stack.enter_async_context(aiohttp.ClientSession(connector=connector, timeout=timeout))
        thinks = conversations / RATE * 0.5, conversations / RATE * 1.5
        keys = await made.keys([f"person-{number}" for number in range(conversations)])
        people = [Person(number, made.url, key, session, thinks) for number, key in enumerate(keys)]
        for person in people[::CODERS]:
            person.codes = True
        began = perf_counter()
        faults_from, until = began + seconds * QUIET, began + seconds
        faults = Faults(made, random.Random(seed), min(60.0, seconds * (1 - QUIET) / 3))
        stopping = asyncio.Event()
        asyncio.get_running_loop().call_later(seconds, stopping.set)
        talking = asyncio.gather(*(person.converse(seed, stopping) for person in people))
        await asyncio.sleep(seconds * QUIET)
        await asyncio.gather(talking, faults.work(until))
        running = await unsettled(people)
        report = await audit(people, made.notes())
        for run_id in running:
            report.add(report.lost, "ends of runs", run_id)
    print(f"Seed {seed}, {conversations} conversations, {seconds:g} s; clocks of the agents five minutes apart.")
    print("Faults: " + ", ".join(f"{name} {count} ×" for name, count in sorted(faults.done.items())))
    turns = [turn for person in people for turn in person.turns]
    answered = sum(turn.seconds is not None for turn in turns)
    early = sum(turn.began <= faults_from for turn in turns)
    rates = early / (seconds * QUIET), (len(turns) - early) / (seconds * (1 - QUIET))
    print(
        f"Questions {len(turns):,} ({rates[0]:.1f} a second without faults, {rates[1]:.1f} with them), "
        f"answered {answered:,}, late {sum(turn.late for turn in turns):,}"
    )
    _print_counts(report, turns)
    _print_seconds([turn for person in people for turn in person.turns[1:]], faults_from)
    for kind, example in report.examples.items():
        print(f"  {kind}: {example}")
    code, reason = verdict(report, turns)
    print(reason)
    return code


def _print_counts(report: Report, turns: Sequence[Turn]) -> None:
    refused = Counter(turn.refused for turn in turns if turn.refused)
    figures = {"Lost": report.lost, "Duplicated": report.duplicated, "Failed": report.failed, "Refused": refused}
    for name, counts in figures.items():
        kinds = ", ".join(f"{kind} {count}" for kind, count in counts.most_common())
        print(f"{name} {counts.total()}" + (f": {kinds}" if kinds else ""))


def percentile(values: Sequence[float], share: float) -> float:
    return sorted(values)[min(int(share * len(values)), len(values) - 1)]


def _print_seconds(turns: Sequence[Turn], faults_from: float) -> None:
    """Without everybody's first turn, for which agents and kernels load what they need."""
    quiet = [turn.seconds for turn in turns if turn.seconds and turn.began + turn.seconds <= faults_from]
    later = [turn.seconds for turn in turns if turn.seconds and turn.began > faults_from]
    for name, share in (("p50", 0.5), ("p99", 0.99)):
        if not (quiet and later):
            print(f"{name} added: too few answers to measure it")
            continue
        before, after = percentile(quiet, share), percentile(later, share)
        print(f"{name} added {after - before:.2f} s ({before:.2f} s without faults, {after:.2f} s with them)")


def missing() -> list[str]:
    """The Debian packages that are not there."""
    found = [package for command, package in NEEDED.items() if shutil.which(command) is None]
    found += [] if shutil.which("postgres") or glob(f"{DEBIAN}/postgres") else ["postgresql"]
    return [*found, *([] if glob(FAKETIME) else ["faketime"])]


def main() -> None:
    options = argparse.ArgumentParser(prog="make scale")
    options.add_argument("--seed", type=int, default=SEED)
    options.add_argument("--seconds", type=float, default=SECONDS)
    options.add_argument("--conversations", type=int, default=CONVERSATIONS)
    options.add_argument("--logs", type=Path, help="a folder for the logs of the agents")
    given = options.parse_args()
    if given.seconds < 10 or given.conversations < 2:
        options.error("SECONDS is at least 10, CONVERSATIONS at least 2")
    if packages := missing():
        sys.exit(f"make scale needs these Debian packages: {' '.join(packages)}")
    with tempfile.TemporaryDirectory() as folder:
        try:
            code = asyncio.run(scale(Path(folder), given.seed, given.seconds, given.conversations))
        except TimeoutError:
            code = 2
            print("This measured nothing: the machine was too slow for a fault, or for its end.")
        finally:
            if given.logs is not None:
                given.logs.mkdir(parents=True, exist_ok=True)
                for log in Path(folder).glob("*/agent.log"):
                    shutil.copy(log, given.logs / f"{log.parent.name}.log")
    sys.exit(code)


if __name__ == "__main__":
    main()
