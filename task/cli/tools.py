"""The agent's tools: the ones its settings give, those of MCP servers, and the ones a running agent offers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Annotated, Any

import aiohttp
import typer
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table
from rich.text import Text

from task.cli.options import AsJson, Config, print_json, read_settings, write
from task.context.prompt import LiveContext, context_prompt
from task.core_client.files import DialFiles
from task.errors import SettingsError
from task.permissions.icerc import visible
from task.permissions.names import names_of
from task.product.parts import context_manager, default_tools, mcp_specs, policy_of
from task.product.profile import context_tools
from task.settings import Settings
from task.tools.base import BaseTool, Format, in_format
from task.tools.mcp.hub import Discovered, MCPHub, ServerSpec
from task.tools.mcp.mcp_tool import MCPTool
from task.tools.py_interpreter.python_code_interpreter_tool import PythonCodeInterpreterTool

app = typer.Typer(add_completion=False)
Cell = str | tuple[str, str]  # a text, with its style
LISTING_SECONDS, SERVER_SECONDS = 30, 3.0  # a user waits at the terminal


@app.command()
def tools(
    config: Config = None,
    as_json: AsJson = False,
    form: Annotated[
        Format | None, typer.Option("--format", help="The tools' schemas as one JSON array in this format.")
    ] = None,
) -> None:
    """Print the tools, or their schemas."""
    asyncio.run(show(read_settings(config), as_json, form))


async def show(settings: Settings, as_json: bool = False, form: Format | None = None) -> None:
    """Print the tools as a table or one JSON array, or their schemas in this `form`."""
    inspection = Inspection(settings)
    if form is not None:
        print_json([in_format(tool.schema, form) for tool in await inspection.offered()])
        for issue in (await inspection.of_servers()).issues:
            write(f"{issue.summary}.", err=True)
        return
    tools, sentences = await list_with_servers(inspection)
    if as_json:
        print_json(tools)
        return
    rows = list[Sequence[Cell]]()
    for tool in tools:
        names, summary = "\nalso ".join([tool["name"], *tool["aliases"]]), tool["description"].strip().split("\n\n")[0]
        effects = ", ".join(tool["effects"]) or "none"
        rows.append((names, tool["source"], effects, " ".join(summary.split())))
    print_table(("Tool", "From", "Effects", "Description"), rows, sentences)


def print_table(headings: Sequence[str], rows: Iterable[Sequence[Cell]], sentences: Sequence[str] = ()) -> None:
    """Print the rows under their headings, and the sentences below them."""
    table, console = Table(box=SIMPLE), Console(highlight=False)
    for heading in headings:
        table.add_column(heading, overflow="fold")
    for row in rows:
        cells = [(cell, "") if isinstance(cell, str) else cell for cell in row]
        table.add_row(*(Text(visible(text), style) for text, style in cells))
    for item in (table, *(Text(visible(sentence)) for sentence in sentences)):
        console.print(item)


async def list_with_servers(inspection: Inspection) -> tuple[list[dict[str, Any]], list[str]]:
    """All tools that are offered, those of MCP servers too, and sentences about the servers that do not answer.

    A tool is what `--json` prints of it: `name`, `description`, `effects`, `source`, `aliases`.

    Raises:
        SettingsError: a tool cannot be loaded, two servers have one name, or the policy cannot be meant.
    """
    from task.cli.checks import interpreter_check

    settings, tools = inspection.settings, list[dict[str, Any]]()
    for tool in await inspection.offered():
        source = f"{tool.client.kind} {tool.client.name}" if isinstance(tool, MCPTool) else "agent"
        source = "python interpreter" if isinstance(tool, PythonCodeInterpreterTool) else source
        listed = {"name": tool.name, "description": tool.description, "effects": sorted(tool.effects)}
        tools.append({**listed, "source": source, "aliases": sorted(names_of(tool.name) - {tool.name})})
    [python] = await interpreter_check.checks(inspection)
    sentences = [f"No Python: {python.found}."] if python.state != "ok" else []
    sentences += [f"{issue.summary}." for issue in (await inspection.of_servers()).issues]
    if forwarding := [spec.name for spec in mcp_specs(settings) if spec.forward_key]:
        sentences.append(f"The tools of {', '.join(forwarding)} depend on each caller's own key.")
    if settings.pyinterpreter_mcp_url is None or settings.ddg_mcp_url is None:
        sentences.append("`dial-agent up` adds Python and web search, with servers of its own.")
    return tools, sentences


def own_tools(settings: Settings) -> list[BaseTool]:
    """The tools that the agent offers with these settings, good for listing only.

    Raises:
        SettingsError: a tool of `AGENT_TOOL_PATHS` cannot be loaded.
    """
    tools = default_tools(settings, files=DialFiles(settings.dial_endpoint))
    with suppress(SettingsError):  # the row of the context reports it
        if (manager := context_manager(settings)) is not None:
            prompt = context_prompt(manager, settings.context.persona)
            return [*tools, *context_tools(LiveContext(manager), prompt)]
    return tools


class Inspection:
    """The settings that are looked at, and what their MCP servers offer, asked once."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._discovered: Discovered | None = None

    @cached_property
    def servers(self) -> list[ServerSpec]:
        """The servers and APIs of the settings. Raises SettingsError."""
        return mcp_specs(self.settings)

    async def of_servers(self) -> Discovered:
        """The tools that the MCP servers offer beside the agent's own, and what is wrong with the others.

        Raises:
            SettingsError: two servers have one name, or a tool of `AGENT_TOOL_PATHS` cannot be loaded.
        """
        if self._discovered is None:
            taken = {tool.name for tool in own_tools(self.settings)}
            hub = MCPHub(self.servers, patience=SERVER_SECONDS)
            try:
                self._discovered = await hub.discover(None, taken)
            finally:
                await hub.close()
        return self._discovered

    async def offered(self) -> list[BaseTool]:
        """The agent's own tools and those of servers that the policy offers. Raises SettingsError."""
        own, policy = own_tools(self.settings), policy_of(self.settings)
        return [tool for tool in (*own, *(await self.of_servers()).tools) if policy.offers(tool.name)]


async def offered_tools(agent_url: str) -> list[str] | None:
    """The names of the tools that the running agent offers; None when it does not list them."""
    timeout = aiohttp.ClientTimeout(LISTING_SECONDS)
    try:
        async with aiohttp.ClientSession(timeout=timeout) as session, session.get(f"{agent_url}/ready") as response:
            return [str(name) for name in json.loads(await response.read())["tools"]]
    except (aiohttp.ClientError, TimeoutError, ValueError, LookupError, TypeError):
        return None
