"""`dial-agent doctor`: look at everything the product needs and say, row by row, what is wrong and how to fix it."""

import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Annotated

import typer

from task.cli import Exit
from task.cli.addresses import core_is_ours
from task.cli.checks import CODE_TOOL, CORRECT, SEARCH_TOOLS, SERVERS, Check, Finding, Row, checked, effective, row
from task.cli.options import AsJson, Config, print_json, read_settings, write
from task.cli.tools import Inspection, own_tools, print_table
from task.context.prompt import context_prompt
from task.conversation.inner import DELEGATE
from task.conversation.state import StateSeal
from task.core_client.files import DialFiles
from task.embedding.weights import EXTRA
from task.errors import SettingsError, StoreUnavailable
from task.permissions.names import names_of
from task.permissions.policy import CODING_RULES, DEFAULT_RULES, FORGET, REMEMBER, WORKSPACE_TOOLS, dead_rules
from task.product.backends import BACKENDS
from task.product.parts import check_workspaces, context_manager, mcp_specs, packaged_model, policy_of, redis_of
from task.search.readings import Readings
from task.search.vectors import PgVectors
from task.settings import Settings
from task.settings.installation import STATE_KEY, installation_secret
from task.skills import READ_SKILL
from task.store.database import Database, open_database
from task.store.processes import Processes
from task.store.schema import survey
from task.tools.base import BaseTool
from task.tools.find_tools import FIND_TOOLS
from task.tools.mcp.mcp_tool import MCPTool
from task.tools.mcp.mcp_tool_model import fit
from task.tools.workspace.project import project_notes

SHORT_SECRET = 16  # characters
STORE_SECONDS, SANDBOX_SECONDS = 2.0, 30.0
SQLITE = "sqlite:///"
SANDBOX = (sys.executable, "-P", "-m", "mcp_servers.sandbox")
READ_DOCUMENT = "read_context_document"
NEEDED = ("agent", "core", "model")  # without which no real answer comes, in the order of their rows
app = typer.Typer(add_completion=False)
ROWS: list[Row] = []  # in the order in which one would fix them
MARKS = {"ok": ("✓", "green"), "note": ("!", "yellow"), "bad": ("✗", "red")}


@app.command()
def doctor(
    config: Config = None,
    as_json: AsJson = False,
    sandbox: Annotated[
        bool, typer.Option("--sandbox", help="Try ten ways out of the sandbox, and print the results.")
    ] = False,
    application: Annotated[
        str | None,
        typer.Option(metavar="ID", help="Print what an application made of the agent in DIAL has, by its id there."),
    ] = None,
) -> None:
    """Print the rows, the verdict of each of the sandbox's probes, or the effective profile of an application."""
    if sandbox:
        command = [*SANDBOX, "--self-test", *(["--json"] if as_json else [])]
        raise typer.Exit(Exit.FAILED if subprocess.run(command, check=False).returncode else Exit.DONE)  # noqa: S603
    try:
        settings = read_settings(config)
        checks = asyncio.run(effective(settings, application) if application else results(settings))
    except SettingsError as error:
        checks = [Check("settings", "bad", str(error), CORRECT)]
    if as_json:
        print_json([asdict(check) for check in checks])
    else:
        rows = [(MARKS[one.state], one.name, one.found, one.fix) for one in checks]
        print_table(("", "Check", "Found", "Fix"), rows)
        if not application:
            write(f"\nNext: {next_step(checks)}")
    raise typer.Exit(Exit.FAILED if any(check.state == "bad" for check in checks) else Exit.DONE)


def next_step(checks: Sequence[Check]) -> str:
    """What to do first: fix what is wrong, in the order of the rows, then start, then connect a model, then ask."""
    wrong = [check for check in checks if check.state == "bad"]
    wrong = wrong or [check for check in checks if check.state == "note" and check.name in NEEDED]
    if not wrong:
        return "Ask something on the web page or with `dial-agent ask`; `dial-agent ask --demo` has three questions."
    step, _, _ = (wrong[0].fix or wrong[0].found).partition(", or ")  # the row has the other ways
    return f"{step.rstrip('.')} ({wrong[0].name})."


