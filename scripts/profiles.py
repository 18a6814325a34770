"""Draw where the CPU time of a tool turn, of an answer after a long history and of a call of code goes.

`python -m scripts.profiles` runs the agent in front of the benchmarks' upstream. At each tick of its CPU clock it notes
which rooms and libraries the event loop is in, and how much CPU time the loop's thread took since the tick before. The
pictures are docs/images/profile-*.svg.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from html import escape
from pathlib import Path
from types import FrameType
from typing import Any

import psutil
import uvloop

from task.cli import main as agent
from tests.benchmarks import processes
from tests.benchmarks.bench_agent import HISTORY, ROUTE
from tests.benchmarks.bench_interpreter import code_tool, run_code, server
from tests.benchmarks.load import Load, request

ROOT = Path(__file__).parent.parent
IMAGES = ROOT / "docs" / "images"
TICK, SECONDS, CALLS, WARM = 0.001, 20.0, 400, 20
LOOP = "event loop"
WIDTH, ROW, LETTER, SMALLEST = 1000, 24, 6.8, 3
OURS, INTERPRETER, FRAMEWORK, CLIENT, SYSTEM = "#9ecae1", "#dadaeb", "#fdd0a2", "#c7e9c0", "#d9d9d9"
KINDS = {
    OURS: "the agent's own code", INTERPRETER: "the interpreter", FRAMEWORK: "SDKs and frameworks",
    CLIENT: "HTTP client", SYSTEM: "server and event loop",
}  # fmt: skip
_COLOURS = {
    "task": OURS, "interpreter": INTERPRETER, "aiohttp": CLIENT, "yarl": CLIENT, "httpx2": CLIENT, "httpcore2": CLIENT,
    "h11": CLIENT, "uvicorn": SYSTEM, LOOP: SYSTEM,
}  # fmt: skip
_TOGETHER = {"fastapi": "fastapi, starlette", "starlette": "fastapi, starlette", "uvloop": ""}
_LOOP = "Runner.run"  # of asyncio: what called it is in no picture

Notes = dict[tuple[str, ...], float]


@dataclass(slots=True)
class Part:
    """CPU seconds in a room or a library, with what it called."""

    name: str
    seconds: float = 0.0
    inner: dict[str, Part] = field(default_factory=dict[str, "Part"])

    @property
    def own(self) -> float:
        return self.seconds - sum(part.seconds for part in self.inner.values())

    @property
    def colour(self) -> str:
        return _COLOURS.get(self.name.partition("/")[0], FRAMEWORK)

    def add(self, stack: Sequence[str], seconds: float) -> None:
        self.seconds += seconds
        if stack:
            self.inner.setdefault(stack[0], Part(stack[0])).add(stack[1:], seconds)

    def parts(self) -> Iterator[Part]:
        yield self
        for inner in self.inner.values():
            yield from inner.parts()


class Sampler:
    """Notes where the main thread is, with the CPU time that it took since the last note."""

    def __init__(self) -> None:
        self.notes: Notes = defaultdict(float)
        self._last = 0.0
        signal.signal(signal.SIGPROF, self._note)

    def start(self, *_: object) -> None:
        self._last = time.thread_time()
        signal.setitimer(signal.ITIMER_PROF, TICK, TICK)

    def stop(self) -> None:
        signal.setitimer(signal.ITIMER_PROF, 0)

    def _note(self, _: int, frame: FrameType | None) -> None:
        now = time.thread_time()
        self.notes[tuple(_stack(frame)) or (LOOP,)] += now - self._last
        self._last = now


def _stack(frame: FrameType | None) -> Iterator[str]:
    names: list[str] = []
    while frame is not None and frame.f_code.co_qualname != _LOOP:
        names.append(_name(Path(frame.f_code.co_filename)))
        frame = frame.f_back
    last = ""
    for name in reversed(names if frame is not None else []):
        if name and name != last:
            yield name
            last = name


def _name(path: Path) -> str:
    """The room or the library of a file; the standard library belongs to what called it."""
    if path.is_relative_to(ROOT / "task"):
        return f"task/{path.relative_to(ROOT / 'task').parts[0]}"
    if "site-packages" in path.parts:
        library = path.parts[path.parts.index("site-packages") + 1]
        return _TOGETHER.get(library, library)
    return ""


def serve(file: Path) -> None:
    """Serve; SIGUSR1 starts the notes, SIGUSR2 writes them to the file."""

    def write(*_: object) -> None:
        sampler.stop()
        written = file.with_suffix(".part")
        written.write_text(json.dumps([[stack, seconds] for stack, seconds in sampler.notes.items()]))
        written.rename(file)

    sampler = Sampler()
    signal.signal(signal.SIGUSR1, sampler.start)
    signal.signal(signal.SIGUSR2, write)
    sys.argv[1:] = ["serve"]
    agent()


async def turns(script: str, history: Sequence[dict[str, Any]] = ()) -> Part:
    """The CPU time of the agent's event loop while it answers the script repeatedly."""
    with tempfile.TemporaryDirectory() as name:
        file, command = Path(name) / "profile.json", ("scripts.profiles", "serve")
        async with (
            processes.upstream() as upstream,
            processes.application(upstream, file.parent, command=(*command, str(file))) as app,
        ):
            load, asked = Load(app.port), request(ROUTE, script, history)
            await app.at_rest()
            for _ in range(WARM):
                await load.ask(asked)
            os.kill(app.pid, signal.SIGUSR1)
            ends = time.perf_counter() + SECONDS
            while time.perf_counter() < ends:
                await load.ask(asked)
            os.kill(app.pid, signal.SIGUSR2)
            async with asyncio.timeout(30):
                while not file.exists():  # noqa: ASYNC110 - another process writes it
                    await asyncio.sleep(0.05)
            load.close()
        return _tree(json.loads(file.read_text()))


