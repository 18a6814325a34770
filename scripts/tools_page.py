"""Write docs/tool-reference.md from the tools themselves; `--check` only reports whether it is current."""

import asyncio
import inspect
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from mcp import Client

from mcp_servers.duckduckgo.fetch import PageFetcher
from mcp_servers.duckduckgo.search import WebSearch
from mcp_servers.duckduckgo.server import build
from scripts.pages import publish
from task.core_client.files import DialFiles
from task.permissions.names import names_of
from task.product.parts import default_tools
from task.settings import Settings
from task.skills import Skill
from task.tools.base import BaseTool
from task.tools.find_tools import FindTools
from task.tools.mcp.mcp_client import MCPClient
from task.tools.mcp.mcp_tool import MCPTool
from task.tools.mcp.mcp_tool_model import MCPToolModel
from task.tools.offload import ReadContextDocumentTool
from task.tools.skills.read_skill_tool import ReadSkillTool
from task.tools.workspace.commands import Commands
from task.tools.workspace.launcher import Sandbox
from task.tools.workspace.root import Workspace
from task.tools.workspace.tools import workspace_tools

NOWHERE = "http://localhost:9"  # the tools are described here, never run
OPENING = """\
# Tool reference

<!-- Written by `make docs` from the tools; change their descriptions in task/tools and mcp_servers. -->

What the model reads about each tool, and what a call may do, which decides whether
[a user is asked first](permissions.md). `dial-agent tools` lists the tools of your installation. What the tools do
with a call, their limits and their settings are in [Tools](tools.md).

"""


def page() -> str:
    """The whole page: a table of the tools, then each with its description and parameters."""
    with tempfile.TemporaryDirectory() as folder:
        tools = described(Path(folder))
    rows = ["| tool | aliases | effects |", "|---|---|---|", *map(_row, tools), ""]
    return "\n".join([OPENING.rstrip("\n"), "", *rows, *map(_section, tools)])


def described(folder: Path) -> list[BaseTool]:
    """Every tool of the product, those included that an operator has to switch on; good for reading only."""
    given = {"dial_endpoint": NOWHERE, "pyinterpreter_mcp_url": NOWHERE, "data_dir": folder}
    settings = Settings.model_validate({**given, "dial_files": {"enabled": True}})
    with Workspace(folder) as workspace:
        commands = Commands(workspace, sandbox=Sandbox("bubblewrap", None))
        return [
            *default_tools(settings, files=DialFiles(NOWHERE)),
            *asyncio.run(_search_tools()),
            ReadContextDocumentTool(["…"], _no_text),
            ReadSkillTool([Skill(name="…", description="…", source="operator")]),
            FindTools([MCPTool(MCPClient(NOWHERE), MCPToolModel("…", "", {}), offered_by="your servers")]),
            *workspace_tools(workspace, commands),
        ]


async def _search_tools() -> list[BaseTool]:
    async with Client(build(WebSearch(lambda _: []), PageFetcher())) as client:
        listed = (await client.list_tools()).tools
    models = [MCPToolModel(tool.name, tool.description or "", tool.input_schema, read_only=True) for tool in listed]
    return [MCPTool(MCPClient(NOWHERE), model) for model in models]


async def _no_text(_: str) -> None: ...


def _row(tool: BaseTool) -> str:
    aliases = ", ".join(f"`{name}`" for name in sorted(names_of(tool.name) - {tool.name}))
    return f"| [`{tool.name}`](#{tool.name}) | {aliases} | {', '.join(sorted(tool.effects)) or 'none'} |"


def _section(tool: BaseTool) -> str:
    required = tool.parameters.get("required", ())
    rows = [_parameter(name, shape, name in required) for name, shape in tool.parameters["properties"].items()]
    table = ["| parameter | type | default | description |", "|---|---|---|---|", *rows]
    return "\n".join(
        [f"## {tool.name}", "", inspect.cleandoc(tool.description), "", *(table if rows else ["No parameters."]), ""]
    )


def _parameter(name: str, shape: dict[str, Any], required: bool) -> str:
    default = "required" if required else f"`{json.dumps(shape['default'])}`" if "default" in shape else ""
    cells = (f"`{name}`", _type(shape), default, " ".join(shape.get("description", "").split()))
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _type(shape: dict[str, Any]) -> str:
    if "enum" in shape:
        return ", ".join(f"`{value}`" for value in shape["enum"])
    limits = [f"{word} {shape[key]:,}" for key, word in (("minimum", "from"), ("maximum", "to")) if key in shape]
    kinds = [option.get("type", "any") for option in shape.get("anyOf", [shape])]
    return " ".join([" or ".join(kind for kind in kinds if kind != "null"), *limits])


if __name__ == "__main__":
    sys.exit(publish("tool-reference.md", page(), "the tools", sys.argv[1:]))