async def results(settings: Settings, *names: str) -> list[Check]:
    """What the rows of these names find; without names, all rows."""
    return await checked(settings, [row for row in (*ROWS, *SERVERS) if not names or row.name in names])


@row(ROWS, "settings")
async def settings_check(inspection: Inspection) -> Finding:
    if names := inspection.settings.for_the_console:
        found = f"every name and value is known; for the console only: {'; '.join(names)}"
        return "note", found, "Do not rely on them in the other doors."
    return "ok", "every name and value is known"


@row(ROWS, "data folder", "Set AGENT_DATA_DIR to a folder you may write to.")
async def data_folder_check(inspection: Inspection) -> Finding:
    folder = inspection.settings.data_dir
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return "ok", str(folder)
    except OSError as error:
        return "bad", f"{folder}: {error.strerror}"


@row(ROWS, "state secret", f"Set AGENT_STATE_SECRET to at least {SHORT_SECRET} random characters.")
async def state_secret_check(inspection: Inspection) -> Finding:
    secret = inspection.settings.state_secret
    if secret is None:
        return "ok", "generated once per installation", "Several replicas need the same AGENT_STATE_SECRET."
    return ("note", "set, but short enough to guess") if len(secret) < SHORT_SECRET else ("ok", "set")


@row(ROWS, "callers")
async def callers_check(inspection: Inspection) -> Finding:
    settings, mode = inspection.settings, f"the mode `{inspection.settings.http.mode}`"
    dial = "DIAL Core authenticates them" if BACKENDS[settings.backend].of_core else mode
    if settings.http.request_keys:
        dial = "per-request keys of Core only"
    elif dial == mode and core_is_ours(settings):
        dial = f"with `up` per-request keys of its Core only, with `serve` {mode}"
    return "ok", f"the page and /v1: {mode}; below /openai: {dial}"


@row(ROWS, "tools")
async def tools_check(inspection: Inspection) -> Finding:
    check_workspaces(inspection.settings)
    policy = policy_of(inspection.settings)
    return "ok", ", ".join(tool.name for tool in own_tools(inspection.settings) if policy.offers(tool.name))


@row(ROWS, "search in documents")
async def documents_check(inspection: Inspection) -> Finding | None:
    rag = inspection.settings.rag
    if not rag.enabled:
        return None
    if rag.embeddings:
        return "ok", f"embedded by {rag.embeddings_model or rag.embeddings}"
    if model := inspection.settings.embedding_model:
        if find_spec("sentence_transformers") is None:
            return "bad", f"{model} needs sentence-transformers", f"Run: pip install '{EXTRA}'."
        return "ok", f"embedded by {model}"
    packaged = packaged_model(inspection.settings)
    state = packaged.state()
    if state.kind == "ready":
        return "ok", f"{state.text} ({packaged.folder})"
    return "note", state.text, "`dial-agent up` downloads it before its table, `dial-agent serve` for the first search."


@row(ROWS, "store", "Correct AGENT_STORE__URL.")
async def store_check(inspection: Inspection) -> Finding:
    settings, url = inspection.settings, str(inspection.settings.store_options["url"])
    file = Path(url.removeprefix(SQLITE))
    if url.startswith(SQLITE) and file.name and not file.exists():  # noqa: ASYNC240 - opening it would create it
        return "ok", f"SQLite in {file}: created at the first start"
    database = open_database(url, STORE_SECONDS)
    try:
        found = await database.read(survey)
        usable = found.version is not None and not found.older and not found.refusal
        disagreements = await _disagreements(settings, database) if usable else ()
    except StoreUnavailable as error:
        return "bad", f"{database.place}: {error}", "Check the database, or name another store with AGENT_STORE__URL."
    finally:
        await database.close()
    if found.refusal:
        return "bad", f"{database.place}: {found.refusal}", "Or name another store with AGENT_STORE__URL."
    if found.version is None:
        return "ok", f"{database.place}: answers; empty, its tables are created at the first start"
    if found.older:
        by = "The next start" if settings.store.migrate else "`dial-agent store migrate`"
        text = f"{database.place}: answers; its tables are those of an older version ({found.version})"
        return "note", text, f"{by} brings them up to date; take a backup before."
    size = f"{found.sessions:,} sessions, {found.traces:,} traces, {found.size / 2**20:,.1f} MiB"
    newer = f"; its tables are one version newer ({found.version}), which works" if found.newer else ""
    fix = " ".join(f"{text[:1].upper()}{text[1:]}" for text in disagreements)
    return "note" if fix else "ok", f"{database.place}: answers; {size}{newer}", fix


