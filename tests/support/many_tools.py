"""500 tools of invented MCP servers, and 200 requests with the tools that are right for them."""

from collections.abc import Iterator
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

from task.tools.base import BaseTool
from task.tools.mcp.mcp_tool import READS
from task.tools.mcp.mcp_tool_model import MCPToolModel, model_name
from tests.support.tools import MadeTool

DATA = Path(__file__).resolve().parents[2] / "evaluation" / "many_tools"


@cache
def servers() -> dict[str, tuple[MCPToolModel, ...]]:
    """The tools by their server's name, in the order of the file."""
    found = dict[str, list[MCPToolModel]]()
    server = ""
    for line in (DATA / "servers.txt").read_text().splitlines():
        if line.startswith("## "):
            server = line[3:]
        elif not line.startswith("#"):
            signature, _, description = line.partition(" : ")
            name, *parameters = signature.split()
            found.setdefault(server, []).append(MCPToolModel(name, description, _schema(parameters)))
    return {name: tuple(tools) for name, tools in found.items()}


def _schema(parameters: list[str]) -> dict[str, Any]:
    # As long as what public servers say of their parameters.
    properties = {
        name.rstrip("?"): {"type": "string", "description": f"The {name.rstrip('?').replace('_', ' ')} of the call"}
        for name in parameters
    }
    return {
        "type": "object",
        "properties": properties,
        "required": [name for name in parameters if not name.endswith("?")],
    }


def named_tools() -> Iterator[tuple[str, str, MCPToolModel]]:
    """Each tool with its server, under the name by which a model knows it."""
    taken = set[str]()
    for server, tools in servers().items():
        for tool in tools:
            name = model_name(tool.name, server, taken)
            taken.add(name)
            yield name, server, tool


@cache
def requests(file: str = "requests.tsv") -> tuple[tuple[str, frozenset[str]], ...]:
    """The requests, each with the names of the tools of which one is right; those of `held_out.tsv` tuned nothing."""
    known = {f"{server}:{tool.name}": name for name, server, tool in named_tools()}
    lines = (line.split("\t") for line in (DATA / file).read_text().splitlines())
    return tuple((text, frozenset(known.get(name, name) for name in names.split("|"))) for names, text in lines)


async def _no_result(**_: Any) -> str:
    return "done"


def tools(count: int = 500) -> list[BaseTool]:
    """The first of these tools, as a turn has them."""
    made = list[BaseTool]()
    for name, server, model in islice(named_tools(), count):
        tool = MadeTool(name, _no_result, model.parameters, READS, described=model.description)
        tool.offered_by = server
        made.append(tool)
    return made
