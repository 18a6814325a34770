"""The console without a terminal: what is typed, and a list of what is shown for it.

async with talking(tmp_path, says("Hi.")) as console:
    await console.types("Hello")            a message; its turn is taken
    [shown] = await console.types("/tools")  what the command shows
    console.upstream.requests               what its model got
"""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from task.console.configuration import ConfigurationManager
from task.console.controller import FrameworkController
from task.console.ui_manager import PermissionQuestion, UserInterfaceManager
from task.conversation.inputs import Answer
from tests.support.upstream import Item, Upstream, openai_upstream

OWNER, MODEL = "local", "test-model"
Reply = Answer | None | Callable[[], Answer | None]


class Person(UserInterfaceManager):
    """Somebody at the terminal who gives these answers to questions, and then none."""

    def __init__(self, *answers: Reply) -> None:
        super().__init__()
        self.answers, self.asked, self.patience = list(answers), list[PermissionQuestion](), list[float]()

    def ask_permission(
        self, question: PermissionQuestion, seconds: float, answered_elsewhere: Callable[[], bool]
    ) -> Answer | None:
        self.asked.append(question)
        self.patience.append(seconds)
        answer = self.answers.pop(0) if self.answers else None
        return answer() if callable(answer) else answer


class ListedOutput(Person):
    """Keeps what it is given to show."""

    def __init__(self, *answers: Reply) -> None:
        super().__init__(*answers)
        self.shown: list[str] = []

    def display_system_message(self, message: str) -> None:
        self.shown.append(message)

    def display_user_message(self, message: str) -> None:
        self.shown.append(f"> {message}")

    def display_assistant_message(self, message: str) -> None:
        self.shown.append(f"< {message}")

    def display_error_message(self, error_type: str, error_message: str) -> None:
        self.shown.append(f"{error_type}: {error_message}")

    def display_special_command_help(self, commands: Mapping[str, str]) -> None:
        self.shown += [f"{name}: {text}" for name, text in commands.items()]


class AtTheTerminal(ListedOutput):
    """The same at a terminal: who does not answer there was too late."""

    @property
    def interactive(self) -> bool:
        return True


class ListedConsole(FrameworkController):
    """The real controller, whose working directory is `folder`; `file` is its configuration."""

    upstream: Upstream

    def __init__(self, file: Path, folder: Path, output: ListedOutput) -> None:
        self.output = output
        super().__init__(ConfigurationManager(str(file)), ui=self.output)
        self.file, self.folder = file, folder

    async def types(self, text: str) -> list[str]:
        """Enter a line; what it shows."""
        self.output.shown.clear()
        await asyncio.to_thread(self.take, text)
        return list(self.output.shown)

    async def shows(self, text: str, *lines: str) -> None:
        """Enter a line; exactly these are shown."""
        assert await self.types(text) == list(lines)


@asynccontextmanager
async def command_console(
    folder: Path, upstream: str, *, output: ListedOutput | None = None, **settings: Any
) -> AsyncGenerator[ListedConsole]:
    """The console in `folder/work`, with `settings` in its configuration file."""
    work, file = folder / "work", folder / "config.yaml"
    work.mkdir(exist_ok=True)
    values = {
        "backend": "openai", "openai_base_url": upstream, "openai_api_key": "sk-test", "deployment_name": MODEL,
        "data_dir": str(folder / "data"), "embedding_model": "/no/embedding",
    }  # fmt: skip
    file.write_text(json.dumps({**values, **settings}))
    console = ListedConsole(file, work, output or ListedOutput())
    assert await asyncio.to_thread(console.initialize), console.output.shown
    try:
        yield console
    finally:
        await asyncio.to_thread(console.shutdown)


@asynccontextmanager
async def talking(folder: Path, *script: Item, then: Item | None = None, **more: Any) -> AsyncGenerator[ListedConsole]:
    """`command_console` whose model answers with this script, then with `then`."""
    async with (
        openai_upstream(*script, then=then) as upstream,
        command_console(folder, upstream.url, **more) as console,
    ):
        console.upstream = upstream
        yield console
