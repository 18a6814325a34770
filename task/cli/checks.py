"""What a row of `doctor` is, and the rows about servers, of which `up` shows some: agent, Core, model, interpreter."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Literal
from urllib.parse import unquote

import aiohttp

from task.cli.addresses import CoreClient, CoreError, base_url, core_address, core_is_ours, key_for, port_fault
from task.cli.companions import interpreter_obstacle
from task.cli.model_choice import PULL, choose_model, chosen_of_dapr, chosen_of_ollama, embedded_model, upstream_models
from task.cli.tools import SERVER_SECONDS, Inspection
from task.core_client.models import Caller, nobody
from task.errors import InvalidRequest, SettingsError
from task.permissions.names import names_of
from task.processes import answers
from task.product import opened
from task.product.applications import narrowed
from task.product.backends import BACKENDS
from task.product.parts import own_token
from task.product.profile import offered
from task.settings import Settings
from task.tools.mcp.mcp_client import MCPClient
from task.tools.mcp.results import Fault, MCPFailure

HEALTH_TIMEOUT = aiohttp.ClientTimeout(total=1)
CORE_TIMEOUT = aiohttp.ClientTimeout(total=5, sock_connect=2)
AGENT, PICTURES, CODE_TOOL = "general-purpose-agent", "pictures", "execute_code"
SEARCH_TOOLS = ("duckduckgo_web_search", "fetch_page")  # of the server that `up` starts
REFUSED = (401, 403)
CORRECT, START = "Correct the setting that is named.", "Start it with `dial-agent up`."
CORE_PORT = "Stop that process, or choose another port with AGENT_CORE_PORT."
REGISTER = "`dial-agent core-config --fragment` prints what to add to its configuration; `dial-agent doctor` checks it."
UNREACHED = (
    "`dial-agent core-config --fragment --agent URL` prints the entry; AGENT_HOST=0.0.0.0 admits other machines."
)
NO_SUCH_MODEL = "Correct DEPLOYMENT_NAME, or add the model."
NO_MODEL = (
    "Run `dial-agent model pull` for a small one on this machine, or start Ollama with a model, or set OPENAI_API_KEY "
    "(and OPENAI_BASE_URL for another provider), or DIAL_ENDPOINT and DIAL_API_KEY for a real DIAL Core."
)
State = Literal["ok", "note", "bad"]  # a note works, but should be looked at
Finding = tuple[State, str] | tuple[State, str, str]  # the state, what was found, and another fix than the row's


@dataclass(frozen=True, slots=True)
class Check:
    """What a row prints."""

    name: str
    state: State
    found: str
    fix: str = ""


Look = Callable[[Inspection], Awaitable[Finding | dict[str, Finding] | None]]


@dataclass(frozen=True, slots=True)
class Row:
    """A check: its name, what looks, and what to do where that finds a problem or raises SettingsError.

    What looks finds None where there is nothing to check, and findings by name where there are several things.
    """

    name: str
    fix: str
    look: Look

    async def checks(self, inspection: Inspection) -> list[Check]:
        """What it finds."""
        try:
            found = await self.look(inspection)
        except SettingsError as error:
            found = "bad", str(error)
        if not isinstance(found, dict):
            found = {self.name: found} if found else {}
        return [
            Check(name, state, text, *(fix or ["" if state == "ok" else self.fix]))
            for name, (state, text, *fix) in found.items()
        ]


def row(rows: list[Row], name: str, fix: str = CORRECT) -> Callable[[Look], Row]:
    """Add the row whose check is the decorated function to the rows."""

    def added(look: Look) -> Row:
        rows.append(one := Row(name, fix, look))
        return one

    return added


async def checked(settings: Settings, rows: Sequence[Row]) -> list[Check]:
    """What the rows find, in their order."""
    inspection = Inspection(settings)
    return [check for row in rows for check in await row.checks(inspection)]


SERVERS: list[Row] = []


@row(SERVERS, "python interpreter", "Start it, or correct PYINTERPRETER_MCP_URL; the agent finds it when it is back.")
async def interpreter_check(inspection: Inspection) -> Finding:
    settings = inspection.settings
    if (url := settings.pyinterpreter_mcp_url) is None:
        if obstacle := interpreter_obstacle(settings):
            return "note", f"cannot be started here: {obstacle}", ""  # its own sentence has the fix
        return "ok", "is started by `dial-agent up`"
    token, name = own_token(settings, url), "of the Python interpreter"
    try:
        async with MCPClient(url, token=token, name=name, probe_seconds=SERVER_SECONDS) as client:
            tools = await client.get_tools()
    except MCPFailure as failure:
        found, fix = f"{url}: {failure.summary}", "Correct AGENT_MCP_TOKEN, PYINTERPRETER_MCP_URL or its allowed hosts."
        return ("bad", found, fix) if failure.fault in (Fault.CREDENTIAL, Fault.ADDRESS) else ("note", found)
    names = [tool.name for tool in tools]
    if CODE_TOOL not in names:
        fix = "Name a server that has it, or unset PYINTERPRETER_MCP_URL: `dial-agent up` starts its own."
        return "bad", f"{url} has no tool {CODE_TOOL}, only {', '.join(names) or 'none'}", fix
    return "ok", f"answers at {url}"


async def _answers(settings: Settings) -> bool:
    async with aiohttp.ClientSession(timeout=HEALTH_TIMEOUT) as session:
        return await answers(session, f"{base_url(settings.host, settings.port)}/health")


@row(SERVERS, "agent", START)
async def agent_check(inspection: Inspection) -> Finding:
    settings = inspection.settings
    if await _answers(settings):
        return "ok", f"answers at {base_url(settings.host, settings.port)}"
    if fault := port_fault(settings.host, settings.port):
        return "bad", fault, "Stop that process, or choose another port with AGENT_PORT."
    return "note", f"is not running; port {settings.port} is free"


@row(SERVERS, "core", "Set DIAL_API_KEY.")
async def core_check(inspection: Inspection) -> Finding | dict[str, Finding]:
    settings = inspection.settings
    address, ours = core_address(settings), core_is_ours(settings)
    client = CoreClient(address, key_for(settings, address), CORE_TIMEOUT)
    rows: dict[str, Finding] = {"core": ("ok", f"answers at {address}"), "core key": ("ok", "accepted")}
    try:
        await client.bucket()
    except CoreError as error:
        if error.status in REFUSED:
            rows["core key"] = "bad", f"{address} answers: {error}", "Set DIAL_API_KEY to a key this Core knows."
            return rows
        if error.status:
            fix = "Correct DIAL_ENDPOINT if that is not DIAL Core's address, or check Core's log."
            return "bad", f"{address} answers: {error}", CORE_PORT if ours else fix
        if not ours:
            return "bad", str(error), "Correct DIAL_ENDPOINT, or unset it to use local Core."
        if fault := port_fault(settings.core.host, settings.core_port):
            return "bad", fault, CORE_PORT
        return "note", f"local Core is not running; port {settings.core_port} is free", START
    try:
        names = await client.deployments()
        reached = await client.reaches(AGENT) if AGENT in names and await _answers(settings) else None
    except CoreError as error:
        return {**rows, "deployments": ("bad", str(error), "Check Core's log.")}
    fixes = {AGENT: REGISTER} if ours else {AGENT: REGISTER, settings.deployment_name: NO_SUCH_MODEL}
    rows["deployments"] = "ok", ", ".join(names)
    if missing := [name for name in fixes if name not in names]:
        found = f"Core does not list {', '.join(missing)}; it lists {', '.join(names) or 'nothing'}"
        rows["deployments"] = "bad", found, " ".join(fixes[name] for name in missing)
    if reached is not None:  # Core tried
        found = "Core does not reach the agent at the address of its configuration"
        rows["core to agent"] = ("ok", "Core reaches the agent") if reached else ("bad", found, UNREACHED)
    painter = settings.deployments.image
    if painter not in (*names, "off"):
        fix = f"Add {painter} to Core's configuration, or set AGENT_DEPLOYMENTS__IMAGE to another deployment or `off`."
        rows[PICTURES] = "note", f"Core does not list {painter}, so image_generation_tool is not offered", fix
    return rows


@row(SERVERS, "model")
async def model_check(inspection: Inspection) -> Finding:
    model = await choose_model(inspection.settings)
    found = f"{model.name}, because {model.reason}"
    if model.rule == "demo":
        return "note", f"{found} (a demo, not a real model)", NO_MODEL
    if model.rule == "local" and embedded_model(inspection.settings).found() is None:
        return "bad", f"{found}; it is not on this machine", "Run `dial-agent model pull`."
    if model.ollama is not None and not model.ollama.can("tools"):
        return "note", found, f"`{PULL}` gets a model with tools."
    if model.rule != "upstream":
        return "ok", found
    address, key = model.base_url or "", model.api_key
    names, status = await upstream_models(address, key)
    if model.name in names:
        return "ok", found
    if names:
        listed = ", ".join(names[:8])
        return "note", f"{found}; it does not list this model", f"Set DEPLOYMENT_NAME to one of: {listed}."
    if (await upstream_models(f"{address}/v1", key))[0]:
        return "bad", f"{found}; it lists no models there", f"Set OPENAI_BASE_URL={address}/v1."
    if status is None:
        return "bad", f"{found}; nothing answers there", "Start it, or correct OPENAI_BASE_URL."
    if status in REFUSED:
        return "bad", f"{found}; it refuses the key", "Set OPENAI_API_KEY to one that it knows."
    return "bad", f"{found}; it lists no models (HTTP {status})", "Correct OPENAI_BASE_URL: most end in /v1."


@row(SERVERS, "ollama", "Start it with `ollama serve`, or correct OLLAMA_LOCAL.")
async def ollama_check(inspection: Inspection) -> Finding | None:
    settings = inspection.settings
    by_agent, by_core = (asked == "ollama" for asked in (settings.backend, settings.core.model))
    found = await chosen_of_ollama(settings)
    if found is None:
        return ("bad", f"nothing answers at {settings.ollama_local}") if by_agent or by_core else None
    if found.ollama is None:
        return "note", found.described, f"`{PULL}` gets one."
    if by_agent and not found.ollama.is_named(asked := settings.deployment_name):
        fix = f"`ollama pull {asked}`, or choose another with DEPLOYMENT_NAME: {found.name}."
        return "bad", f"{found.described}, without the agent's model {asked}", fix
    return "ok", found.described


@row(SERVERS, "dapr", "Start the sidecar with a conversation component; see docs/models.md.")
async def dapr_check(inspection: Inspection) -> Finding | None:
    if not BACKENDS[inspection.settings.backend].sidecar:
        return None
    try:
        found = await chosen_of_dapr(inspection.settings)
    except SettingsError as error:
        return "bad", str(error), CORRECT
    return ("bad", found.fault) if found.fault else ("ok", found.described)


async def effective(settings: Settings, application: str) -> list[Check]:
    """What an application has within the operator's bounds, as the agent's own key at Core reads it."""
    caller = Caller(key_for(settings, core_address(settings)), nobody, application=application)
    services, profile = opened(settings.model_copy(update={"dial_endpoint": core_address(settings)}))
    try:
        given = await services.applications.read(application, caller.api_key)
        profile = narrowed(profile, application, given, services.applications.bounds)
        tools, issues = await offered(services, profile, caller)
        made = await services.deployments.named(profile.names, caller) or {}
        lost = {name for name in profile.names if unquote(name) not in made}
    except InvalidRequest as error:
        return [Check(application, "bad", str(error), "Correct that, or share the application with DIAL_API_KEY.")]
    finally:
        await services.close()
    lost |= set(given.builtin or ()).difference([CODE_TOOL], SEARCH_TOOLS, *map(names_of, [one.name for one in tools]))
    found = {
        "properties": ", ".join(sorted(given.model_fields_set)) or "none that DIAL_API_KEY may see",
        "model": profile.model,
        "permission mode": profile.mode.value,
        "limits": ", ".join(f"{name} {most:g}" for name, _ in given.limits if (most := getattr(profile.limits, name))),
        "tools": ", ".join(tool.name for tool in tools),
        "context": ", ".join(profile.folders),
    }
    notes = [Check(one.server, "note", one.summary) for one in issues]
    notes += [Check("not found", "note", ", ".join(sorted(lost)), "Correct them, or ask an operator.")] if lost else []
    return [*(Check(name, "ok", text or "none") for name, text in found.items()), *notes]
