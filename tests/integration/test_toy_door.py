"""A new front door needs the product and its runs alone: it streams, asks, stops, and goes on after a kill."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from task.llm.scripted import says, wants
from tests.support.api_client import coded
from tests.support.two_agents import NOTES
from tests.support.upstream import hanging, openai_upstream

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 30


CALLED = """import asyncio

async def once():
    await answer("ann", "Hi", None)
    await runner.close()
    await product.close()

asyncio.run(once())
"""


@dataclass
class Person:
    """Somebody at the socket."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    def writes(self, text: str) -> None:
        self.writer.write(text.encode() + b"\n")

    async def reads_until(self, kind: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        async with asyncio.timeout(SECONDS):
            while not found or found[-1]["type"] != kind:
                found.append(json.loads(await self.reader.readline()))
        return found


@asynccontextmanager
async def door(folder: Path, upstream: str) -> AsyncGenerator[tuple[Person, asyncio.subprocess.Process]]:
    """The door in a process of its own, with a person at it."""
    (folder / "notes.py").write_text(NOTES)
    settings = {
        "backend": "openai", "openai_base_url": upstream, "openai_api_key": "sk-test", "deployment_name": "test-model",
        "data_dir": str(folder / "data"), "tool_paths": [str(folder / "notes.py")],
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as short:  # a socket's path has a hundred characters at most
        path = f"{short}/door"
        command = [sys.executable, "-m", "tests.support.toy_door", path, json.dumps(settings)]
        process = await asyncio.create_subprocess_exec(*command, cwd=ROOT)
        try:
            person = await person_at(path)
            with closing(person.writer):
                yield person, process
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()


async def person_at(path: str) -> Person:
    async with asyncio.timeout(SECONDS):
        while True:
            try:
                return Person(*await asyncio.open_unix_connection(path))
            except (FileNotFoundError, ConnectionRefusedError):
                await asyncio.sleep(0.05)


def text_of(events: list[dict[str, Any]]) -> str:
    return "".join(event["text"] for event in events if event["type"] == "text")


async def test_a_toy_door_streams_and_keeps_the_conversation(tmp_path: Path) -> None:
    async with (
        openai_upstream(hanging(says("One ", "two"), chunks=2), says("Three.")) as upstream,
        door(tmp_path, upstream.url) as (person, _),
    ):
        person.writes("count")
        early = await person.reads_until("text")
        person.writes("/stop")
        stopped = await person.reads_until("finished")
        person.writes("go on")
        last = await person.reads_until("finished")
        sent = [item["content"] for item in upstream.requests[-1].messages if item["role"] != "system"]
    assert text_of(early) == "One "
    assert stopped[-1]["status"] == "cancelled"
    assert (text_of(last), last[-1]["status"]) == ("Three.", "finished")
    assert sent == ["count", "One ", "go on"]


async def test_an_approval_given_after_kill_9_runs_the_call_once(tmp_path: Path) -> None:
    asks = says("I would. ") & wants("write_note", text="milk")
    async with openai_upstream(asks, says("Done."), says("Again.")) as upstream:
        async with door(tmp_path, upstream.url) as (person, process):
            person.writes("note it")
            asked = await person.reads_until("finished")
            process.kill()
        question = next(event["text"] for event in asked if event["type"] == "approval")
        async with door(tmp_path, upstream.url) as (person, _):
            person.writes(coded("approve", question))
            done = await person.reads_until("finished")
            person.writes(coded("approve", question))
            again = await person.reads_until("finished")
            person.writes(coded("deny", question))
            [refused] = await person.reads_until("refused")
        async with door(tmp_path, upstream.url) as (person, _):
            person.writes(f"/session {asked[-1]['session_id']}")
            person.writes("What did you note?")
            await person.reads_until("finished")
        results = [item["content"] for item in upstream.requests[-1].messages if item["role"] == "tool"]
    assert asked[-1]["status"] == "suspended"
    assert (text_of(done), done[-1]["run_id"]) == ("Done.", again[-1]["run_id"])
    assert "the first answer counts" in refused["text"]
    assert results == ["noted: milk"]
    assert (tmp_path / "notes.txt").read_text() == "milk\n"


async def test_the_documented_example_of_a_door_answers(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "doors.md").read_text(encoding="utf-8")
    example = page.partition("```python\n")[2].partition("```")[0]
    program = f"{example}\n\n{CALLED}"
    async with openai_upstream(says("Hello.")) as upstream:
        variables = {
            "PATH": os.defpath, "PYTHONPATH": str(ROOT), "HOME": str(tmp_path), "AGENT_BACKEND": "openai",
            "AGENT_DATA_DIR": str(tmp_path / "data"), "OPENAI_BASE_URL": upstream.url, "OPENAI_API_KEY": "sk-test",
        }  # fmt: skip
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", program, cwd=tmp_path, env=variables, stdout=asyncio.subprocess.PIPE
        )
        async with asyncio.timeout(SECONDS):
            output, _ = await process.communicate()
    assert process.returncode == 0
    assert "'type': 'text', 'text': 'Hello.'" in output.decode()
