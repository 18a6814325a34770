"""The single checks of `dial-agent doctor`: this machine, and the services the settings point to."""

from __future__ import annotations

import sys
import tempfile
from dataclasses import dataclass
from typing import Literal

import aiohttp

from task.commands import ports
from task.commands.addresses import agent_address, core_address, core_is_ours, key_for
from task.commands.core_client import CoreClient, Refused, Unreachable
from task.commands.local_model import embedded
from task.commands.model_choice import ChosenModel, choose_model, listed_models
from task.commands.tools import listed
from task.errors import SettingsError
from task.settings import Settings

OLDEST, TOO_NEW = (3, 11), (3, 14)
SHORT_SECRET = 16
HEALTH_TIMEOUT = aiohttp.ClientTimeout(total=1)
AGENT = "general-purpose-agent"
START = "Start it with `make run`."


@dataclass(frozen=True, slots=True)
class Check:
    """One row: `ok`, `note` (works, but look at it) or `bad`, what was found, and how to mend it."""

    name: str
    state: Literal["ok", "note", "bad"]
    found: str
    mend: str = ""


def machine_checks(settings: Settings) -> list[Check]:
    """Python, data folder, secret and tools: what needs no network."""
    return [_python(), _data_dir(settings), _state_secret(settings), _tools(settings)]


async def service_checks(settings: Settings, session: aiohttp.ClientSession) -> list[Check]:
    """Ports, Core with key and deployments, the agent, and the model."""
    agent = await _agent(settings, session)
    core = await _core(settings, session)
    return [agent, *core, await _model(settings, await choose_model(settings))]


def _python() -> Check:
    version = ".".join(map(str, sys.version_info[:3]))
    if OLDEST <= sys.version_info[:2] < TOO_NEW:
        return Check("python", "ok", version)
    return Check("python", "bad", version, "Use Python 3.11, 3.12 or 3.13.")


def _data_dir(settings: Settings) -> Check:
    folder = settings.data_dir
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return Check("data folder", "ok", str(folder))
    except OSError as error:
        return Check(
            "data folder", "bad", f"{folder}: {error.strerror}", "Set AGENT_DATA_DIR to a folder you may write to."
        )


def _state_secret(settings: Settings) -> Check:
    if settings.state_secret is None:
        return Check(
            "state secret", "ok", "made once per installation", "Several replicas need one AGENT_STATE_SECRET."
        )
    if len(settings.state_secret.get_secret_value()) < SHORT_SECRET:
        mend = f"Set AGENT_STATE_SECRET to at least {SHORT_SECRET} random characters."
        return Check("state secret", "note", "set, but short enough to guess", mend)
    return Check("state secret", "ok", "set")


def _tools(settings: Settings) -> Check:
    try:
        return Check("tools", "ok", ", ".join(tool.name for tool in listed(settings)))
    except SettingsError as error:
        return Check("tools", "bad", str(error), "Correct AGENT_TOOL_PATHS.")


async def _agent(settings: Settings, session: aiohttp.ClientSession) -> Check:
    address = agent_address(settings)
    if await _healthy(session, address):
        return Check("agent", "ok", f"answers at {address}")
    fault = ports.fault_of(settings.host, settings.port)
    if fault:
        return Check("agent", "bad", fault, "End that process, or choose another port with AGENT_PORT.")
    return Check("agent", "note", f"does not run; port {settings.port} is free", START)


async def _core(settings: Settings, session: aiohttp.ClientSession) -> list[Check]:
    address, ours = core_address(settings), core_is_ours(settings)
    try:
        client = CoreClient(session, address, key_for(settings, address))
        await client.bucket()
    except SettingsError as error:
        return [Check("core", "bad", str(error), "Set DIAL_API_KEY.")]
    except Refused as error:
        refused = Check("core key", "bad", f"{address} says: {error}", "Set DIAL_API_KEY to a key this Core knows.")
        return [Check("core", "ok", f"answers at {address}"), refused]
    except Unreachable as error:
        if not ours:
            return [Check("core", "bad", str(error), "Correct DIAL_ENDPOINT, or unset it to use local Core.")]
        return [_stopped_core(settings)]
    answers, accepted = Check("core", "ok", f"answers at {address}"), Check("core key", "ok", "accepted")
    return [answers, accepted, await _deployments(client, settings)]


def _stopped_core(settings: Settings) -> Check:
    fault = ports.fault_of(settings.core.host, settings.core_port)
    if fault:
        return Check("core", "bad", fault, "End that process, or choose another port with AGENT_CORE_PORT.")
    return Check("core", "note", f"local Core does not run; port {settings.core_port} is free", START)


async def _deployments(client: CoreClient, settings: Settings) -> Check:
    try:
        names = await client.deployments()
    except (Refused, Unreachable) as error:
        return Check("deployments", "bad", str(error), "Look at Core's own log.")
    wanted = [AGENT] if core_is_ours(settings) else [AGENT, settings.deployment_name]
    missing = [name for name in wanted if name not in names]
    if missing:
        found = f"Core does not list {', '.join(missing)}; it lists {', '.join(names) or 'nothing'}"
        return Check("deployments", "bad", found, "Add it to Core's configuration, or correct DEPLOYMENT_NAME.")
    return Check("deployments", "ok", ", ".join(names))


async def _model(settings: Settings, model: ChosenModel) -> Check:
    told = f"{model.name}, because {model.reason}"
    match model.rule:
        case "demo":
            mend = "Set OPENAI_API_KEY, OPENAI_BASE_URL or DIAL_ENDPOINT, start Ollama, or run `dial-agent model pull`."
            return Check("model", "note", f"{told} (a demo, not a real model)", mend)
        case "upstream":
            names = await listed_models(model.base_url or "", model.api_key)
            if not names:
                return Check("model", "bad", f"{told}; it lists no models", "Check OPENAI_BASE_URL and OPENAI_API_KEY.")
            if model.name not in names:
                mend = f"Set DEPLOYMENT_NAME to one of: {', '.join(names[:8])}."
                return Check("model", "note", f"{told}; it does not list this model", mend)
        case "local" if embedded(settings).found() is None:
            return Check("model", "bad", f"{told}; it is not on this machine", "Run `dial-agent model pull`.")
        case _:
            pass
    return Check("model", "ok", told)


async def _healthy(session: aiohttp.ClientSession, address: str) -> bool:
    try:
        async with session.get(f"{address}/health", timeout=HEALTH_TIMEOUT) as response:
            return response.status == 200
    except (aiohttp.ClientError, TimeoutError):
        return False
