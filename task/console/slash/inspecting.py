"""What users look up in the console: sessions, grants, tools with what is missing."""

from __future__ import annotations

from datetime import datetime

from task.console.terminal.rendering import one_line
from task.errors import InvalidRequest
from task.llm.window import schema_tokens
from task.permissions.names import names_of
from task.product import Services
from task.product.framework import ConsoleProduct
from task.product.profile import available
from task.runs.request import RunCaller
from task.store.records import StoredGrant
from task.tools.base import BaseTool
from task.tools.mcp.mcp_tool import MCPTool
from task.tools.toolbox import named

PYTHON, SEARCH, PICTURES = "execute_code", "duckduckgo_web_search", "image_generation_tool"
MISSING = {
    PYTHON: "Python: no interpreter server is connected; `dial-agent up` starts one, PYINTERPRETER_MCP_URL names one.",
    SEARCH: "web search: no search server is connected; `dial-agent up` starts one, DDG_MCP_URL names one.",
}
NOTHING_ALLOWED = "Nothing is allowed for longer than one call."
NO_CORE = "files of DIAL Core: none is connected; files of the working directory and pictures can be attached."
LISTED = 20  # sessions


def _local_time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds).astimezone().strftime("%Y-%m-%d %H:%M")


async def listed_sessions(services: Services, owner: str, current: str | None) -> str:
    """The owner's sessions, numbered, the last used first."""
    sessions = (await (await services.store.get()).sessions.list(owner, LISTED)).items
    if not sessions:
        return "There are no sessions yet."
    lines = ["Sessions, the last used first:"]
    for number, session in enumerate(sessions, 1):
        marks = " (current)" * (session.session_id == current) + " (ended)" * (session.ended_at is not None)
        details = f"{session.session_id}, {session.length} messages, {_local_time(session.updated_at)}"
        lines.append(f"{number}. {one_line(session.title) or 'Untitled'}{marks}: {details}")
    return "\n".join([*lines, "/resume NUMBER continues one."])


async def session_named(services: Services, owner: str, which: str) -> str:
    """The id of the session with this number in the list; a longer word is an id.

    Raises:
        InvalidRequest: the list has no such number.
    """
    if not which.isdecimal() or len(which) > 3:
        return which
    found = [item.session_id for item in (await (await services.store.get()).sessions.list(owner, LISTED)).items]
    if not 0 < int(which) <= len(found):
        raise InvalidRequest(f"There is no session {which}; /resume lists {len(found)}.")
    return found[int(which) - 1]


async def grants(product: ConsoleProduct, owner: str, session_id: str | None) -> str:
    """The grants that count in this session, numbered."""
    found = await valid_grants(product, owner, session_id)
    lines = [f"{number}. {_described(grant)} ({grant.grant_id})" for number, grant in enumerate(found, 1)]
    return "\n".join(["Allowed without asking:", *lines]) if lines else NOTHING_ALLOWED


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
    until = f", until {_local_time(grant.expires_at)}" if grant.expires_at is not None else ""
    return f"{grant.data.get('description') or grant.data.get('tool', '')}{until}"


async def tools(product: ConsoleProduct, caller: RunCaller) -> str:
    """The tools of the next turn with their source and their size in every request, then what is missing and why."""
    services, profile, asking = product.services, product.profile, caller.of_tools()
    own, local = await profile.own_tools(), await profile.workspace_tools(asking)
    usable = await available(services, profile, own, caller.core_key)
    served = await services.mcp.discover(asking, named([*own, *local]))
    found: dict[BaseTool, str] = {**dict.fromkeys(usable, "agent"), **dict.fromkeys(local, "working directory")}
    found |= {tool: f"MCP {tool.client.name}" if isinstance(tool, MCPTool) else "agent" for tool in served.tools}
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