async def code_calls() -> Part:
    """The CPU time of calls of code: here as in the agent, in the interpreter's server, and in its kernels."""
    with server() as running:
        tool, interpreter = await code_tool(running), psutil.Process(running.process.pid)
        for _ in range(WARM):
            await run_code(tool)
        before, sampler = _cpu(interpreter), Sampler()
        sampler.start()
        for _ in range(CALLS):
            await run_code(tool)
        sampler.stop()
        after = _cpu(interpreter)
        await tool.close()
    tree = _tree(list(sampler.notes.items()))
    for name, first, last in zip(("interpreter/server", "interpreter/kernel"), before, after, strict=True):
        tree.add([name], last - first)
    return tree


def _cpu(server: psutil.Process) -> tuple[float, float]:
    times = [[one.cpu_times() for one in group] for group in ([server], server.children(recursive=True))]
    own, kernels = (sum(one.user + one.system for one in group) for group in times)
    return own, kernels


def _tree(notes: Sequence[tuple[Sequence[str], float]]) -> Part:
    root = Part("all")
    for stack, seconds in notes:
        root.add(stack, seconds)
    return root


def drawn(root: Part, title: str) -> str:
    """The profile as a picture: what is below was called by what is above it, and is as wide as its share."""
    shapes: list[str] = []
    depth = _draw(root, 0.0, 2, shapes, root.seconds)
    shares: defaultdict[str, float] = defaultdict(float)
    for part in root.parts():
        if part is not root:
            shares[part.colour] += part.own / root.seconds
    for place, colour in enumerate(colour for colour in KINDS if round(shares[colour], 2)):
        left = 4 + place * WIDTH // 4
        shapes.append(f'<rect x="{left}" y="{ROW}" width="14" height="14" fill="{colour}"/>')
        shapes.append(f'<text x="{left + 20}" y="{ROW + 12}">{KINDS[colour]}: {shares[colour]:.0%}</text>')
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {depth * ROW}" font-family="sans-serif"'
    ground = f'<rect width="{WIDTH}" height="{depth * ROW}" fill="#ffffff"/>'
    name = f'<title>{escape(title)}</title><text x="4" y="16" font-weight="bold">{escape(title)}</text>'
    return "\n".join([f'{head} font-size="12" role="img">', ground, name, *shapes, "</svg>\n"])


def _draw(part: Part, left: float, row: int, shapes: list[str], whole: float) -> int:
    deepest = row
    for inner in sorted(part.inner.values(), key=lambda one: one.seconds, reverse=True):
        width = inner.seconds / whole * WIDTH
        if width >= SMALLEST:
            label = f"{inner.name} {inner.seconds / whole:.0%}"
            shown = next((text for text in (label, inner.name) if len(text) * LETTER < width), "")
            shapes.append(
                f'<g><title>{escape(label)}, {inner.own / whole:.1%} of it its own</title>'
                f'<rect x="{left:.1f}" y="{row * ROW}" width="{width:.1f}" height="{ROW - 1}" fill="{inner.colour}" '
                f'stroke="#ffffff"/><text x="{left + 3:.1f}" y="{row * ROW + 16}">{escape(shown)}</text></g>'
            )  # fmt: skip
            deepest = max(deepest, _draw(inner, left, row + 1, shapes, whole))
        left += width
    return deepest


async def main() -> None:
    pictures = {
        "profile-tool-turn.svg": ("The CPU time of a tool turn", partial(turns, "chain 20")),
        "profile-history-turn.svg": (
            f"The CPU time of an answer with five tool turns after {len(HISTORY)} messages",
            partial(turns, "chain 5", HISTORY),
        ),
        "profile-code-call.svg": ("The CPU time of a call of code, in three processes", code_calls),
    }
    for name in sys.argv[1:] or pictures:
        title, work = pictures[name]
        (IMAGES / name).write_text(drawn(await work(), title), encoding="utf-8")


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        serve(Path(sys.argv[2]))
    else:
        processes.keep_to(-1)
        uvloop.run(main())
