"""Whether agent, Core and model answer as the settings expect: rows of `doctor`, and the warnings of `up`."""

from __future__ import annotations

from collections.abc import Sequence

import aiohttp

from task.cli.addresses import base_url, core_address, core_is_ours, key_for, port_fault
from task.cli.checks import CORRECT, Check
from task.cli.core_client import CoreClient, CoreError, Unreachable
from task.cli.model_choice import (
    OLDEST,
    PULL,
    ChosenModel,
    choose_model,
    chosen_of_dapr,
    chosen_of_ollama,
    embedded_model,
    listed_models,
    listing_status,
)
from task.errors import SettingsError
from task.settings import Settings

HEALTH_TIMEOUT = aiohttp.ClientTimeout(total=1)
TIMEOUT = aiohttp.ClientTimeout(total=5, sock_connect=2)
AGENT = "general-purpose-agent"
PICTURES = "pictures"
START = "Start it with `make run`."
NO_CORE = "Correct DIAL_ENDPOINT if that is not DIAL Core's address, or check Core's log."
CORE_PORT = "Stop that process, or choose another port with AGENT_CORE_PORT."
REFUSED = (401, 403)
UNREACHED = (
    "`dial-agent core-config --fragment --agent URL` prints the entry; AGENT_HOST=0.0.0.0 lets other machines in."
)
REGISTER = "`dial-agent core-config --fragment` prints what to add to its configuration; `dial-agent doctor` checks it."
NO_MODEL = (
    "Run `dial-agent model pull` for a small one on this machine, or start Ollama with a model, or set OPENAI_API_KEY "
    "(and OPENAI_BASE_URL for another provider), or DIAL_ENDPOINT and DIAL_API_KEY for a real DIAL Core."
)


async def service_checks(settings: Settings) -> list[Check]:
    """Ports, Core with key and deployments, the agent, and the model."""
    agent = await _agent(settings)
    core = await _core(settings, agent_runs=agent.state == "ok")
    return [agent, *core, await _model(settings), *await ollama_checks(settings), *await dapr_checks(settings)]


async def connection_checks(settings: Settings) -> list[Check]:
    """Core, where it is not ours, and the model."""
    rows = [] if core_is_ours(settings) else await _core(settings, agent_runs=False)
    return [*rows, await _model(settings), *await dapr_checks(settings)]


async def _agent(settings: Settings) -> Check:
    address = base_url(settings.host, settings.port)
    try:
        async with (
            aiohttp.ClientSession(timeout=HEALTH_TIMEOUT) as session,
            session.get(f"{address}/health") as response,
        ):
            if response.status == 200:
                return Check("agent", "ok", f"answers at {address}")
    except (aiohttp.ClientError, TimeoutError):
        pass
    if fault := port_fault(settings.host, settings.port):
        return Check("agent", "bad", fault, "Stop that process, or choose another port with AGENT_PORT.")
    return Check("agent", "note", f"is not running; port {settings.port} is free", START)


async def _core(settings: Settings, *, agent_runs: bool) -> list[Check]:
    address = core_address(settings)
    try:
        client = CoreClient(address, key_for(settings, address), TIMEOUT)
        await client.bucket()
    except SettingsError as error:
        return [Check("core", "bad", str(error), "Set DIAL_API_KEY.")]
    except CoreError as error:
        if error.status not in REFUSED:
            fix = CORE_PORT if core_is_ours(settings) else NO_CORE
            return [Check("core", "bad", f"{address} answers: {error}", fix)]
        refused = Check("core key", "bad", f"{address} answers: {error}", "Set DIAL_API_KEY to a key this Core knows.")
        return [Check("core", "ok", f"answers at {address}"), refused]
    except Unreachable as error:
        if not core_is_ours(settings):
            return [Check("core", "bad", str(error), "Correct DIAL_ENDPOINT, or unset it to use local Core.")]
        if fault := port_fault(settings.core.host, settings.core_port):
            return [Check("core", "bad", fault, CORE_PORT)]
        return [Check("core", "note", f"local Core is not running; port {settings.core_port} is free", START)]
    answers, accepted = Check("core", "ok", f"answers at {address}"), Check("core key", "ok", "accepted")
    try:
        names = await client.deployments()
        reached = await client.reaches(AGENT) if agent_runs and AGENT in names else None
    except (CoreError, Unreachable) as error:
        return [answers, accepted, Check("deployments", "bad", str(error), "Check Core's log.")]
    rows = [answers, accepted, _deployments(names, settings)]
    if reached:
        rows.append(Check("core to agent", "ok", "Core reaches the agent"))
    elif reached is not None:  # Core tried
        found = "Core does not reach the agent at the address of its configuration"
        rows.append(Check("core to agent", "bad", found, UNREACHED))
    return [*rows, *missing_pictures(names, settings)]