async def _disagreements(settings: Settings, database: Database) -> Sequence[str]:
    secret, generated = settings.state_secret, settings.data_dir / STATE_KEY
    chosen = secret.get_secret_value() if secret else installation_secret(generated) if generated.exists() else None
    fingerprint = StateSeal(chosen.encode()).fingerprint() if chosen else None
    processes = Processes(database, time.time, fingerprint)
    await processes.set_clock()
    return await processes.disagreements()


@row(ROWS, "document index", "Correct AGENT_RAG__INDEX_URL, or run CREATE EXTENSION vector. Until then: in memory.")
async def document_index_check(inspection: Inspection) -> Finding | None:
    rag = inspection.settings.rag
    if not rag.enabled or rag.index_url is None:
        return None
    readings = Readings(DialFiles(inspection.settings.dial_endpoint))
    vectors = PgVectors(rag.index_url.get_secret_value(), readings, seconds=rag.cache_seconds)
    try:
        reason = await vectors.fault()
    finally:
        await vectors.close()
    if reason:
        return "note", f"the PostgreSQL cannot be used: {reason}"
    return "ok", "PostgreSQL with pgvector answers"


@row(ROWS, "redis")
async def redis_check(inspection: Inspection) -> Finding | None:
    redis = redis_of(inspection.settings)
    if redis is None:
        return None
    try:
        redis.check()
        agents = await redis.replicas()
    finally:
        await redis.close()
    if redis.fault:
        return "bad", f"{redis.fault}.", "Until then every agent counts and remembers for itself."
    return "ok", f"can be read and written; agents connected: {agents}"


@row(ROWS, "permission rules", "Correct or remove it, or move a rule that another one hides up.")
async def rules_check(inspection: Inspection) -> Finding:
    settings = inspection.settings
    policy, known, own = policy_of(settings), await _known_tools(inspection), len(settings.permissions.rules)
    wrong = [
        f"rule {number} ({policy.rules[number - 1].describe()}) never decides: {reason}"
        for number, reason in dead_rules(policy.rules, known).items()
        if number <= own
    ]
    lists = {"permissions.tools": settings.permissions.tools, "teps.allowed_tools": settings.teps.allowed_tools}
    if policy.only is not None and not policy.only:
        wrong.append(f"no tool is left by {' and '.join(key for key, names in lists.items() if names is not None)}")
    if known is not None:
        named = [(key, name) for key, names in lists.items() for name in names or ()]
        wrong += [f"{key}: no tool is called {name}" for key, name in named if names_of(name).isdisjoint(known)]
    if wrong:
        return "note", "; ".join(wrong)
    if any(rule.action == "allow" and rule.trusted for rule in policy.rules):
        found = f"{own} of your own; some allow calls even when text from outside is in the conversation (trusted)"
        return "note", found, "Trust only rules that can do no harm."
    builtin = (*DEFAULT_RULES, *(CODING_RULES if settings.coding.apply else ()))
    return "ok", f"{own} of your own, {len(builtin) if settings.permissions.default_rules else 0} of the product's"


async def _known_tools(inspection: Inspection) -> list[str] | None:
    # None where not all are known: a server is away, or lists them for each caller.
    settings = inspection.settings
    with suppress(SettingsError):  # the rows of the tools and of the servers report it
        own, found = own_tools(settings), await inspection.of_servers()
        if not found.issues and not any(spec.forward_key for spec in mcp_specs(settings)):
            names = [*(tool.name for tool in (*own, *found.tools)), FIND_TOOLS, READ_SKILL]
            names += [DELEGATE] if settings.agents.enabled else []
            names += [REMEMBER, FORGET] if settings.memory.enabled else []
            return [*names, *WORKSPACE_TOOLS, CODE_TOOL, *(() if settings.ddg_mcp_url else SEARCH_TOOLS)]
    return None


