"""The MCP servers of the settings as they are at this moment: their tools, and whether code can be run."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import aiohttp
from pydantic import BaseModel, ValidationError

from task.commands import interpreter
from task.commands.checks import Check
from task.commands.tools import INTERPRETER
from task.settings import Settings

if TYPE_CHECKING:
    from task.tools.mcp.hub import Discovered
    from task.tools.mcp.mcp_tool_model import MCPToolModel

PATIENCE = 3.0  # seconds
CODE_TOOL = "execute_code"
START = "Start it, or correct PYINTERPRETER_MCP_URL; the agent finds it when it is back."
CORRECT = "Correct AGENT_MCP_TOKEN or PYINTERPRETER_MCP_URL, or the names by which that server lets itself be called."
POINT = "Point PYINTERPRETER_MCP_URL at a server that has it, or unset it: `dial-agent up` starts its own."


class _Health(BaseModel):
    sandbox_tier: str


async def discovered(settings: Settings, taken: Collection[str]) -> Discovered:
    """The tools that the servers offer beside those whose names are `taken`, and what is wrong with the others.

    Raises:
        SettingsError: two servers have one name.
    """
    from task.app import mcp_specs
    from task.tools.mcp.hub import MCPHub

    hub = MCPHub(mcp_specs(settings), patience=PATIENCE)
    try:
        return await hub.discover(None, taken)
    finally:
        await hub.close()


async def interpreter_check(settings: Settings) -> Check:
    """The row of `doctor`: whether Python code can be run, and how it is confined."""
    from task.tools.mcp.failures import Fault, MCPFailure

    url = settings.pyinterpreter_mcp_url
    if url is None:
        obstacle = interpreter.obstacle(settings)
        found = f"cannot be started here: {obstacle}" if obstacle else "is started by `dial-agent up`"
        return Check(INTERPRETER, "note" if obstacle else "ok", found)
    try:
        tools, tier = await asyncio.gather(_tools(settings, url), _tier(url))
    except MCPFailure as failure:
        wrong = failure.fault in (Fault.CREDENTIAL, Fault.ADDRESS)
        return Check(INTERPRETER, "bad" if wrong else "note", f"{url}: {failure.told}", CORRECT if wrong else START)
    names = [tool.name for tool in tools]
    if CODE_TOOL not in names:
        return Check(INTERPRETER, "bad", f"{url} has no tool {CODE_TOOL}, only {', '.join(names) or 'none'}", POINT)
    return Check(INTERPRETER, "ok", f"answers at {url}" + (f"; sandbox: {tier}" if tier else "; a foreign server"))


async def _tools(settings: Settings, url: str) -> list[MCPToolModel]:
    from task.app import own_token
    from task.tools.mcp.mcp_client import MCPClient

    client = MCPClient(url, token=own_token(settings, url), name="of the Python interpreter", probe_seconds=PATIENCE)
    async with client:
        return await client.get_tools()


async def _tier(url: str) -> str | None:
    parts = urlsplit(url)
    try:
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(PATIENCE)) as session,
            session.get(f"{parts.scheme}://{parts.netloc}/health") as answer,
        ):
            return _Health.model_validate_json(await answer.read()).sandbox_tier
    except (aiohttp.ClientError, TimeoutError, ValidationError):
        return None
