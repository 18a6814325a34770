"""The command `/tools`: what the next turn may use, and what is missing and why."""

from __future__ import annotations

from typing import TYPE_CHECKING

from task.closing import run_blocking
from task.llm.window import schema_tokens
from task.permissions.names import names_of
from task.product.framework import ConsoleProduct
from task.product.names import named_tools
from task.product.profile import available
from task.runs.request import RunCaller
from task.tools.base import BaseTool
from task.tools.mcp.mcp_tool import MCPTool
from task.tools.toolbox import named

if TYPE_CHECKING:
    from task.console.controller import FrameworkController

PYTHON, SEARCH, PICTURES = "execute_code", "duckduckgo_web_search", "image_generation_tool"
MISSING = {
    PYTHON: "Python: no interpreter server is connected; `dial-agent up` starts one, PYINTERPRETER_MCP_URL names one.",
    SEARCH: "web search: no search server is connected; `dial-agent up` starts one, DDG_MCP_URL names one.",
}
NO_CORE = "files of DIAL Core: none is connected; files of the working directory and pictures can be attached."


def list_tools(console: FrameworkController, argument: str) -> str:
    return run_blocking(_described_tools, console.product, console.caller)


async def _described_tools(product: ConsoleProduct, caller: RunCaller) -> str:
    # The tools of the next turn with their source and their size in every request, then what is missing and why.
    services, profile, asking = product.services, product.profile, caller.of_tools()
    own, local = await profile.own_tools(), await profile.workspace_tools(asking)
    usable = await available(services, profile, own, caller.core_key)
    served = await named_tools(services, profile, asking, named([*own, *local]))
    found: dict[BaseTool, str] = {**dict.fromkeys(usable, "agent"), **dict.fromkeys(local, "working directory")}
    found |= {
        tool: f"{tool.client.kind} {tool.client.name}" if isinstance(tool, MCPTool) else "agent"
        for tool in served.tools
    }
    offered = {tool: source for tool, source in found.items() if profile.rules.policy.offers(tool.name)}

    missing = [*await product.tools.missing(), *(f"{issue.server}: {issue.summary}" for issue in served.issues)]
    missing += [sentence for name, sentence in MISSING.items() if name not in named([*found])]
    if len(usable) < len(own):
        missing.append(f"{PICTURES}: DIAL Core does not list the deployment {profile.painter}.")
    if not caller.core_key:
        missing.append(NO_CORE)
    if hidden := sorted(tool.name for tool in found if tool not in offered):
        missing.append(f"not offered by the rules: {', '.join(hidden)}")

    size = schema_tokens([tool.briefed_schema for tool in offered])
    lines = [f"{len(offered)} tools, about {size} tokens of every request:"]
    for tool, source in offered.items():
        names = " or ".join(sorted(names_of(tool.name)))
        lines.append(f"- {names}: {source}; {schema_tokens([tool.briefed_schema])} tokens")
    return "\n".join([*lines, *(["Missing:", *(f"- {sentence}" for sentence in missing)] if missing else [])])
