"""What people can look up in the console: grants, tools with what is missing, tokens and cost."""

from __future__ import annotations

from collections.abc import Sequence

from task.console.slash.sessions import local_time
from task.errors import InvalidRequest, ToolError
from task.llm.window import schema_tokens
from task.permissions.names import names_of
from task.product.framework import ConsoleProduct
from task.product.profile import available
from task.runs.request import RunCaller
from task.store.records import StoredGrant
from task.store.trace_records import Trace, TraceFilter
from task.tools.base import BaseTool
from task.tools.mcp.mcp_tool import MCPTool
from task.tools.models import Caller
from task.tools.toolbox import named

PYTHON, SEARCH, PICTURES = "execute_code", "duckduckgo_web_search", "image_generation_tool"
MISSING = {
    PYTHON: "Python: no interpreter server is connected; `dial-agent up` starts one, PYINTERPRETER_MCP_URL names one.",
    SEARCH: "web search: no search server is connected; `dial-agent up` starts one, DDG_MCP_URL names one.",
}
NOTHING_ALLOWED = "Nothing is allowed for longer than one call."
_TRACES = 200


async def grants(product: ConsoleProduct, owner: str, session_id: str | None) -> str:
    """The grants that count in this session, numbered."""
    found = await valid_grants(product, owner, session_id)
    if not found:
        return NOTHING_ALLOWED
    lines = [f"{number}. {_described(grant)} ({grant.grant_id})" for number, grant in enumerate(found, 1)]
    return "\n".join(["Allowed without asking:", *lines])


async def revoke(product: ConsoleProduct, owner: str, session_id: str | None, which: str) -> str:
    """Revoke the grant with this number or id, or `all` of them.

    Raises:
        InvalidRequest: there is none.
    """
    found = await valid_grants(product, owner, session_id)
    chosen = [grant for n, grant in enumerate(found, 1) if which in ("all", str(n), grant.grant_id)]
    if not chosen:
        raise InvalidRequest(f"There is no grant {which!r}; /permissions lists them." if found else NOTHING_ALLOWED)
    store = await product.services.store.get()
    for grant in chosen:
        await store.grants.revoke(owner, grant.grant_id)
    return "\n".join(f"Revoked: {_described(grant)}" for grant in chosen)


async def valid_grants(product: ConsoleProduct, owner: str, session_id: str | None) -> tuple[StoredGrant, ...]:
    """The grants that count in this session, oldest first."""
    # Without a session only those that count everywhere: the next session will have no others.
    return await (await product.services.store.get()).grants.list(owner, session_id or "")


def _described(grant: StoredGrant) -> str:
    until = f", until {local_time(grant.expires_at)}" if grant.expires_at is not None else ""
    return f"{grant.data.get('description') or grant.data.get('tool', '')}{until}"


async def tools(product: ConsoleProduct, caller: RunCaller) -> str:
    """The tools of the next turn with their effects, source and size in every request, then what is missing and why."""
    found, missing = await _found(product, caller)
    offers = product.profile.rules.policy.offers
    offered = {tool: source for tool, source in found.items() if offers(tool.name)}
    if hidden := sorted(tool.name for tool in found if tool not in offered):
        missing.append(f"not offered by the rules: {', '.join(hidden)}")
    size = schema_tokens([tool.briefed_schema for tool in offered])
    lines = [f"{len(offered)} tools, about {size} tokens of every request:"]
    lines += [_listed(tool, source) for tool, source in offered.items()]
    return "\n".join([*lines, *(["Missing:", *(f"- {sentence}" for sentence in missing)] if missing else [])])


async def _found(product: ConsoleProduct, caller: RunCaller) -> tuple[dict[BaseTool, str], list[str]]:
    async def principal() -> str:
        return caller.owner

    asking = Caller(caller.core_key, principal)
    own, local = await product.profile.own_tools(), await product.profile.workspace_tools(asking)
    usable = await available(product.services, product.profile, own, caller.core_key)
    served = await product.services.mcp.discover(asking, named([*own, *local]))
    found = {**dict.fromkeys(usable, "agent"), **dict.fromkeys(local, "working directory")}
    found |= {tool: f"MCP {tool.client.name}" if isinstance(tool, MCPTool) else "agent" for tool in served.tools}
    missing = [*await product.tools.missing(), *(f"{issue.server}: {issue.summary}" for issue in served.issues)]
    missing += [sentence for name, sentence in MISSING.items() if name not in named([*found])]
    if len(usable) < len(own):
        missing.append(f"{PICTURES}: DIAL Core does not list the deployment {product.profile.painter}.")
    return found, [*missing, *await _without_core(product, caller)]


def _listed(tool: BaseTool, source: str) -> str:
    aliases = sorted(names_of(tool.name) - {tool.name})
    name = f"{tool.name} ({', '.join(aliases)})" if aliases else tool.name
    effects, tokens = ", ".join(sorted(tool.effects)) or "no effects", schema_tokens([tool.briefed_schema])
    return f"- {name}: {effects}; {source}; {tokens} tokens"


async def _without_core(product: ConsoleProduct, caller: RunCaller) -> Sequence[str]:
    if caller.core_key:
        try:
            await product.services.files.principal(caller.core_key)
        except ToolError as error:
            return [f"files of DIAL Core: {error}"]
        return []
    return ["files of DIAL Core: none is connected; files of the working directory and pictures can be attached."]


async def cost(product: ConsoleProduct, owner: str, session_id: str) -> str:
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


async def _traces(product: ConsoleProduct, owner: str, session_id: str) -> list[Trace]:
    store, found, cursor = await product.services.store.get(), list[Trace](), None
    await store.flush()
    while True:
        page = await store.traces.list(owner, _TRACES, cursor, TraceFilter(session_id))
        found += page.items
        if (cursor := page.cursor) is None:
            return found
