"""The checks of `dial-agent doctor` of this machine, the store, and the services that the settings point to."""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import aiohttp

from task.commands.addresses import base_url, core_address, core_is_ours, key_for, port_fault
from task.commands.core_client import CoreClient, CoreError, Unreachable
from task.commands.model_choice import choose_model, embedded_model, listed_models
from task.embedding.environment import EmbeddingEnvironment
from task.errors import SettingsError, StoreUnavailable
from task.settings import Settings

if TYPE_CHECKING:
    from task.tools.base import BaseTool

OLDEST, TOO_NEW = (3, 11), (3, 14)
SHORT_SECRET = 16  # characters
HEALTH_TIMEOUT = aiohttp.ClientTimeout(total=1)
STORE_SECONDS, SANDBOX_SECONDS = 2.0, 30.0
SQLITE = "sqlite:///"
AGENT = "general-purpose-agent"
SANDBOX = (sys.executable, "-m", "mcp_servers.sandbox")
START = "Start it with `make run`."
DOCUMENTS = "search in documents"
WAIT = "It ends by itself; everything else works meanwhile."
INSTALL = "Run `dial-agent embedding`; `dial-agent up` does it in the background."
CORRECT = "Correct the setting it names."
NO_SANDBOX = (
    "Install bubblewrap, or use a kernel with Landlock (Linux 5.13 or newer). `dial-agent doctor --sandbox` shows more."
)
NO_MODEL = (
    "Run `dial-agent model pull` for a small one on this machine, or start Ollama with a model, or set OPENAI_API_KEY "
    "(and OPENAI_BASE_URL for another provider), or DIAL_ENDPOINT and DIAL_API_KEY for a real DIAL Core."
)


@dataclass(frozen=True, slots=True)
class Check:
    """One row: `ok`, `note` (works, but look at it) or `bad`, what was found, and how to fix it."""

    name: str
    state: Literal["ok", "note", "bad"]
    found: str
    fix: str = ""


def machine_checks(settings: Settings) -> list[Check]:
    """Python, data folder, secret and tools: what needs no network."""
    checks = [_python(), _data_folder(settings), _state_secret(settings), _tools(settings)]
    return [*checks, _embedding(settings)] if settings.rag.enabled else checks


async def service_checks(settings: Settings, session: aiohttp.ClientSession) -> list[Check]:
    """Ports, Core with key and deployments, the agent, and the model."""
    return [await _agent(settings, session), *await _core(settings, session), await _model(settings)]


async def store_check(settings: Settings) -> Check:
    """Which database it is, whether it answers, how far its tables are, and how much is in it."""
    from task.store.database import open_database
    from task.store.schema import survey

    url = str(settings.store_options["url"])
    if (missing := _missing_store(url)) is not None:  # opening it would create it
        return missing
    try:
        database = open_database(url, STORE_SECONDS)
    except SettingsError as error:
        return Check("store", "bad", str(error), "Correct AGENT_STORE__URL.")
    place = database.place
    try:
        found = await database.read(survey)
    except StoreUnavailable as error:
        fix = "Look at it, or name another store with AGENT_STORE__URL."
        return Check("store", "bad", f"{place}: {error}", fix)
    finally:
        await database.close()
    if found.newer:
        fix = "Start that version, or name another store with AGENT_STORE__URL."
        return Check("store", "bad", f"{place}: written by a newer version ({found.version}) of this product", fix)
    if found.older:
        fix = "The next start brings them up to date; take a backup before."
        text = f"{place}: answers; its tables are those of an older version ({found.version})"
        return Check("store", "note", text, fix)
    if found.version is None:
        return Check("store", "ok", f"{place}: answers; empty, its tables are made at the first start")
    held = f"{found.sessions:,} sessions, {found.traces:,} traces, {found.size / 2**20:,.1f} MiB"
    return Check("store", "ok", f"{place}: answers; {held}")


async def sandbox_check() -> Check:
    """The tier of the sandbox, or why Python code and commands are not run here."""
    process = await asyncio.create_subprocess_exec(
        *SANDBOX, "--probe", stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    try:
        out, error = await asyncio.wait_for(process.communicate(), SANDBOX_SECONDS)
    except TimeoutError:
        process.kill()
        await process.wait()
        return Check("sandbox", "note", f"no answer within {SANDBOX_SECONDS:.0f} s", NO_SANDBOX)
    if process.returncode != 0:
        return Check("sandbox", "note", error.decode(errors="replace").strip(), NO_SANDBOX)
    tier = json.loads(out)
    if tier["level"] == 0:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in tier["works"].items())
        return Check("sandbox", "note", f"none works, so Python code is not run ({reasons})", NO_SANDBOX)
    return Check("sandbox", "ok", f"{tier['name']} ({', '.join(tier['mechanisms'])})")


def own_tools(settings: Settings) -> list[BaseTool]:
    """The tools that the agent offers with these settings, good for listing only.

    Raises:
        SettingsError: a tool of `AGENT_TOOL_PATHS` cannot be loaded.
    """
    from task.product.parts import default_tools
    from task.tools.dial_files import DialFiles

    return default_tools(settings, files=DialFiles(settings.dial_endpoint))


