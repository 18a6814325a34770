"""The cost of Python: the first call of a conversation, a warm call through the agent's tool, a kernel's memory, twenty
conversations at once. Server and kernels are real and in the sandbox; times are medians.
"""

import asyncio
import statistics
import tempfile
import time
import urllib.request
from collections.abc import Generator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import orjson
import psutil

from task.conversation.messages import FunctionCall, Message, ToolCall
from task.tools.models import ToolCallParams
from task.tools.py_interpreter.python_code_interpreter_tool import PythonCodeInterpreterTool
from tests.benchmarks.figures import Figure, median_seconds, quiet_machine, report
from tests.support.choices import CALLER, RecordedStage, RecordingChoice
from tests.support.interpreter import TOKEN, RunningInterpreter, Talk, running_interpreter

FIRST, WARM, AT_ONCE, IDLE = 5, 60, 20, 8
MIB = 2**20
WORK = "import pandas as pd; int(pd.Series(range(1000)).sum())"


@contextmanager
def server(*options: str) -> Generator[RunningInterpreter]:
    with tempfile.TemporaryDirectory() as folder, running_interpreter(Path(folder), *options) as running:
        yield running


async def spare_ready(running: RunningInterpreter, count: int = 1) -> None:
    """Return when this many kernels wait for a conversation."""
    while True:
        with urllib.request.urlopen(f"{running.origin}/health", timeout=5) as answer:
            if orjson.loads(answer.read())["spare_kernels"] >= count:
                return
        await asyncio.sleep(0.05)


async def first_calls(running: RunningInterpreter) -> float:
    times: list[float] = []
    async with running.client() as client:
        await client.get_tools()
        for number in range(FIRST):
            await spare_ready(running)
            talk = Talk(client, f"first {number}")
            times.append(await median_seconds(partial(talk.run, "1 + 1"), 1))
    return statistics.median(times) * 1000


async def run_code(tool: PythonCodeInterpreterTool, *earlier: Message) -> Message:
    choice = RecordingChoice()
    stage = RecordedStage("stage", opened=True, choice=choice)
    asked = ToolCall("c", FunctionCall("execute_code"))
    message = await tool.execute(
        ToolCallParams(asked, stage, choice, "key", "warm", {"code": "1 + 1"}, CALLER, earlier=earlier)
    )
    assert not message.failed, message.text()
    return message


async def warm_calls(running: RunningInterpreter) -> float:
    tool = await PythonCodeInterpreterTool.create("http://127.0.0.1:9", running.url, token=TOKEN)
    first = await run_code(tool)
    seconds = await median_seconds(partial(run_code, tool, first), WARM)
    await tool.close()
    return seconds * 1000


async def memory(*options: str) -> float:
    """MiB of one of several idle kernels with its sandbox and its part of the template, from which all are forked."""
    with server("--spares", str(IDLE), *options) as running:
        await spare_ready(running, IDLE)
        children = psutil.Process(running.process.pid).children(recursive=True)
        return sum(child.memory_full_info().pss for child in children) / MIB / IDLE


async def twenty_at_once(running: RunningInterpreter) -> tuple[int, float]:
    async with running.client(seconds=120) as client:
        started = time.perf_counter()
        results = await asyncio.gather(*(Talk(client, f"at once {n}", f"person {n}").run(WORK) for n in range(AT_ONCE)))
    return sum(result["result"] == "499500" for result in results), time.perf_counter() - started


async def measured() -> list[Figure]:
    with server() as running:
        first, warm = await first_calls(running), await warm_calls(running)
        answered, seconds = await twenty_at_once(running)
    return [
        Figure("first call of a new conversation", first, "ms", goal=10, judged=quiet_machine()),
        Figure("warm call through the agent's tool", warm, "ms", goal=6, judged=quiet_machine()),
        Figure("idle kernel", await memory("--bare"), "MiB PSS", goal=25),
        Figure("kernel with pandas and matplotlib", await memory(), "MiB PSS", goal=45),
        Figure(f"of {AT_ONCE} conversations at once answered", answered, "", goal=AT_ONCE, at_least=True),
        Figure(f"{AT_ONCE} conversations at once", seconds, "s", goal=6, judged=quiet_machine()),
    ]


if __name__ == "__main__":
    report(asyncio.run(measured()))
