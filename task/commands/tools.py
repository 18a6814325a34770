"""List the agent's tools: the ones its settings give, and the ones a running agent offers."""

from __future__ import annotations

import asyncio

from pydantic import BaseModel, TypeAdapter
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table
from rich.text import Text

from task.settings import Settings
from task.tools.base import BaseTool

LISTING_SECONDS = 30
AGENT, INTERPRETER = "agent", "python interpreter"
COMPANIONS = "`dial-agent up` adds {missing}, with servers of its own."


class ListedTool(BaseModel):
    """A tool as it is shown to people."""

    name: str
    description: str
    effects: list[str]
    source: str = AGENT


ListedTools = list[ListedTool]
_LISTING = TypeAdapter(ListedTools)
_NAMES = TypeAdapter(list[str])


def listed(settings: Settings) -> ListedTools:
    """The tools the agent would offer with these settings.

    Raises:
        SettingsError: a tool of `AGENT_TOOL_PATHS` cannot be loaded.
    """
    from task.app import default_tools
    from task.tools.dial_files import DialFiles
    from task.tools.offload import ReadFileLinesTool, SearchInFileTool
    from task.tools.py_interpreter.python_code_interpreter_tool import PythonCodeInterpreterTool

    def source(tool: BaseTool) -> str:
        return INTERPRETER if isinstance(tool, PythonCodeInterpreterTool) else AGENT

    files = DialFiles(settings.dial_endpoint)
    return [
        _shown(tool, source(tool))
        for tool in (*default_tools(settings), ReadFileLinesTool(files), SearchInFileTool(files))
    ]


async def listed_with_servers(settings: Settings) -> tuple[ListedTools, list[str]]:
    """All tools, those of MCP servers too, and sentences about the servers that do not answer.

    Raises:
        SettingsError: a tool cannot be loaded, or two servers have one name.
    """
    from task.commands.mcp_servers import discovered, interpreter_check
    from task.tools.mcp.mcp_tool import MCPTool

    own = listed(settings)
    found = await discovered(settings, {tool.name for tool in own})
    foreign = [_shown(tool, f"MCP {tool.client.name}") for tool in found.tools if isinstance(tool, MCPTool)]
    python = await interpreter_check(settings)
    silent = [f"No Python: {python.found}."] if python.state != "ok" else []
    silent += [f"{issue.told}." for issue in found.issues]
    return [*own, *foreign], [*silent, *_own_key(settings), *_companions(settings)]


def _shown(tool: BaseTool, source: str) -> ListedTool:
    return ListedTool(name=tool.name, description=tool.description, effects=sorted(tool.effects), source=source)


def _own_key(settings: Settings) -> list[str]:
    from task.app import mcp_specs

    names = [spec.name for spec in mcp_specs(settings) if spec.forward_key]
    return [f"The tools of {', '.join(names)} depend on each caller's own key."] if names else []


def _companions(settings: Settings) -> list[str]:
    missing = ["Python"] if settings.pyinterpreter_mcp_url is None else []
    missing += ["web search"] if settings.ddg_mcp_url is None else []
    return [COMPANIONS.format(missing=" and ".join(missing))] if missing else []


def show(settings: Settings, as_json: bool) -> None:
    """Print the tools as a table, or as one JSON array."""
    tools, sentences = asyncio.run(listed_with_servers(settings))
    if as_json:
        print(_LISTING.dump_json(tools).decode())
        return
    table = Table(box=SIMPLE)
    for heading in ("Tool", "From", "Effects", "Description"):
        table.add_column(heading, overflow="fold")
    for tool in tools:
        effects = ", ".join(tool.effects) or "none"
        table.add_row(Text(tool.name), Text(tool.source), effects, Text(_first_paragraph(tool.description)))
    console = Console(highlight=False)
    console.print(table)
    for sentence in sentences:
        console.print(Text(sentence))


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
