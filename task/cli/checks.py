"""The checks of `dial-agent doctor` of this machine and the store."""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from task.embedding.environment import EmbeddingEnvironment
from task.errors import SettingsError, StoreUnavailable
from task.settings import Settings
from task.settings.installation import STATE_KEY, installation_secret

if TYPE_CHECKING:
    from task.store.database import Database
    from task.tools.base import BaseTool

OLDEST, TOO_NEW = (3, 11), (3, 14)
USE_PYTHON = "Use Python 3.11, 3.12 or 3.13."
SHORT_SECRET = 16  # characters
STORE_SECONDS, SANDBOX_SECONDS = 2.0, 30.0
SQLITE = "sqlite:///"
SANDBOX = (sys.executable, "-P", "-m", "mcp_servers.sandbox")
DOCUMENTS = "search in documents"
WAIT = "It finishes on its own; everything else already works."
OWN_PYTHON = "Correct AGENT_RAG__PYTHON, or unset it and run `dial-agent embedding`."
INSTALL = "Run `dial-agent embedding`; `dial-agent up` does it in the background."
CORRECT = "Correct the setting that is named."
NO_SANDBOX = (
    "Install bubblewrap, or use a kernel with Landlock (Linux 5.13 or newer). `dial-agent doctor --sandbox` shows more."
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
    version, usable = ".".join(map(str, sys.version_info[:3])), OLDEST <= sys.version_info[:2] < TOO_NEW
    python = Check("python", "ok", version) if usable else Check("python", "bad", version, USE_PYTHON)
    checks = [python, _data_folder(settings), _state_secret(settings), _tools(settings)]
    checks += [_workspaces(settings)] if settings.coding.workspaces else []
    return [*checks, _embedding(settings)] if settings.rag.enabled else checks


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
        usable = found.version is not None and not found.older and not found.refusal
        disagreements = await _disagreements(settings, database) if usable else ()
    except StoreUnavailable as error:
        fix = "Check the database, or name another store with AGENT_STORE__URL."
        return Check("store", "bad", f"{place}: {error}", fix)
    finally:
        await database.close()
    if found.refusal:
        return Check("store", "bad", f"{place}: {found.refusal}", "Or name another store with AGENT_STORE__URL.")
    if found.older:
        by = "The next start" if settings.store.migrate else "`dial-agent store migrate`"
        fix = f"{by} brings them up to date; take a backup before."
        text = f"{place}: answers; its tables are those of an older version ({found.version})"
        return Check("store", "note", text, fix)
    if found.version is None:
        return Check("store", "ok", f"{place}: answers; empty, its tables are created at the first start")
    held = f"{found.sessions:,} sessions, {found.traces:,} traces, {found.size / 2**20:,.1f} MiB"
    if found.newer:
        held += f"; its tables are one version newer ({found.version}), which works"
    if disagreements:
        return Check("store", "note", f"{place}: answers; {held}", " ".join(map(_sentence, disagreements)))
    return Check("store", "ok", f"{place}: answers; {held}")


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}"


async def _disagreements(settings: Settings, database: Database) -> tuple[str, ...]:
    from task.conversation.state import StateSeal
    from task.store.processes import DatabaseClock, Processes

    clock = DatabaseClock(database, time.time)
    await clock.set()
    secret, generated = settings.state_secret, settings.data_dir / STATE_KEY
    chosen = secret.get_secret_value() if secret else installation_secret(generated) if generated.exists() else None
    return await Processes(
        database, clock, StateSeal(chosen.encode()).fingerprint() if chosen else None
    ).disagreements()


async def index_check(settings: Settings) -> list[Check]:
    """Whether the PostgreSQL for the vectors of documents can be used, where there is one; its tables are made."""
    from task.core_client.files import UnpooledFiles
    from task.search.index_store import MemoryVectors
    from task.search.pgvector import PgVectors
    from task.search.readings import Readings

    url = settings.rag.index_url
    if not settings.rag.enabled or url is None:
        return []
    memory = MemoryVectors(Readings(UnpooledFiles(settings.dial_endpoint)))
    vectors = PgVectors(url.get_secret_value(), memory, seconds=settings.rag.cache_seconds)
    try:
        reason = await vectors.fault()
    finally:
        await vectors.close()
    if reason:
        fix = (
            "Correct AGENT_RAG__INDEX_URL, or let an administrator run CREATE EXTENSION vector. Until then: in memory."
        )
        return [Check("document index", "note", f"the PostgreSQL cannot be used: {reason}", fix)]
    return [Check("document index", "ok", "PostgreSQL with pgvector answers")]


