"""How the CPU of a turn grows: with the messages before it, with the agent's tools, and that of turns with how many
conversations are open at once.

Each is measured at three sizes, ten times apart. A growth of 1 is linear: what the last step adds is as much a piece as
what the first one adds; it is the exponent of what is added over the smallest size. The slope is the last step's.
"""

import math
import statistics
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

from tests.benchmarks import processes
from tests.benchmarks.bench_agent import HISTORY, HTTP_ROUTE, ROUTE
from tests.benchmarks.figures import Figure, measure_and_report
from tests.benchmarks.load import Load, request

MESSAGES, TOOLS, CONVERSATIONS = (10, 100, 1_000), (5, 50, 500), (1, 10, 100)
ROUNDS, LEAST_TURNS, LINEAR = 7, 12, 1.15
TOOL = '''
@tool
async def tool_{number}(x: int, text: str = "") -> str:
    """Give number {number} back, whatever the text says."""
    return str(x)
'''


async def cost(app: processes.Application, work: Callable[[], Awaitable[object]], times: int) -> float:
    before = app.cpu()
    for _ in range(times):
        await work()
    return (app.cpu() - before) / times


async def medians(app: processes.Application, work: Mapping[int, Callable[[], Awaitable[object]]]) -> dict[int, float]:
    """CPU seconds at each size; sizes take turns, so that all of them meet the same machine."""
    found: dict[int, list[float]] = {size: [] for size in work}
    for number in range(ROUNDS + 1):
        for size, one in work.items():
            spent = await cost(app, one, LEAST_TURNS)
            if number:  # the first round warms up
                found[size].append(spent)
    return {size: statistics.median(costs) for size, costs in found.items()}


def growth(name: str, piece: str, costs: Mapping[int, float]) -> list[Figure]:
    (few, least), (some, middle), (many, most) = costs.items()
    exponent = math.log((most - least) / max(middle - least, 1e-9)) / math.log((many - few) / (some - few))
    return [
        *(Figure(f"{name}, CPU at {size:,}", seconds * 1e3, "ms") for size, seconds in costs.items()),
        Figure(f"{name}, slope of a {piece}", (most - middle) / (many - some) * 1e6, "µs"),
        Figure(f"{name}, growth", exponent, "", LINEAR, tolerance=0.0),
    ]


async def of_messages(app: processes.Application, load: Load, route: str) -> dict[int, float]:
    asked = {size: request(route, "words 1", (HISTORY * 5)[: size - 1]) for size in MESSAGES}
    return await medians(app, {size: partial(load.ask, question) for size, question in asked.items()})


async def of_conversations(app: processes.Application, load: Load) -> dict[int, float]:
    """Of all turns together, each with a call and an answer that streams."""
    asked = request(ROUTE, "chain 1")
    return await medians(app, {size: partial(load.ask_at_once, asked, size) for size in CONVERSATIONS})


async def of_tools(folder: Path, upstream: int, tools: int) -> float:
    (home := folder / f"tools-{tools}").mkdir()
    (more := home / "more_tools.py").write_text(
        "from task.tools.declare import tool\n" + "".join(TOOL.format(number=number) for number in range(tools)),
        encoding="utf-8",
    )
    async with processes.application(upstream, home, AGENT_TOOL_PATHS=str(more)) as app:
        await app.at_rest()
        load = Load(app.port)
        try:
            found = await medians(app, {tools: partial(load.ask, request(ROUTE, "words 1"))})
        finally:
            load.close()
    return found[tools]


async def measured(folder: Path) -> list[Figure]:
    async with AsyncExitStack() as stack:
        upstream = await stack.enter_async_context(processes.upstream())
        app = await stack.enter_async_context(processes.application(upstream, folder))
        await app.at_rest()
        load = Load(app.port)
        stack.callback(load.close)
        of_tool_counts = {tools: await of_tools(folder, upstream, tools) for tools in TOOLS}
        return [
            *growth("turn after messages", "message", await of_messages(app, load, ROUTE)),
            *growth("/v1 turn after messages", "message", await of_messages(app, load, HTTP_ROUTE)),
            *growth("turn with tools", "tool", of_tool_counts),
            *growth("turns of open conversations", "conversation", await of_conversations(app, load)),
        ]


if __name__ == "__main__":
    measure_and_report(measured)
