"""The checks of `dial-agent doctor` of what the model gets with every request: context, tools, and the gate's rules."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress

from task.cli.checks import CORRECT, Check, own_tools
from task.cli.tools import discover_tools
from task.context.prompt import context_prompt
from task.conversation.pruning import text_tokens
from task.errors import SettingsError
from task.llm.window import schema_tokens
from task.permissions.coding import CODING_RULES, WORKSPACE_TOOLS
from task.permissions.names import names_of
from task.permissions.policy import DEFAULT_RULES, Policy, dead_commands, dead_rules
from task.product.parts import context_manager, mcp_specs, policy_of
from task.prompts import SYSTEM_PROMPT
from task.settings import Settings
from task.tools.base import BaseTool
from task.tools.mcp.hub import Discovered, Issue, ServerSpec
from task.tools.mcp.mcp_tool import MCPTool
from task.tools.mcp.mcp_tool_model import fit
from task.tools.toolbox import named

INTERPRETERS_TOOLS, SEARCH_TOOLS = ("execute_code",), ("duckduckgo_web_search", "fetch_page")  # of servers of `up`
READ_DOCUMENT = "read_context_document"
HEAVY_TOOL, HEAVY_TOOLS, HEAVY_PROMPT = 1500, 8000, 8000  # tokens


async def prompt_checks(settings: Settings) -> list[Check]:
    """Rules, context files, MCP servers, names of tools, and the tokens of schemas and system prompt."""
    context, added = _context(settings)
    try:
        specs = mcp_specs(settings)
    except SettingsError as error:
        servers = Check("MCP servers", "bad", str(error), "Rename one of them.")
        return [rules_check(settings), context, servers, _prompt(settings, added)]
    own, found = list[BaseTool](), Discovered()
    with suppress(SettingsError):  # the row of the tools reports it
        own = own_tools(settings)
        found = await discover_tools(settings, named(own))
    policy, issues = _policy(settings), found.issues
    tools = [tool for tool in (*own, *found.tools) if policy is not None and policy.offers(tool.name)]
    complete = not issues and not any(spec.forward_key for spec in specs)
    rules = rules_check(settings, [tool.name for tool in found.tools] if complete else None)
    return [rules, context, *_servers(specs, issues), *_names(tools), *_schemas(tools), _prompt(settings, added)]


def rules_check(settings: Settings, of_servers: Sequence[str] | None = None) -> Check:
    """Rules that can never decide, and entries of the lists of tools and commands that fit nothing.

    `of_servers` are the tools of the MCP servers of the settings; None: not all of them are known.
    """
    try:
        policy = policy_of(settings)
    except SettingsError as error:
        return Check("permission rules", "bad", str(error), CORRECT)
    known, own = _known_tools(settings, of_servers), len(settings.permissions.rules)
    dead = [
        f"rule {found.number} ({found.rule.describe()}) never decides: {found.reason}"
        for found in dead_rules(policy.rules, known)
        if found.number <= own
    ]
    if dead := [*dead, *_dead_entries(settings, policy, known)]:
        fix = "Correct or remove it; a rule that another one hides can also move up in AGENT_PERMISSIONS__RULES."
        return Check("permission rules", "note", "; ".join(dead), fix)
    if any(rule.action == "allow" and rule.trusted for rule in policy.rules):
        text = f"{own} of your own; some allow calls even when text from outside is in the conversation (trusted)"
        return Check("permission rules", "note", text, "Trust only rules that can do no harm.")
    builtin = (*DEFAULT_RULES, *(CODING_RULES if settings.coding.apply else ()))
    builtin = len(builtin) if settings.permissions.default_rules else 0
    return Check("permission rules", "ok", f"{own} of your own, {builtin} of the product's")


def _dead_entries(settings: Settings, policy: Policy, known: Sequence[str] | None) -> list[str]:
    lists = {"permissions.tools": settings.permissions.tools, "teps.allowed_tools": settings.teps.allowed_tools}
    named = [(key, name) for key, names in lists.items() for name in names or ()]
    dead = [f"{text} is in teps.bash.allowed_commands, but a rule denies it" for text in dead_commands(policy)]
    if policy.only is not None and not policy.only:
        dead.append(f"no tool is left by {' and '.join(key for key, names in lists.items() if names is not None)}")
    if known is None:
        return dead
    return dead + [f"{key}: no tool is called {name}" for key, name in named if names_of(name).isdisjoint(known)]


def _known_tools(settings: Settings, of_servers: Sequence[str] | None) -> list[str] | None:
    if of_servers is None and (settings.mcp_servers or settings.ddg_mcp_url):
        return None  # their tools have names of their own
    companions = (*INTERPRETERS_TOOLS, *(() if settings.ddg_mcp_url else SEARCH_TOOLS))
    try:
        own = (tool.name for tool in own_tools(settings))
        return [*own, *WORKSPACE_TOOLS, *companions, *(of_servers or ())]
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
    personas = manager.persona_ids()
    found = f"{len(manager.documents) - len(personas)} documents, {len(personas)} personas"
    warnings = list(manager.warnings)
    if rendered.left_out:
        found += f"; read by {READ_DOCUMENT}: {', '.join(rendered.left_out)}"
        policy = _policy(settings)
        hidden = policy is not None and not policy.offers(READ_DOCUMENT)
        warnings += [f"{READ_DOCUMENT} is not among the allowed tools"] if hidden else []
    if warnings:
        fix = f"Correct {manager.path.name}, or the files and settings it needs."
        return Check("context", "note", "; ".join([found, *warnings]), fix), rendered.text
    return Check("context", "ok", found), rendered.text


def _policy(settings: Settings) -> Policy | None:
    try:
        return policy_of(settings)
    except SettingsError:  # the row of the rules reports it
        return None


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
        return Check(
            "system prompt",
            "note",
            found,
            "Shorten it, or lower context.max_prompt_bytes: the model reads with a tool what does not fit.",
        )
    return Check("system prompt", "ok", found)
