"""A console without a terminal, for commands: a real product, store and runs, and a list of what was shown.

async with openai_upstream(says("Hi.")) as upstream, command_console(tmp_path, upstream.url) as console:
    await console.types("Hello")            a message; its turn is taken
    [shown] = await console.types("/cost")  what the command shows
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from task.blocking import run_blocking
from task.console.attaching import AttachedFile
from task.console.commands import run_command, user_message
from task.console.ui_manager import UserInterfaceManager
from task.conversation.message_manager import MessageManager
from task.conversation.messages import Message
from task.product import Product
from task.product.framework import FrameworkProduct
from task.runs.preparing import Preparing
from task.runs.request import RunCaller, RunOptions
from task.runs.runner import Runner
from task.settings import Settings

OWNER, MODEL = "local", "test-model"


class ListedOutput(UserInterfaceManager):
    """Keeps what it is given to show."""

    def __init__(self) -> None:
        super().__init__()
        self.shown: list[str] = []

    def display_system_message(self, message: str) -> None:
        self.shown.append(message)

    def display_error_message(self, error_type: str, error_message: str) -> None:
        self.shown.append(f"{error_type}: {error_message}")

    def display_special_command_help(self, commands: Mapping[str, str]) -> None:
        self.shown += [f"{name}: {text}" for name, text in commands.items()]


@dataclass
class CommandConsole:
    """See the module; `messages` are those that were sent, `resumed` the sessions that were chosen."""

    product: FrameworkProduct
    runner: Runner
    caller: RunCaller
    ui: ListedOutput = field(default_factory=ListedOutput)
    history: MessageManager = field(default_factory=MessageManager)
    session_id: str | None = None
    model: str = MODEL
    persona: str = ""
    attached: list[AttachedFile] = field(default_factory=list[AttachedFile])
    answering: bool = False
    ended: bool = False
    messages: list[Message] = field(default_factory=list[Message])
    resumed: list[str] = field(default_factory=list[str])

    @property
    def folder(self) -> Path:
        return self.product.folder

    async def types(self, text: str) -> list[str]:
        """Enter a line; what it shows."""
        return await asyncio.to_thread(self._typed, text)

    def send(self, message: Message) -> None:
        self.messages.append(message)
        self.history.extend([message])
        self.session_id = run_blocking(self._answered, message)

    def resume(self, session_id: str) -> None:
        self.resumed.append(session_id)

    def reload(self) -> str:
        return "Read again."

    def quit(self) -> None:
        self.ended = True

    def _typed(self, text: str) -> list[str]:
        self.ui.shown.clear()
        if not run_command(self, text):
            self.send(user_message(self, text))
        return list(self.ui.shown)

    async def _answered(self, message: Message) -> str | None:
        options = RunOptions("console", self.model, persona=self.persona)
        preparing = Preparing(self.product)
        run = await self.runner.start(await preparing.in_session(self.caller, [message], options, self.session_id))
        async for _ in self.runner.events(OWNER, run.run_id):
            pass
        return run.session_id


@asynccontextmanager
async def command_console(
    folder: Path, upstream: str, core_key: str = "", **settings: Any
) -> AsyncGenerator[CommandConsole]:
    """The console, whose working directory is `folder/work`."""
    work = folder / "work"
    work.mkdir(exist_ok=True)
    values = {
        "backend": "openai", "openai_base_url": upstream, "openai_api_key": "sk-test", "deployment_name": MODEL,
        "data_dir": str(folder / "data"), "rag": {"python": "/no/embedding"},
    }  # fmt: skip
    product = FrameworkProduct(Settings.model_validate({**values, **settings}), work)
    runner = Runner(product)
    try:
        yield CommandConsole(product, runner, RunCaller(OWNER, core_key))
    finally:
        await asyncio.to_thread(run_blocking, _close, runner, product)


async def _close(runner: Runner, product: Product) -> None:
    await runner.close()
    await product.close()
