"""List the agent's tools: the ones its settings give, and the ones a running agent offers."""

from __future__ import annotations

from pydantic import BaseModel, TypeAdapter
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
_NAMES = TypeAdapter(list[str])


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


async def offered(agent_url: str) -> list[str] | None:
    """The names of the tools that the running agent offers; None when it does not tell."""
    import aiohttp

    timeout = aiohttp.ClientTimeout(LISTING_SECONDS)
    try:
        async with aiohttp.ClientSession(timeout=timeout) as session, session.get(f"{agent_url}/ready") as response:
            return _NAMES.validate_python((await response.json())["tools"])
    except (aiohttp.ClientError, TimeoutError, ValueError, KeyError):
        return None


def _first_paragraph(text: str) -> str:
    return " ".join(text.strip().split("\n\n")[0].split())
