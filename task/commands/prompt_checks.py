"""The checks of `dial-agent doctor` of what the model gets with every request: context, tools, and the gate's rules."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from task.commands.checks import Check
from task.commands.tools import discover_tools
from task.context.dcm_manager import context_prompt
from task.conversation.pruning import text_tokens
from task.errors import SettingsError
from task.llm.window import schema_tokens
from task.permissions.policy import dead_rules
from task.product.parts import context_manager, default_tools, mcp_specs, policy_of
from task.prompts import SYSTEM_PROMPT
from task.settings import Settings
from task.tools.base import BaseTool
from task.tools.mcp.hub import Issue, ServerSpec
from task.tools.mcp.mcp_tool import MCPTool
from task.tools.mcp.mcp_tool_model import fit
from task.tools.toolbox import named

HEAVY_TOOL, HEAVY_TOOLS, HEAVY_PROMPT = 1500, 8000, 8000  # tokens


async def prompt_checks(settings: Settings) -> list[Check]:
    """Context files, MCP servers, names of tools, and the tokens of schemas and system prompt."""
    context, added = _context(settings)
    try:
        specs = mcp_specs(settings)
    except SettingsError as error:
        return [context, Check("MCP servers", "bad", str(error), "Rename one of them."), _prompt(settings, added)]
    tools, issues = await _tools_and_issues(settings)
    return [context, *_servers(specs, issues), *_names(tools), *_schemas(tools), _prompt(settings, added)]


def rules_check(settings: Settings) -> Check:
    """Rules that can never decide: another one always comes first, or no tool has such a name."""
    policy = policy_of(settings)
    own = len(settings.permissions.rules)
    dead = [found for found in dead_rules(policy.rules, _known_tools(settings)) if found.number <= own]
    if dead:
        rules = (f"rule {found.number} ({found.rule.describe()}) never decides: {found.reason}" for found in dead)
        return Check(
            "permission rules", "note", "; ".join(rules), "Remove it, or move it up in AGENT_PERMISSIONS__RULES."
        )
    if any(rule.action == "allow" and rule.trusted for rule in policy.rules):
        text = f"{own} of your own; some allow calls even when text from outside is in the conversation (trusted)"
        return Check("permission rules", "note", text, "Trust only what cannot do harm.")
    return Check("permission rules", "ok", f"{own} of your own, {len(policy.rules) - own} of the product's")


def _known_tools(settings: Settings) -> list[str] | None:
    if settings.mcp_servers or settings.ddg_mcp_url:
        return None  # their tools have names of their own
    try:
        return [tool.name for tool in default_tools(settings)]
    except SettingsError:  # the row of the tools reports it
        return None


def _context(settings: Settings) -> tuple[Check, str]:
    try:
        manager = context_manager(settings)
    except SettingsError as error:
        return Check("context", "bad", str(error), "Correct the path or the persona, or remove it."), ""
    if manager is None:
        return Check("context", "ok", "none"), ""
    rendered = context_prompt(manager, settings.context.persona)
    warnings = [*manager.warnings, *(f"{name} has no room in the prompt" for name in rendered.left_out)]
    personas = manager.persona_ids()
    found = f"{len(manager.documents) - len(personas)} documents, {len(personas)} personas"
    if warnings:
        fix = f"Correct {manager.path.name}, or the files and context settings it needs."
        return Check("context", "note", "; ".join([found, *warnings]), fix), rendered.text
    return Check("context", "ok", found), rendered.text


async def _tools_and_issues(settings: Settings) -> tuple[list[BaseTool], Sequence[Issue]]:
    try:
        own = default_tools(settings)
        found = await discover_tools(settings, named(own))
    except SettingsError:  # the row of the tools reports it
        return [], ()
    return [*own, *found.tools], found.issues


def _servers(specs: Sequence[ServerSpec], issues: Sequence[Issue]) -> list[Check]:
    silent = {issue.server for issue in issues}
    rows = [Check(f"MCP server {issue.server}", "bad", issue.summary, "Start it, or correct its address and key.")
            for issue in issues]  # fmt: skip
    for spec in specs:
        if spec.name not in silent:
            found = "is asked with each caller's own key" if spec.forward_key else f"answers at {spec.url}"
            rows.append(Check(f"MCP server {spec.name}", "ok", found))
    return rows


def _names(tools: Sequence[BaseTool]) -> list[Check]:
    if not tools:
        return []
    alike: defaultdict[str, list[str]] = defaultdict(list)
    for tool in tools:
        alike[tool.name.casefold().replace("-", "_")].append(tool.name)
    clashes = [f"{' and '.join(names)} differ in case or dashes only" for names in alike.values() if len(names) > 1]
    clashes += [
        f"{tool.mcp_tool_model.name} of a server is called {tool.name}, because its own name was taken"
        for tool in tools
        if isinstance(tool, MCPTool) and tool.name != fit(tool.mcp_tool_model.name)
    ]
    if clashes:
        return [Check("tool names", "note", "; ".join(clashes), "Offer only one of them: a model mixes such names up.")]
    return [Check("tool names", "ok", f"{len(tools)}, all different")]


def _schemas(tools: Sequence[BaseTool]) -> list[Check]:
    if not tools:
        return []
    sizes = sorted(((schema_tokens([tool.schema]), tool.name) for tool in tools), reverse=True)
    total, heavy = sum(size for size, _ in sizes), [f"{name} {size:,}" for size, name in sizes if size > HEAVY_TOOL]
    found = f"about {total:,} tokens in every request; the largest: {sizes[0][1]} {sizes[0][0]:,}"
    if heavy:
        return [Check("tool schemas", "note", f"{found}; heavy: {', '.join(heavy)}", "Shorten their descriptions.")]
    if total > HEAVY_TOOLS:
        return [Check("tool schemas", "note", found, "Offer fewer tools, with `tools` of the MCP servers.")]
    return [Check("tool schemas", "ok", found)]


def _prompt(settings: Settings, added: str) -> Check:
    own, context = text_tokens(settings.system_prompt or SYSTEM_PROMPT), text_tokens(added)
    found = f"about {own + context:,} tokens in every request" + (f", {context:,} of them context" if context else "")
    if own + context > HEAVY_PROMPT:
        return Check("system prompt", "note", found, "Shorten it, or let the model read documents with a tool.")
    return Check("system prompt", "ok", found)