def _python() -> Check:
    version = ".".join(map(str, sys.version_info[:3]))
    if OLDEST <= sys.version_info[:2] < TOO_NEW:
        return Check("python", "ok", version)
    return Check("python", "bad", version, "Use Python 3.11, 3.12 or 3.13.")


def _data_folder(settings: Settings) -> Check:
    folder = settings.data_dir
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return Check("data folder", "ok", str(folder))
    except OSError as error:
        fix = "Set AGENT_DATA_DIR to a folder you may write to."
        return Check("data folder", "bad", f"{folder}: {error.strerror}", fix)


def _state_secret(settings: Settings) -> Check:
    if settings.state_secret is None:
        fix = "Several replicas need one AGENT_STATE_SECRET."
        return Check("state secret", "ok", "made once per installation", fix)
    if len(settings.state_secret.get_secret_value()) < SHORT_SECRET:
        fix = f"Set AGENT_STATE_SECRET to at least {SHORT_SECRET} random characters."
        return Check("state secret", "note", "set, but short enough to guess", fix)
    return Check("state secret", "ok", "set")


def _tools(settings: Settings) -> Check:
    from task.product.parts import policy_of

    try:
        policy = policy_of(settings)
        return Check("tools", "ok", ", ".join(tool.name for tool in own_tools(settings) if policy.offers(tool.name)))
    except SettingsError as error:
        return Check("tools", "bad", str(error), CORRECT)


def _embedding(settings: Settings) -> Check:
    environment = EmbeddingEnvironment(settings.rag.python)
    if not environment.possible:
        return Check(DOCUMENTS, "note", "not offered: there is no torch for Intel Macs", "Set AGENT_RAG__PYTHON.")
    state = environment.state()
    if state.kind == "ready":
        return Check(DOCUMENTS, "ok", f"{state.text} ({environment.python})")
    reason = f" The last attempt ended with: {state.reason}" if state.reason else ""
    return Check(DOCUMENTS, "note", f"{state.text}{reason}", WAIT if state.kind == "installing" else INSTALL)


def _missing_store(url: str) -> Check | None:
    file = Path(url.removeprefix(SQLITE))
    if not url.startswith(SQLITE) or not file.name or file.exists():
        return None
    folder = next(parent for parent in file.absolute().parents if parent.exists())
    try:
        with tempfile.TemporaryFile(dir=folder):
            return Check("store", "ok", f"SQLite in {file}: made at the first start")
    except OSError as error:
        fix = "Name a folder you may write to with AGENT_STORE__URL."
        return Check("store", "bad", f"SQLite in {file}: it cannot be made: {error.strerror}", fix)


async def _agent(settings: Settings, session: aiohttp.ClientSession) -> Check:
    address = base_url(settings.host, settings.port)
    try:
        async with session.get(f"{address}/health", timeout=HEALTH_TIMEOUT) as response:
            if response.status == 200:
                return Check("agent", "ok", f"answers at {address}")
    except (aiohttp.ClientError, TimeoutError):
        pass
    if fault := port_fault(settings.host, settings.port):
        return Check("agent", "bad", fault, "End that process, or choose another port with AGENT_PORT.")
    return Check("agent", "note", f"does not run; port {settings.port} is free", START)


async def _core(settings: Settings, session: aiohttp.ClientSession) -> list[Check]:
    address = core_address(settings)
    try:
        client = CoreClient(session, address, key_for(settings, address))
        await client.bucket()
    except SettingsError as error:
        return [Check("core", "bad", str(error), "Set DIAL_API_KEY.")]
    except CoreError as error:
        refused = Check("core key", "bad", f"{address} answers: {error}", "Set DIAL_API_KEY to a key this Core knows.")
        return [Check("core", "ok", f"answers at {address}"), refused]
    except Unreachable as error:
        if not core_is_ours(settings):
            return [Check("core", "bad", str(error), "Correct DIAL_ENDPOINT, or unset it to use local Core.")]
        if fault := port_fault(settings.core.host, settings.core_port):
            return [Check("core", "bad", fault, "End that process, or choose another port with AGENT_CORE_PORT.")]
        return [Check("core", "note", f"local Core does not run; port {settings.core_port} is free", START)]
    answers, accepted = Check("core", "ok", f"answers at {address}"), Check("core key", "ok", "accepted")
    return [answers, accepted, await _deployments(client, settings)]


async def _deployments(client: CoreClient, settings: Settings) -> Check:
    try:
        names = await client.deployments()
    except (CoreError, Unreachable) as error:
        return Check("deployments", "bad", str(error), "Look at Core's own log.")
    wanted = [AGENT] if core_is_ours(settings) else [AGENT, settings.deployment_name]
    if missing := [name for name in wanted if name not in names]:
        found = f"Core does not list {', '.join(missing)}; it lists {', '.join(names) or 'nothing'}"
        return Check("deployments", "bad", found, "Add it to Core's configuration, or correct DEPLOYMENT_NAME.")
    return Check("deployments", "ok", ", ".join(names))


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
        names = await listed_models(model.base_url or "", model.api_key)
        if not names:
            return Check("model", "bad", f"{found}; it lists no models", "Check OPENAI_BASE_URL and OPENAI_API_KEY.")
        if model.name not in names:
            fix = f"Set DEPLOYMENT_NAME to one of: {', '.join(names[:8])}."
            return Check("model", "note", f"{found}; it does not list this model", fix)
    return Check("model", "ok", found)