def _deployments(names: Sequence[str], settings: Settings) -> Check:
    wanted = [AGENT] if core_is_ours(settings) else [AGENT, settings.deployment_name]
    if missing := [name for name in wanted if name not in names]:
        found = f"Core does not list {', '.join(missing)}; it lists {', '.join(names) or 'nothing'}"
        fixes = [REGISTER] if AGENT in missing else []
        fixes += ["Correct DEPLOYMENT_NAME, or add the model."] if settings.deployment_name in missing else []
        return Check("deployments", "bad", found, " ".join(fixes))
    return Check("deployments", "ok", ", ".join(names))


def missing_pictures(names: Sequence[str], settings: Settings) -> list[Check]:
    """A row where none of the deployments that Core lists, `names`, makes pictures as the settings wish."""
    painter = settings.deployments.image
    if painter == "off" or painter in names:
        return []
    found = f"Core does not list {painter}, so image_generation_tool is not offered"
    fix = f"Add {painter} to Core's configuration, or name another deployment, or `off`, with AGENT_DEPLOYMENTS__IMAGE."
    return [Check(PICTURES, "note", found, fix)]


async def _model(settings: Settings) -> Check:
    try:
        model = await choose_model(settings)
    except SettingsError as error:
        return Check("model", "bad", str(error), CORRECT)
    found = f"{model.name}, because {model.reason}"
    if model.rule == "demo":
        return Check("model", "note", f"{found} (a demo, not a real model)", NO_MODEL)
    if model.rule == "local" and embedded_model(settings).found() is None:
        return Check("model", "bad", f"{found}; it is not on this machine", "Run `dial-agent model pull`.")
    if model.rule == "upstream":
        return await _upstream(model, found)
    if model.ollama is not None and not model.ollama.can("tools"):
        return Check("model", "note", found, f"`{PULL}` gets a model with tools.")
    return Check("model", "ok", found)


async def ollama_checks(settings: Settings) -> list[Check]:
    """A row about a running Ollama, or about the missing one that the settings ask for."""
    found = await chosen_of_ollama(settings)
    if found is None:
        text = f"nothing answers at {settings.ollama_local}"
        missing = Check("ollama", "bad", text, "Start it with `ollama serve`, or correct OLLAMA_LOCAL.")
        return [missing] if "ollama" in (settings.backend, settings.core.model) else []
    server = f"version {found.version or 'unknown'} at {settings.ollama_local}"
    if found.model is None:
        return [Check("ollama", "note", f"{server}, without a model", f"`{PULL}` gets one.")]
    model, asked = found.model, settings.deployment_name
    if settings.backend == "ollama" and not model.is_named(asked):
        fix = f"`ollama pull {asked}`, or choose another with DEPLOYMENT_NAME: {model.name}."
        return [Check("ollama", "bad", f"{server}, without the agent's model {asked}", fix)]
    can = ", ".join(sorted(model.capabilities)) if model.capabilities else "capabilities unknown"
    force = f"{found.loaded:,} tokens in force" if found.loaded else "not loaded"
    text = f"{server}; {model.name}: {can}; context {model.context:,} tokens ({force})"
    if found.outdated:
        return [Check("ollama", "note", text, f"Update Ollama: versions before {OLDEST} cut long requests silently.")]
    return [Check("ollama", "ok", text)]


async def dapr_checks(settings: Settings) -> list[Check]:
    """A row about the sidecar, where the agent's model is behind one."""
    if settings.backend != "dapr":
        return []
    try:
        found = await chosen_of_dapr(settings)
    except SettingsError as error:
        return [Check("dapr", "bad", str(error), CORRECT)]
    if found.fault:
        return [Check("dapr", "bad", found.fault, "Start the sidecar with a conversation component; see docs/dapr.md.")]
    return [Check("dapr", "ok", found.described)]


async def _upstream(model: ChosenModel, found: str) -> Check:
    address, key = model.base_url or "", model.api_key
    names = await listed_models(address, key)
    if model.name in names:
        return Check("model", "ok", found)
    if names:
        fix = f"Set DEPLOYMENT_NAME to one of: {', '.join(names[:8])}."
        return Check("model", "note", f"{found}; it does not list this model", fix)
    if await listed_models(f"{address}/v1", key):
        return Check("model", "bad", f"{found}; it lists no models there", f"Set OPENAI_BASE_URL={address}/v1.")
    match await listing_status(address, key):
        case None:
            return Check("model", "bad", f"{found}; nothing answers there", "Start it, or correct OPENAI_BASE_URL.")
        case status if status in REFUSED:
            return Check("model", "bad", f"{found}; it refuses the key", "Set OPENAI_API_KEY to one that it knows.")
        case status:
            fix = "Correct OPENAI_BASE_URL: most end in /v1."
            return Check("model", "bad", f"{found}; it lists no models (HTTP {status})", fix)
