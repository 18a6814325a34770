"""The cost of the workspace tools: `python -m tests.benchmarks.bench_workspace`."""

import asyncio
import statistics
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

from task.tools.workspace.commands import Commands
from task.tools.workspace.files import edit, read, search, write
from task.tools.workspace.launcher import sandbox_here
from task.tools.workspace.root import Workspace
from tests.benchmarks.figures import Figure, median_seconds, quiet_machine, report

ROUNDS, CALLS, STARTS = 15, 200, 15
FILES, LINES = 1_000, 100
TEXT = "y = 0\n" + "x = 1\n" * LINES
GOALS = {"bubblewrap": 20.0, "landlock": 45.0}  # milliseconds over a plain process


def measure() -> list[Figure]:
    """Microseconds of work on a small file, milliseconds of a search and of a command."""
    with TemporaryDirectory() as folder, Workspace(Path(folder)) as workspace:
        small = workspace.path / "small.py"
        write(workspace, small.name, TEXT)
        plain = _microseconds(small.read_text)
        reads = _microseconds(lambda: read(workspace, small.name))
        writes = _microseconds(lambda: write(workspace, small.name, TEXT))
        edits = _microseconds(lambda: _edited(workspace, small.name)) / 2
        figures = [
            Figure("workspace: fs_read of a small file", reads, "µs", 100, bare=plain),
            Figure("workspace: fs_write of a small file", writes, "µs"),
            Figure("workspace: fs_edit of a small file", edits, "µs"),
        ]
        for number in range(FILES):
            write(workspace, f"src/{number % 20}/{number}.py", "some words of a line\n" * LINES)
        for name, pattern, regex in (("", "nowhere", False), (", an expression", r"no\w+here", True)):
            started = perf_counter()
            assert search(workspace, ".", pattern, regex=regex).detail == "[0 lines]"
            took = (perf_counter() - started) * 1_000
            figures.append(Figure(f"workspace: fs_search in {FILES:,} files{name}", took, "ms"))
        return [*figures, *asyncio.run(_commands(workspace))]


def _edited(workspace: Workspace, name: str) -> None:
    """Two edits: there and back."""
    assert edit(workspace, name, "y = 0", "y = 1").ok
    assert edit(workspace, name, "y = 1", "y = 0").ok


def _microseconds(work: Callable[[], object]) -> float:
    samples: list[float] = []
    for _ in range(ROUNDS):
        started = perf_counter()
        for _ in range(CALLS):
            work()
        samples.append((perf_counter() - started) / CALLS * 1e6)
    return statistics.median(samples)


async def _commands(workspace: Workspace) -> list[Figure]:
    best = sandbox_here()
    figures: list[Figure] = []
    for tier, goal in GOALS.items():
        sandbox = replace(best, tier=tier)
        if best.missing or (tier != "landlock" and tier != best.tier):
            continue
        async with Commands(workspace, sandbox=sandbox) as commands:
            assert (await commands.run("true")).ok

            async def confined(commands: Commands = commands) -> None:
                await commands.run("true")

            over = (await median_seconds(confined, STARTS) - await median_seconds(_plain, STARTS)) * 1_000
        name = f'workspace: shell_run("true") over a plain process, {tier}'
        figures.append(Figure(name, over, "ms", goal, judged=quiet_machine()))
    return figures


async def _plain() -> None:
    process = await asyncio.create_subprocess_exec("true")
    await process.wait()


if __name__ == "__main__":
    report(measure())
