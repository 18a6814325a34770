"""List the agent's tools: here, or in a process of its own so that this one stays small."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Mapping, Sequence

from pydantic import BaseModel, TypeAdapter, ValidationError
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table
from rich.text import Text

from task.settings import Settings

LISTING_SECONDS = 30


class ListedTool(BaseModel):
    """A tool as it is shown to people."""

    name: str
    description: str
    effects: list[str]


ListedTools = list[ListedTool]
_LISTING = TypeAdapter(ListedTools)


def listed(settings: Settings) -> ListedTools:
    """The tools the agent would offer with these settings.

    Raises:
        SettingsError: a tool of `AGENT_TOOL_PATHS` cannot be loaded.
    """
    from task.app import default_tools

    return [
        ListedTool(name=tool.name, description=tool.description, effects=sorted(tool.effects))
        for tool in default_tools(settings)
    ]


def show(settings: Settings, as_json: bool) -> None:
    """Print the tools as a table, or as one JSON array."""
    tools = listed(settings)
    if as_json:
        print(_LISTING.dump_json(tools).decode())
        return
    table = Table(box=SIMPLE)
    for heading in ("Tool", "Effects", "Description"):
        table.add_column(heading, overflow="fold")
    for tool in tools:
        table.add_row(tool.name, ", ".join(tool.effects) or "none", Text(_first_paragraph(tool.description)))
    Console(highlight=False).print(table)


async def list_in_own_process(command: Sequence[str], environment: Mapping[str, str]) -> ListedTools | None:
    """What `dial-agent tools --json` prints; None when it fails, the agent's own lines then tell why."""
    process = await asyncio.create_subprocess_exec(
        *command, "tools", "--json", env=dict(environment), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    try:
        output, _ = await asyncio.wait_for(process.communicate(), LISTING_SECONDS)
        return _LISTING.validate_json(output)
    except (TimeoutError, ValidationError):
        return None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def _first_paragraph(text: str) -> str:
    return " ".join(text.strip().split("\n\n")[0].split())
