"""The agent's tools: the ones its settings give, those of MCP servers, and the ones a running agent offers."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Collection
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import aiohttp
from pydantic import BaseModel, ValidationError
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table
from rich.text import Text

from task.cli.checks import Check, own_tools
from task.cli.companions import interpreter_obstacle
from task.errors import ToolError
from task.permissions.names import names_of
from task.settings import Settings

if TYPE_CHECKING:
    from task.tools.base import BaseTool
    from task.tools.mcp.hub import Discovered
    from task.tools.mcp.mcp_tool_model import MCPToolModel
    from task.tools.schemas import Format

LISTING_SECONDS, SERVER_SECONDS = 30, 3.0  # somebody waits at the terminal
INTERPRETER, CODE_TOOL = "python interpreter", "execute_code"
START = "Start it, or correct PYINTERPRETER_MCP_URL; the agent finds it when it is back."
CORRECT = "Correct AGENT_MCP_TOKEN or PYINTERPRETER_MCP_URL, or the names by which that server lets itself be called."
POINT = "Point PYINTERPRETER_MCP_URL at a server that has it, or unset it: `dial-agent up` starts its own."


@dataclass(frozen=True, slots=True)
class ListedTool:
    """A tool as it is shown to people."""

    name: str
    description: str
    effects: list[str]
    source: str
    aliases: list[str]


class _Ready(BaseModel):
    tools: list[str]


def show(settings: Settings, as_json: bool) -> None:
    """Print the tools as a table, or as one JSON array."""
    tools, sentences = asyncio.run(list_with_servers(settings))
    if as_json:
        _print_json([asdict(tool) for tool in tools])
        return
    table = Table(box=SIMPLE)
    for heading in ("Tool", "From", "Effects", "Description"):
        table.add_column(heading, overflow="fold")
    for tool in tools:
        summary = " ".join(tool.description.strip().split("\n\n")[0].split())
        table.add_row(
            Text("\nalso ".join([tool.name, *tool.aliases])),
            Text(tool.source),
            ", ".join(tool.effects) or "none",
            Text(summary),
        )
    console = Console(highlight=False)
    console.print(table)
    for sentence in sentences:
        console.print(Text(sentence))


def show_schemas(settings: Settings, form: Format) -> None:
    """Print the schemas of the tools as one JSON array; what is wrong with servers goes to standard error."""
    from task.tools.schemas import in_format

    tools, found = asyncio.run(_offered(settings))
    _print_json([in_format(tool.schema, form) for tool in tools])
    for issue in found.issues:
        print(f"{issue.summary}.", file=sys.stderr)


def _print_json(items: list[dict[str, Any]]) -> None:
    print(json.dumps(items, ensure_ascii=False, separators=(",", ":")))


async def list_with_servers(settings: Settings) -> tuple[list[ListedTool], list[str]]:
    """All tools that are offered, those of MCP servers too, and sentences about the servers that do not answer.

    Raises:
        SettingsError: a tool cannot be loaded, two servers have one name, or the policy cannot be meant.
    """
    from task.product.parts import mcp_specs

    offered, found = await _offered(settings)
    tools = list(map(_listed, offered))
    python = await interpreter_check(settings)
    sentences = [f"No Python: {python.found}."] if python.state != "ok" else []
    sentences += [f"{issue.summary}." for issue in found.issues]
    if forwarding := [spec.name for spec in mcp_specs(settings) if spec.forward_key]:
        sentences.append(f"The tools of {', '.join(forwarding)} depend on each caller's own key.")
    missing = ["Python"] if settings.pyinterpreter_mcp_url is None else []
    missing += ["web search"] if settings.ddg_mcp_url is None else []
    if missing:
        sentences.append(f"`dial-agent up` adds {' and '.join(missing)}, with servers of its own.")
    return tools, sentences


async def _offered(settings: Settings) -> tuple[list[BaseTool], Discovered]:
    from task.product.parts import policy_of

    own, policy = own_tools(settings), policy_of(settings)
    found = await discover_tools(settings, {tool.name for tool in own})
    return [tool for tool in [*own, *found.tools] if policy.offers(tool.name)], found


async def discover_tools(settings: Settings, taken: Collection[str]) -> Discovered:
    """The tools that the MCP servers offer beside those whose names are `taken`, and what is wrong with the others.

    Raises:
        SettingsError: two servers have one name.
    """
    from task.product.parts import mcp_specs
    from task.tools.mcp.hub import MCPHub

    hub = MCPHub(mcp_specs(settings), patience=SERVER_SECONDS)
    try:
        return await hub.discover(None, taken)
    finally:
        await hub.close()


async def interpreter_check(settings: Settings) -> Check:
    """The row of `doctor`: whether Python code can be run, and how it is confined."""
    from task.tools.mcp.results import Fault, MCPFailure

    url = settings.pyinterpreter_mcp_url
    if url is None:
        obstacle = interpreter_obstacle(settings)
        found = f"cannot be started here: {obstacle}" if obstacle else "is started by `dial-agent up`"
        return Check(INTERPRETER, "note" if obstacle else "ok", found)
    try:
        tools, tier = await asyncio.gather(_interpreter_tools(settings, url), _sandbox_tier(url))
    except MCPFailure as failure:
        wrong = failure.fault in (Fault.CREDENTIAL, Fault.ADDRESS)
        return Check(INTERPRETER, "bad" if wrong else "note", f"{url}: {failure.summary}", CORRECT if wrong else START)
    names = [tool.name for tool in tools]
    if CODE_TOOL not in names:
        return Check(INTERPRETER, "bad", f"{url} has no tool {CODE_TOOL}, only {', '.join(names) or 'none'}", POINT)
    return Check(INTERPRETER, "ok", f"answers at {url}" + (f"; sandbox: {tier}" if tier else "; another server"))


async def offered_tools(agent_url: str) -> list[str] | None:
    """The names of the tools that the running agent offers; None when it does not list them."""
    timeout = aiohttp.ClientTimeout(LISTING_SECONDS)
    try:
        async with aiohttp.ClientSession(timeout=timeout) as session, session.get(f"{agent_url}/ready") as response:
            return _Ready.model_validate_json(await response.read()).tools
    except (aiohttp.ClientError, TimeoutError, ValidationError):
        return None


def _listed(tool: BaseTool) -> ListedTool:
    aliases = sorted(names_of(tool.name) - {tool.name})
    return ListedTool(tool.name, tool.description, sorted(tool.effects), _source(tool), aliases)


def _source(tool: BaseTool) -> str:
    from task.tools.mcp.mcp_tool import MCPTool
    from task.tools.py_interpreter.python_code_interpreter_tool import PythonCodeInterpreterTool

    if isinstance(tool, MCPTool):
        return f"MCP {tool.client.name}"
    return INTERPRETER if isinstance(tool, PythonCodeInterpreterTool) else "agent"


async def _interpreter_tools(settings: Settings, url: str) -> list[MCPToolModel]:
    from task.product.parts import own_token
    from task.tools.mcp.mcp_client import MCPClient

    token, name = own_token(settings, url), "of the Python interpreter"
    async with MCPClient(url, token=token, name=name, probe_seconds=SERVER_SECONDS) as client:
        return await client.get_tools()


async def _sandbox_tier(url: str) -> str | None:
    from task.tools.py_interpreter.interpreter_server import InterpreterServer

    server = InterpreterServer(url, None, SERVER_SECONDS)
    try:
        return await server.sandbox_tier()
    except ToolError:
        return None
    finally:
        await server.close()