@row(ROWS, "context", "Correct the path or the persona, or remove it.")
async def context_check(inspection: Inspection) -> Finding:
    manager = context_manager(inspection.settings)
    if manager is None:
        return "ok", "none"
    personas, warnings = manager.persona_ids(), list(manager.warnings)
    found = f"{len(manager.documents) - len(personas)} documents, {len(personas)} personas"
    if left_out := context_prompt(manager, inspection.settings.context.persona).left_out:
        found += f"; read by {READ_DOCUMENT}: {', '.join(left_out)}"
        with suppress(SettingsError):  # the row of the rules reports it
            if not policy_of(inspection.settings).offers(READ_DOCUMENT):
                warnings.append(f"{READ_DOCUMENT} is not among the allowed tools")
    fix = f"Correct {manager.path.name}, or the files and settings it needs."
    return ("note", "; ".join([found, *warnings]), fix) if warnings else ("ok", found)


@row(ROWS, "project notes", "Put a text file of the folder there.")
async def project_notes_check(_: Inspection) -> Finding | None:
    notes = await asyncio.to_thread(project_notes, Path.cwd())
    return ("ok" if notes.text else "note", notes.found) if notes.found else None


@row(ROWS, "MCP servers", CORRECT)
async def mcp_servers_check(inspection: Inspection) -> dict[str, Finding]:
    rows = dict[str, Finding]()
    names = {spec.name: f"{'API' if spec.client else 'MCP server'} {spec.name}" for spec in inspection.servers}
    for spec in inspection.servers:
        found = "is asked for each user apart" if spec.forward_key or spec.sign_in else f"answers at {spec.url}"
        rows[names[spec.name]] = "ok", f"as described by {spec.url}" if spec.client else found
    with suppress(SettingsError):  # the row of the tools reports it
        for issue in (await inspection.of_servers()).issues:
            rows[names[issue.server]] = "bad", issue.summary, "Start it, or correct its address and key."
    for spec in inspection.servers:
        if spec.client is not None and (missing := spec.client.left_out):
            reasons = "; ".join(f"{name} is left out: {reason}" for name, reason in islice(missing.items(), 20))[:2_000]
            rows[names[spec.name]] = "note", reasons, "Correct its document, or what the settings choose of it."
    return rows


@row(ROWS, "tool names", "Offer only one of them: a model mixes such names up.")
async def tool_names_check(inspection: Inspection) -> Finding | None:
    tools, alike = list[BaseTool](), defaultdict[str, list[str]](list)
    with suppress(SettingsError):  # the rows of the rules, the tools and the servers report it
        tools = await inspection.offered()
    for tool in tools:
        alike[tool.name.casefold().replace("-", "_")].append(tool.name)
    clashes = [f"{' and '.join(names)} differ in case or dashes only" for names in alike.values() if len(names) > 1]
    clashes += [
        f"{tool.mcp_tool_model.name} of a server is called {tool.name}, because its own name was taken"
        for tool in tools
        if isinstance(tool, MCPTool) and tool.name != fit(tool.mcp_tool_model.name)
    ]
    if clashes:
        return "note", "; ".join(clashes)
    return ("ok", f"{len(tools)}, all different") if tools else None


@row(ROWS, "sandbox", "Install bubblewrap, or use Linux 5.13 or newer. `dial-agent doctor --sandbox` shows more.")
async def sandbox_check(_: Inspection) -> Finding:
    probe = [*SANDBOX, "--probe"]
    try:
        done = await asyncio.to_thread(subprocess.run, probe, capture_output=True, timeout=SANDBOX_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return "note", f"no answer within {SANDBOX_SECONDS:.0f} s"
    if done.returncode != 0:
        return "note", done.stderr.decode(errors="replace").strip()
    tier = json.loads(done.stdout)
    if tier["level"] == 0:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in tier["works"].items())
        return "note", f"none works, so Python code is not run ({reasons})"
    return "ok", f"{tier['name']} ({', '.join(tier['mechanisms'])})"
