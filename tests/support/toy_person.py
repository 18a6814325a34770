"""The toy door in a process of its own, and somebody at its socket."""

import asyncio
import json
import sys
import tempfile
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.cluster import NOTES

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 30


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
async def door(folder: Path, upstream: str, **more: Any) -> AsyncGenerator[tuple[Person, asyncio.subprocess.Process]]:
    """The door in a process of its own, with a person at it."""
    (folder / "notes.py").write_text(NOTES)
    settings = {
        "backend": "openai", "openai_base_url": upstream, "openai_api_key": "sk-test", "deployment_name": "test-model",
        "data_dir": str(folder / "data"), "tool_paths": [str(folder / "notes.py")], **more,
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
