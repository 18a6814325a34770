"""The path of a request through the rooms of the house, as docs/architecture.md draws it."""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from task.llm.scripted import says, wants
from tests.support.http_api import http_api
from tests.support.product import product

TASK = f"{Path(__file__).resolve().parents[2] / 'task'}/"
PART_OF = {"app": "dial", "agent": "dial", "pictures": "turn"}  # files beside the rooms to which they belong
DATA = {"conversation", "errors"}
MIDDLE = {
    "turn",
    "product",
    "loop",
    "llm",
    "tools",
    "permissions",
    "runs",
    "store",
    "telemetry",
    "core_client",
    "output",
}


@contextmanager
def entered_rooms() -> Generator[set[str]]:
    """The rooms of which a function is called from another room while the block runs; local Core is not the agent."""
    rooms: set[str] = set()

    def profile(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and (room := _room(frame)) is not None:
            caller = frame.f_back
            while caller is not None and _room(caller) is None:
                caller = caller.f_back
            if caller is None or _room(caller) != room:
                rooms.add(room)

    sys.setprofile(profile)
    try:
        yield rooms
    finally:
        sys.setprofile(None)
        rooms -= DATA | {"local/core"}


def _room(frame: FrameType) -> str | None:
    file = frame.f_code.co_filename
    if not file.startswith(TASK):
        return None
    parts = file.removeprefix(TASK).removesuffix(".py").split("/")
    return "/".join(parts[:-1][:2]) if parts[0] in {"api", "local"} else PART_OF.get(parts[0], parts[0])


CALCULATION = (wants("calculator", expression="1+1"), says("2"))


async def test_a_dial_request_enters_thirteen_rooms_and_the_guard_before_them(tmp_path: Path) -> None:
    async with product(says("Hi."), *CALCULATION, tmp_path=tmp_path) as p:
        await p.reader.ask("Hi")
        with entered_rooms() as rooms:
            await p.reader.ask("1+1?")
    assert rooms == {"api/edge", "approvals", "dial", *MIDDLE}


async def test_an_api_request_enters_sixteen_rooms(tmp_path: Path) -> None:
    async with http_api(says("Hi."), *CALCULATION, tmp_path=tmp_path) as api:
        await api.complete("Hi")
        with entered_rooms() as rooms:
            await api.complete("1+1?")
    assert rooms == {"api", "api/edge", "api/openai", "api/platform", "approvals", *MIDDLE}
