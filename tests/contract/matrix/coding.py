"""The coding door of the matrix: the coder, given the product's own toolbox, as a process that is spoken to in lines.

    python -m tests.contract.matrix.coding

A line is `{"say": text, "files": [attachment, …], "new": whether a conversation starts}`. The answer is a line with the
fields of an `Outcome`, once the coder is done or waits for the person.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from task.coding.executor import Coder, Progress
from task.conversation.inputs import Answer, user_message
from task.conversation.messages import Attachment, Message, Role
from task.loop import Spent
from task.product import Profile, Services, opened
from task.settings import load_settings
from task.tools.models import Caller
from task.tools.toolbox import Pending
from tests.contract.matrix.doors import calls_and_results
from tests.contract.matrix.projection import Outcome
from tests.support.chat_reader import ChatReader
from tests.support.up import environment

SECONDS = 60
KEY = "key-one"


class CodingDoor:
    """One conversation with the coder of a running process."""

    def __init__(self, process: asyncio.subprocess.Process, reader: ChatReader) -> None:
        self._process, self._reader = process, reader
        self._files, self._new = list[dict[str, Any]](), True

    async def attach(self, name: str, content: bytes, content_type: str) -> str:
        self._files.append(await self._reader.upload(name, content, content_type))
        return self._files[-1]["url"]

    async def say(self, text: str) -> Outcome:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        line = {"say": text, "files": self._files, "new": self._new}
        self._files, self._new = [], False
        stdin.write(json.dumps(line).encode() + b"\n")
        async with asyncio.timeout(SECONDS):
            return Outcome(**json.loads(await stdout.readline()))


@asynccontextmanager
async def coding_process(home: Path, variables: Mapping[str, str]) -> AsyncGenerator[asyncio.subprocess.Process]:
    home.mkdir()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", __name__, cwd=home, env=environment(home, **variables), stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE, limit=2**24,
    )  # fmt: skip
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


# In the process


@dataclass
class Conversation:
    """A person's side of a coding run: what the coder waits for, and what it has said since the last message."""

    services: Services
    profile: Profile
    said: asyncio.Queue[str] = field(default_factory=asyncio.Queue[str])
    shown: asyncio.Queue[Outcome] = field(default_factory=asyncio.Queue[Outcome])
    progress: Progress = field(default_factory=lambda: Progress([]))
    start: int = 0  # of this message's turn
    read: int = 0  # messages whose text the person has read
    task: asyncio.Task[None] | None = None

    async def message(self, text: str, files: Sequence[Mapping[str, Any]]) -> Outcome:
        if self.task is not None and not self.task.done():
            self.said.put_nowait(text)
        else:
            attached = tuple(Attachment(**item) for item in files)
            self.start = len(self.progress.messages)
            self.progress.messages.append(user_message(Message(Role.USER, text, attachments=attached)))
            self.progress.spent = Spent()
            self.task = asyncio.create_task(self._work())
        return await self.shown.get()

    async def _work(self) -> None:
        coder = Coder(self.services, self.profile, Caller(KEY, _nobody), lambda _: None, self._ask)
        outcome = await coder.run(self.progress)
        self._show((), failed=outcome.error is not None)

    async def _ask(self, pending: Sequence[Pending]) -> list[Answer]:
        self._show([item.call.name for item in pending])
        return decided(pending, await self.said.get())

    def _show(self, waits: Sequence[str], *, failed: bool = False) -> None:
        messages = self.progress.messages
        calls, results = calls_and_results([message.as_dict() for message in messages[self.start :]])
        texts = [message.text() for message in messages[self.read :] if message.role is Role.ASSISTANT]
        self.read = len(messages)
        answer = "\n\n".join(filter(None, texts))
        self.shown.put_nowait(Outcome(answer, list(calls.values()), results, waits, failed=failed))


def decided(pending: Sequence[Pending], words: str) -> list[Answer]:
    """What `approve`, `deny because …`, and both with codes mean for these calls."""
    parts = words.split(", ") * (len(pending) if ", " not in words else 1)
    reasons = [part.partition(" because ")[2] for part in parts]
    return [Answer(part.startswith("approve"), reason) for part, reason in zip(parts, reasons, strict=True)]


async def _nobody() -> str:
    return ""


async def main() -> None:
    services, profile = opened(load_settings())
    conversation = Conversation(services, profile)
    while line := await asyncio.to_thread(sys.stdin.readline):
        request = json.loads(line)
        if request["new"]:
            if conversation.task is not None:
                conversation.task.cancel()
            conversation = Conversation(services, profile)
        outcome = await conversation.message(request["say"], request["files"])
        print(json.dumps(asdict(outcome)), flush=True)
    await services.close()


if __name__ == "__main__":
    asyncio.run(main())
