"""What people can look up in the console: grants, tools with what is missing, tokens and cost."""

from __future__ import annotations

from collections.abc import Sequence

from task.errors import InvalidRequest, ToolError
from task.llm.window import schema_tokens
from task.permissions.names import names_of
from task.product.framework import FrameworkProduct
from task.runs.request import RunCaller
from task.store.records import StoredGrant, iso
from task.store.trace_records import Trace
from task.store.traces import TraceFilter
from task.tools.base import BaseTool
from task.tools.mcp.mcp_tool import MCPTool
from task.tools.models import Caller
from task.tools.toolbox import named
from task.tools.workspace.tools import WorkspaceTool

PYTHON, SEARCH, PICTURES = "execute_code", "duckduckgo_web_search", "image_generation_tool"
MISSING = {
    PYTHON: "Python: no interpreter server is connected; `dial-agent up` starts one, PYINTERPRETER_MCP_URL names one.",
    SEARCH: "web search: no search server is connected; `dial-agent up` starts one, DDG_MCP_URL names one.",
}
NOTHING_ALLOWED = "Nothing is allowed for longer than one call."
_TRACES = 200


async def grants(product: FrameworkProduct, owner: str, session_id: str | None) -> str:
    """The grants that count in this session, numbered."""
    found = await valid_grants(product, owner, session_id)
    if not found:
        return NOTHING_ALLOWED
    lines = [f"{number}. {_described(grant)} ({grant.grant_id})" for number, grant in enumerate(found, 1)]
    return "\n".join(["Allowed without asking:", *lines])


async def revoke(product: FrameworkProduct, owner: str, session_id: str | None, which: str) -> str:
    """Revoke the grant with this number or id, or `all` of them.

    Raises:
        InvalidRequest: there is none.
    """
    found = await valid_grants(product, owner, session_id)
    chosen = [grant for n, grant in enumerate(found, 1) if which in ("all", str(n), grant.grant_id)]
    if not chosen:
        raise InvalidRequest(f"There is no grant {which!r}; /permissions lists them." if found else NOTHING_ALLOWED)
    store = await product.store.get()
    for grant in chosen:
        await store.grants.revoke(owner, grant.grant_id)
    return "\n".join(f"Revoked: {_described(grant)}" for grant in chosen)


async def valid_grants(product: FrameworkProduct, owner: str, session_id: str | None) -> tuple[StoredGrant, ...]:
    """The grants that count in this session, oldest first."""
    # Without a session only those that count everywhere: the next session will have no others.
    return await (await product.store.get()).grants.list(owner, session_id or "")


def _described(grant: StoredGrant) -> str:
    until = f", until {iso(grant.expires_at)[11:16]} UTC" if grant.expires_at is not None else ""
    return f"{grant.data.get('description') or grant.data.get('tool', '')}{until}"


async def offered_tools(product: FrameworkProduct, caller: RunCaller) -> tuple[list[BaseTool], list[str]]:
    """The tools of the next turn, and a sentence about everything that is missing."""

    async def principal() -> str:
        return caller.owner

    asking = Caller(caller.core_key, principal)
    own = [*await product.own_tools(), *await product.workspace_tools(asking)]
    usable = await product.available(own, caller.core_key)
    found = await product.mcp.discover(asking, named(own))
    policy = product.approval_rules.policy
    tools = [tool for tool in (*usable, *found.tools) if policy.offers(tool.name)]
    missing = [*await product.missing(), *(f"{issue.server}: {issue.summary}" for issue in found.issues)]
    missing += [sentence for name, sentence in MISSING.items() if name not in named([*own, *found.tools])]
    if len(usable) < len(own):
        missing.append(f"{PICTURES}: DIAL Core does not list the deployment {product.painter}.")
    if hidden := sorted(tool.name for tool in (*usable, *found.tools) if not policy.offers(tool.name)):
        missing.append(f"not offered by the rules: {', '.join(hidden)}")
    return tools, [*missing, *await _without_core(product, caller)]


async def tools(product: FrameworkProduct, caller: RunCaller) -> str:
    """The tools with their effects, source and size in every request, then what is missing."""
    found, missing = await offered_tools(product, caller)
    total = schema_tokens([tool.briefed_schema for tool in found])
    lines = [f"{len(found)} tools, about {total} tokens of every request:", *map(_listed, found)]
    return "\n".join([*lines, *(["Missing:", *(f"- {sentence}" for sentence in missing)] if missing else [])])


def _listed(tool: BaseTool) -> str:
    aliases = sorted(names_of(tool.name) - {tool.name})
    name = f"{tool.name} ({', '.join(aliases)})" if aliases else tool.name
    effects, tokens = ", ".join(sorted(tool.effects)) or "no effects", schema_tokens([tool.briefed_schema])
    return f"- {name}: {effects}; {_source(tool)}; {tokens} tokens"


def _source(tool: BaseTool) -> str:
    if isinstance(tool, WorkspaceTool):
        return "working directory"
    return f"MCP {tool.client.name}" if isinstance(tool, MCPTool) else "agent"


async def _without_core(product: FrameworkProduct, caller: RunCaller) -> Sequence[str]:
    if caller.core_key:
        try:
            await product.files.principal(caller.core_key)
        except ToolError as error:
            return [f"files of DIAL Core: {error}"]
        return []
    return ["files of DIAL Core: none is connected; files of the working directory and pictures can be attached."]


async def cost(product: FrameworkProduct, owner: str, session_id: str) -> str:
    """The tokens and the cost of the session's runs, by model."""
    traces = await _traces(product, owner, session_id)
    usage: dict[str, list[int]] = {}
    for trace in traces:
        for model, used in trace.usage.items():
            prompt, completion = usage.setdefault(model, [0, 0])
            usage[model] = [prompt + used.prompt_tokens, completion + used.completion_tokens]
    total = sum(map(sum, usage.values()))
    lines = [f"{total} tokens in {len(traces)} runs of the session {session_id}.", *map(_line, usage.items())]
    priced = [trace.cost for trace in traces if trace.cost is not None]
    if not priced:
        return "\n".join([*lines, "Cost: unknown; the setting `prices` has the prices of models."])
    unpriced = f", without {len(traces) - len(priced)} runs of models without a price" * (len(priced) < len(traces))
    return "\n".join([*lines, f"Cost: {sum(priced):.6g}{unpriced}."])


def _line(item: tuple[str, list[int]]) -> str:
    model, (prompt, completion) = item
    return f"- {model}: {prompt} in requests, {completion} in answers"


async def _traces(product: FrameworkProduct, owner: str, session_id: str) -> list[Trace]:
    store, found, cursor = await product.store.get(), list[Trace](), None
    await store.flush()
    while True:
        page = await store.traces.list(owner, _TRACES, cursor, TraceFilter(session_id))
        found += page.items
        if (cursor := page.cursor) is None:
            return found
