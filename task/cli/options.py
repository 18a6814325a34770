"""What the commands share: options, the settings to which these lead, and the store of the settings."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from task.permissions.icerc import visible
from task.settings import Settings, load_settings

if TYPE_CHECKING:
    from task.skills import Skill
    from task.store.store import Store

T = TypeVar("T")
LEFT_OUT = (
    "Left out of this folder's own files, which may be another user's: {names}. Set them in the environment or in "
    "~/.config/dial-agent/.env, or name a file with --config."
)

Config = Annotated[
    Path | None, typer.Option("--config", "-c", metavar="FILE", help="Settings file to use instead of dial-agent.yaml.")
]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON document on standard output.")]
JsonLines = Annotated[bool, typer.Option("--json", help="One JSON event per line on standard output.")]
Output = Annotated[Path | None, typer.Option(metavar="FILE", help="Write to this file instead of printing.")]
Host = Annotated[str | None, typer.Option(help="Address to listen on.")]
Port = Annotated[int | None, typer.Option(min=0, max=65535, help="Port of the agent.")]


def read_settings(config: Path | None, *, foreign: bool = True, **given: Any) -> Settings:
    """The settings that the file leads to, with the options of the command that are `given`, not None.

    Unless the command is one that operators run in a folder of their own (not `foreign`), another user may have written
    the working directory; what is left out of its files is printed.

    Raises:
        SettingsError: a setting is unknown or malformed.
    """
    chosen = {name: value for name, value in given.items() if value is not None}
    settings = load_settings(config, given=chosen, foreign=foreign)
    print_left_out(settings)
    return settings


def print_left_out(settings: Settings) -> None:
    """Name what was left out of the files of the working directory."""
    if settings.ignored:
        write(LEFT_OUT.format(names=", ".join(settings.ignored)), err=True)


def write(text: object = "", *, err: bool = False, raw: bool = False, end: str = "\n") -> None:
    """Print text, which may be another's, with what a terminal would act on spelt out.

    `raw`: unchanged where no terminal reads it.
    """
    stream = sys.stderr if err else sys.stdout
    print(str(text) if raw and not stream.isatty() else visible(str(text)), file=stream, end=end, flush=True)


def agrees_to_skills(skills: Sequence[Skill]) -> bool:
    """Ask the user at the terminal whether a folder's own skills may be used."""
    write("This folder brings skills, instructions for the model that others may have written:", err=True)
    for skill in skills:
        write(f"  {skill.name}: {skill.description}", err=True)
    return typer.confirm("Use them here, as long as they stay as they are?", err=True)


def print_json(value: Any) -> None:
    """Print a value as JSON, in ASCII: names of files may not be text."""
    print(json.dumps(value, indent=2))


def on_store(settings: Settings, work: Callable[[Store], Awaitable[T]]) -> T:
    """Open the store of these settings, do the work, close the store."""
    from task.store.access import StoreAccess, StoreOptions  # most commands have no store

    async def run() -> T:
        access = StoreAccess(StoreOptions(**settings.store_options, chores=False))
        try:
            return await work(await access.get())
        finally:
            await access.close()

    return asyncio.run(run())