async def redis_check(settings: Settings) -> list[Check]:
    """Whether the Redis of the settings can be read and written, and how many agents are connected to it."""
    from task.product.parts import redis_of

    redis = redis_of(settings)
    if redis is None:
        return []
    try:
        redis.check()
        agents = await redis.replicas()
    except SettingsError as error:
        return [Check("redis", "bad", str(error), CORRECT)]
    finally:
        await redis.close()
    if redis.fault:
        return [Check("redis", "bad", f"{redis.fault}.", "Until then every agent counts and remembers for itself.")]
    return [Check("redis", "ok", f"can be read and written; agents connected: {agents}")]


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
    from task.context.prompt import LiveContext, context_prompt
    from task.core_client.files import DialFiles
    from task.product.parts import context_manager, default_tools
    from task.product.profile import context_tools

    tools = default_tools(settings, files=DialFiles(settings.dial_endpoint))
    with suppress(SettingsError):  # the row of the context reports it
        if (manager := context_manager(settings)) is not None:
            prompt = context_prompt(manager, settings.context.persona)
            return [*tools, *context_tools(LiveContext(manager), prompt)]
    return tools


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
        fix = "Several replicas need the same AGENT_STATE_SECRET."
        return Check("state secret", "ok", "generated once per installation", fix)
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


def _workspaces(settings: Settings) -> Check:
    from task.product.parts import check_workspaces

    try:
        check_workspaces(settings)
    except SettingsError as error:
        return Check("workspaces", "bad", str(error), CORRECT)
    chosen = settings.coding
    found = "; ".join(f"{item.path} for {', '.join(item.owners)}" for item in chosen.workspaces)
    if settings.http.mode == "open" and (others := {o for w in chosen.workspaces for o in w.owners} - {"local"}):
        fix = "Callers of the HTTP API are `local` in the mode `open`; through DIAL Core they are buckets."
        return Check("workspaces", "note", f"{found}; {', '.join(sorted(others))}: no key of the HTTP API", fix)
    if chosen.apply:
        return Check("workspaces", "note", f"{found}; changes run without a question", "Unset AGENT_CODING__APPLY.")
    return Check("workspaces", "ok", f"{found}; every change asks")


def _embedding(settings: Settings) -> Check:
    if settings.rag.embeddings:
        return Check(DOCUMENTS, "ok", f"embedded by {settings.rag.embeddings_model or settings.rag.embeddings}")
    environment = EmbeddingEnvironment(settings.rag.python)
    if not environment.possible:
        return Check(DOCUMENTS, "note", "not offered: there is no torch for Intel Macs", "Set AGENT_RAG__PYTHON.")
    state = environment.state()
    if state.kind == "ready":
        return Check(DOCUMENTS, "ok", f"{state.text} ({environment.python})")
    reason = f". The last attempt ended with: {state.reason}" if state.reason else ""
    fix = INSTALL if environment.managed else OWN_PYTHON
    return Check(DOCUMENTS, "note", f"{state.text}{reason}", WAIT if state.kind == "installing" else fix)


def _missing_store(url: str) -> Check | None:
    file = Path(url.removeprefix(SQLITE))
    if not url.startswith(SQLITE) or not file.name or file.exists():
        return None
    folder = next(parent for parent in file.absolute().parents if parent.exists())
    try:
        with tempfile.TemporaryFile(dir=folder):
            return Check("store", "ok", f"SQLite in {file}: created at the first start")
    except OSError as error:
        fix = "Name a folder you may write to with AGENT_STORE__URL."
        return Check("store", "bad", f"SQLite in {file}: it cannot be created: {error.strerror}", fix)
