"""The coding door of the matrix: the coder, given the product's own toolbox, and the user who answers it."""

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from task.coding.executor import Coder
from task.coding.state import Progress
from task.conversation.inputs import Answer, user_message
from task.conversation.messages import Attachment, Message, Role
from task.loop import Spent
from task.product import Profile, Services, opened
from task.settings import load_settings
from task.tools.models import Caller, nobody
from task.tools.toolbox import Pending
from tests.contract.matrix.doors import calls_and_results
from tests.contract.matrix.projection import Outcome
from tests.support.chat_reader import ChatReader
from tests.support.up import environment

SECONDS = 60
KEY = "key-one"


@asynccontextmanager
async def coding_product(home: Path, variables: Mapping[str, str]) -> AsyncGenerator[tuple[Services, Profile]]:
    home.mkdir()
    services, profile = opened(load_settings(environ=environment(home, **variables), directory=home))
    yield services, profile
    await services.close()


class CodingDoor:
    """One conversation with the coder: what it waits for, and what it has said since the last message."""

    def __init__(self, services: Services, profile: Profile, reader: ChatReader) -> None:
        self._reader, self._progress, self._files = reader, Progress([]), list[dict[str, Any]]()
        self._said, self._shown = asyncio.Queue[str](), asyncio.Queue[Outcome]()
        self._coder = Coder(services, profile, Caller(KEY, nobody), self._progress, lambda _: None, self._ask)
        self._start = self._read = 0  # of this message's turn; messages whose text the user has read
        self._task: asyncio.Task[None] | None = None

    async def attach(self, name: str, content: bytes, content_type: str) -> str:
        self._files.append(await self._reader.upload(name, content, content_type))
        return self._files[-1]["url"]

    async def say(self, text: str) -> Outcome:
        if self._task is not None and not self._task.done():
            self._said.put_nowait(text)
        else:
            attached = tuple(Attachment(**item) for item in self._files)
            self._start, self._progress.spent = len(self._progress.messages), Spent()
            self._progress.messages.append(user_message(Message(Role.USER, text, attachments=attached)))
            self._files.clear()
            self._task = asyncio.create_task(self._work())
        async with asyncio.timeout(SECONDS):
            return await self._shown.get()

    async def _work(self) -> None:
        outcome = await self._coder.run()
        self._show((), failed=outcome.error is not None)

    async def _ask(self, pending: Sequence[Pending]) -> list[Answer]:
        self._show([item.call.name for item in pending])
        return decided(pending, await self._said.get())

    def _show(self, waits: Sequence[str], *, failed: bool = False) -> None:
        messages = self._progress.messages
        calls, results = calls_and_results([message.as_dict() for message in messages[self._start :]])
        texts = [message.text() for message in messages[self._read :] if message.role is Role.ASSISTANT]
        self._read = len(messages)
        answer = "\n\n".join(filter(None, texts))
        self._shown.put_nowait(Outcome(answer, list(calls.values()), results, waits, failed=failed))


def decided(pending: Sequence[Pending], words: str) -> list[Answer]:
    """What `approve`, `deny because …`, and both with codes mean for these calls."""
    parts = words.split(", ") * (len(pending) if ", " not in words else 1)
    reasons = [part.partition(" because ")[2] for part in parts]
    return [Answer(part.startswith("approve"), reason) for part, reason in zip(parts, reasons, strict=True)]
