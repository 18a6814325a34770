"""Look at everything the product needs and say, row by row, what is wrong and how to mend it."""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict
from pathlib import Path

import aiohttp
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table
from rich.text import Text

from task.commands.checks import Check, machine_checks, service_checks
from task.commands.mcp_servers import interpreter_check
from task.commands.prompt_checks import prompt_checks
from task.commands.rule_checks import rules_check
from task.commands.sandbox import sandbox_check
from task.commands.store_check import store_check
from task.errors import SettingsError
from task.settings import Settings, load_settings

MARKS = {"ok": ("✓", "green"), "note": ("!", "yellow"), "bad": ("✗", "red")}
TIMEOUT = aiohttp.ClientTimeout(total=5, sock_connect=2)


def run(config: Path | None, as_json: bool) -> int:
    """Print the rows; 0 when nothing is wrong, else 1."""
    checks = asyncio.run(all_checks(config))
    if as_json:
        print(json.dumps([asdict(check) for check in checks], ensure_ascii=False))
    else:
        Console(highlight=False).print(_table(checks))
    return 1 if any(check.state == "bad" for check in checks) else 0


async def all_checks(config: Path | None) -> list[Check]:
    """Every row, in the order in which one would mend them."""
    try:
        settings: Settings = load_settings(config)
    except SettingsError as error:
        return [Check("settings", "bad", str(error), "Correct the setting it names.")]
    async with aiohttp.ClientSession(timeout=TIMEOUT) as session:
        services = await service_checks(settings, session)
        prompt = await prompt_checks(settings)
        python, store = await interpreter_check(settings), await store_check(settings)
    known = Check("settings", "ok", "every name and value is known")
    machine = (*machine_checks(settings), store, rules_check(settings), *prompt, await sandbox_check(), python)
    return [known, *machine, *services]


def _table(checks: list[Check]) -> Table:
    table = Table(box=SIMPLE)
    for heading in ("", "Check", "Found", "Mend"):
        table.add_column(heading, overflow="fold")
    for check in checks:
        table.add_row(Text(*MARKS[check.state]), check.name, Text(check.found), Text(check.mend))
    return table
