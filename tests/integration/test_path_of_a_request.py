"""The path of a request through the house, as docs/architecture.md draws it: rooms, files, functions, the first delta.

The figures are compared with the tables `path/…` of house.toml; a lower one is written down there by hand.
"""

import sys
import tomllib
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from task.dial.fast_chunks import Chunks
from task.llm.dial import DialChatModel
from task.llm.openai import OpenAIChatModel
from task.llm.scripted import says, wants
from task.runs.answering import RunChoice
from task.store import store
from task.store.runs import Runs
from task.store.writer import Writer
from tests.support.http_api import http_api
from tests.support.product import product
from tests.support.waiting import until

ROOT = Path(__file__).resolve().parents[2]
TASK = f"{ROOT / 'task'}/"
PEERS = (f"{ROOT / 'tests'}/", f"{TASK}local/", f"{TASK}server.py")  # the server warms up, and counts what waits
PART_OF = {
    "app": "dial",
    "agent": "dial",
    "pictures": "turn",
    "shares": "store",
}  # files beside the rooms to which they belong
DATA = {"conversation", "errors"}
MIDDLE = {
    "turn", "product", "loop", "llm", "tools", "permissions", "runs", "store", "telemetry", "core_client", "output",
}  # fmt: skip
INLINE = {"<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>", "<module>"}
ASKED = {DialChatModel.stream.__code__, OpenAIChatModel.stream.__code__}
# A run keeps the text of one step of the event loop, and writes it as one event in the next one.
WRITTEN, KEPT = {Chunks.put_nowait.__code__, Runs.append_event.__code__}, RunChoice.append_content.__code__
CHORES = store._repeat_every.__code__
# A number alone might begin a list, for which a filter waits.
CALCULATION = (wants("calculator", expression="1+1"), says("It is 2."))


@dataclass
class Trail:
    """What a request enters; `first_delta` are the functions between the model and what the door writes."""

    rooms: set[str] = field(default_factory=set[str])
    functions: set[CodeType] = field(default_factory=set[CodeType])
    first_delta: set[CodeType] = field(default_factory=set[CodeType])
    _asking: FrameType | None = None
    _kept: set[CodeType] = field(default_factory=set[CodeType])

    def enter(self, frame: FrameType) -> None:
        """A function of the agent was called."""
        code = frame.f_code
        callers = list(_callers(frame))
        if any(caller.f_code.co_filename.startswith(PEERS) or caller.f_code is CHORES for caller in callers):
            return
        if code.co_name not in INLINE:
            self.functions.add(code)
        ours = [caller for caller in callers[1:] if _room(caller) is not None]
        if not ours or _room(ours[0]) != _room(frame):
            self.rooms.add(_room(frame) or "")
        if code in ASKED and ours:
            self._asking = ours[0]
        if not self.first_delta and self._asking is not None and code in {KEPT, *WRITTEN}:
            self._written(frame, ours)

    def _written(self, frame: FrameType, ours: list[FrameType]) -> None:
        if self._asking in ours:
            passed = {frame.f_code, *(caller.f_code for caller in ours[: ours.index(self._asking) + 1])}
            self._kept = passed if frame.f_code is KEPT else set()
            self.first_delta = passed if frame.f_code in WRITTEN else set()
        elif self._kept and frame.f_code in WRITTEN:
            self.first_delta = self._kept | {frame.f_code, *(caller.f_code for caller in ours)}

    @property
    def figures(self) -> dict[str, int]:
        files = {code.co_filename for code in self.functions}
        return {"files": len(files), "first_delta": len(self.first_delta), "functions": len(self.functions)}


@contextmanager
def trail() -> Generator[Trail]:
    """What is entered of the agent while the block runs; local Core, the model's peer and
    the store's chores are not the request."""
    found = Trail()

    def profile(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(TASK):
            found.enter(frame)

    sys.setprofile(profile)
    try:
        yield found
    finally:
        sys.setprofile(None)
        found.rooms -= DATA


def _callers(frame: FrameType) -> Iterator[FrameType]:
    caller: FrameType | None = frame
    while caller is not None:
        yield caller
        caller = caller.f_back


def _room(frame: FrameType) -> str | None:
    file = frame.f_code.co_filename
    if not file.startswith(TASK):
        return None
    room = file.removeprefix(TASK).removesuffix(".py").partition("/")[0]
    return PART_OF.get(room, room)


def within_bounds(door: str, found: Trail) -> None:
    """Print the figures, and fail where one is above its bound."""
    bounds = tomllib.loads((ROOT / "house.toml").read_text(encoding="utf-8"))[f"path/{door}"]
    print(door, found.figures)
    above = {name: figure for name, figure in found.figures.items() if figure > bounds[name]}
    assert found.first_delta, "the answer's first piece was not seen on its way"
    assert not above, f"{door} passes more than house.toml allows: {above}, {bounds}"


async def test_a_dial_request_enters_thirteen_rooms_and_the_guard_before_them(tmp_path: Path) -> None:
    async with product(says("Hi."), *CALCULATION, tmp_path=tmp_path) as p:
        await p.reader.ask("Hi")
        with trail() as found:
            await p.reader.ask("1+1?")
            # The trace is written after the answer: within the request on a slow machine, so it counts everywhere.
            await until(lambda: Writer._attempted.__code__ in found.functions)
    assert found.rooms == {"api", "approvals", "dial", *MIDDLE}
    within_bounds("dial", found)


async def test_an_api_request_enters_thirteen_rooms(tmp_path: Path) -> None:
    async with http_api(says("Hi."), *CALCULATION, tmp_path=tmp_path) as api:
        await api.complete("Hi", stream=True)
        with trail() as found:
            await api.complete("1+1?", stream=True)
    assert found.rooms == {"api", "approvals", *MIDDLE}
    within_bounds("v1", found)
