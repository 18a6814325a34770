"""What tools by name cost a turn: CPU beside the same turn with the tools in the settings, and requests to Core.

A turn calls one of the tools. One without a call, which asks Core for nothing where the tools are in the settings, is
shown beside it.
"""

import json
import logging
import statistics
from collections import Counter, defaultdict
from collections.abc import Sequence
from contextlib import AsyncExitStack
from itertools import product
from pathlib import Path
from typing import Any

import aiohttp

from task.llm.scripted import Reply, says, wants
from tests.benchmarks import processes
from tests.benchmarks.bench_agent import ROUTE
from tests.benchmarks.figures import Figure, measure_and_report
from tests.support.callees import ALLOW, callee, entry
from tests.support.core import local_core
from tests.support.core_peers import config
from tests.support.upstream import Received, openai_upstream

TOOLS, TURNS, ROUNDS = 10, 40, 7
SCHEMA = {"type": "object", "properties": {"depth": {"type": "string", "enum": ["short", "long"]}}}
ALLOWED = {"AGENT_PERMISSIONS__RULES": json.dumps(ALLOW["rules"])}
DESCRIPTION = "Answers questions about the weather of the past and of the days to come, with its sources."


class Requests(logging.Handler):
    """Counts what local Core is asked, by the routes in its log."""

    def __init__(self) -> None:
        super().__init__()
        self.counts = Counter[str]()

    def emit(self, record: logging.LogRecord) -> None:
        if isinstance(record.args, tuple) and len(record.args) == 4:
            self.counts[str(record.args[1])] += 1


def answered(received: Received) -> Reply:
    called = received.last["role"] == "tool" or received.last["content"] == "Hi"
    return says("Hi.") if called else wants("weather-0", prompt="Will it rain?")


async def turns(port: int, text: str) -> None:
    body: dict[str, Any] = {"messages": [{"role": "user", "content": text}], "stream": True}
    async with aiohttp.ClientSession(f"http://127.0.0.1:{port}", headers={"Api-Key": "key-one"}) as session:
        for _ in range(TURNS):
            async with session.post(ROUTE, json=body) as response:
                assert b"Hi." in await response.read()


def in_settings(names: Sequence[str]) -> list[dict[str, Any]]:
    described = {"description": DESCRIPTION, "arguments": SCHEMA["properties"], "attachments": ["text/*"]}
    return [{"name": name, "deployment": name, **described} for name in names]


async def measured(folder: Path) -> list[Figure]:
    asked, core_log = Requests(), logging.getLogger("task.local.core.app")
    core_log.addHandler(asked)
    core_log.setLevel(logging.INFO)
    names = [f"weather-{number}" for number in range(TOOLS)]
    async with AsyncExitStack() as opened:
        oracle = await opened.enter_async_context(callee([{"content": "Yes."}], SCHEMA))
        upstream = await opened.enter_async_context(openai_upstream(then=answered))
        listed = entry(oracle, description=DESCRIPTION, inputAttachmentTypes=["text/*"])
        model = {"type": "chat", "endpoint": f"{upstream.endpoint}/openai/deployments/gpt-4o/chat/completions"}
        document = config(dict.fromkeys(names, listed), models={"gpt-4o": model})
        core = await opened.enter_async_context(local_core(document, folder))
        agents = list[processes.Application]()
        for place, tools in ((folder / "named", names), (folder / "settings", in_settings(names))):
            place.mkdir()
            variables = {
                "AGENT_DEPLOYMENTS__TOOLS": json.dumps(tools),
                "DIAL_ENDPOINT": core.url,
                "DDG_MCP_URL": "",
                **ALLOWED,
            }
            agents.append(await opened.enter_async_context(processes.application(0, place, core=0, **variables)))
        spent, requests = defaultdict[tuple[str, int], list[float]](list), 0.0
        for _, text, place in product(range(ROUNDS + 1), ("Weather?", "Hi"), range(2)):
            asked.counts.clear()
            before = agents[place].cpu()
            await turns(agents[place].port, text)
            spent[text, place].append((agents[place].cpu() - before) / TURNS * 1e3)
            if place == 0 and len(spent[text, place]) > 1:  # the first round warms up
                beside = sum(number for route, number in asked.counts.items() if "{operation}" not in route)
                requests = max(requests, beside / TURNS)
        core_log.removeHandler(asked)
    cpu = {kind: statistics.median(seconds[1:]) for kind, seconds in spent.items()}
    name = f"with {TOOLS} tools by name"
    return [
        Figure(f"a call {name}, CPU", cpu["Weather?", 0], "ms", bare=cpu["Weather?", 1], bare_goal=1.3),
        Figure(f"a turn {name}, no call, CPU", cpu["Hi", 0], "ms", bare=cpu["Hi", 1]),
        Figure("requests to Core beside completions", requests, "", 2),
    ]


if __name__ == "__main__":
    measure_and_report(measured)
