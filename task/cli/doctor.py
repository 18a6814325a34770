"""`dial-agent doctor`: look at everything the product needs and say, row by row, what is wrong and how to fix it."""

from __future__ import annotations

import asyncio
import json
import subprocess
from dataclasses import asdict
from pathlib import Path

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table
from rich.text import Text

from task.cli.checks import (
    CORRECT,
    SANDBOX,
    Check,
    index_check,
    machine_checks,
    redis_check,
    sandbox_check,
    store_check,
)
from task.cli.prompt_checks import prompt_checks
from task.cli.service_checks import service_checks
from task.cli.tools import interpreter_check
from task.errors import SettingsError
from task.settings import load_settings

MARKS = {"ok": ("✓", "green"), "note": ("!", "yellow"), "bad": ("✗", "red")}


def run(config: Path | None, as_json: bool) -> int:
    """Print the rows; 0 when nothing is wrong, else 1."""
    checks = asyncio.run(_all_checks(config))
    if as_json:
        print(json.dumps([asdict(check) for check in checks], ensure_ascii=False))
    else:
        table = Table(box=SIMPLE)
        for heading in ("", "Check", "Found", "Fix"):
            table.add_column(heading, overflow="fold")
        for check in checks:
            table.add_row(Text(*MARKS[check.state]), check.name, Text(check.found), Text(check.fix))
        Console(highlight=False).print(table)
    return 1 if any(check.state == "bad" for check in checks) else 0


def try_escapes(as_json: bool) -> int:
    """Print the verdict of each of the sandbox's probes; 0 when nothing got out, else 1."""
    options = ["--json"] if as_json else []
    done = subprocess.run([*SANDBOX, "--self-test", *options], check=False)  # noqa: S603
    return 0 if done.returncode == 0 else 1


async def _all_checks(config: Path | None) -> list[Check]:
    # In the order in which one would fix them.
    try:
        settings = load_settings(config)
    except SettingsError as error:
        return [Check("settings", "bad", str(error), CORRECT)]
    known = Check("settings", "ok", "every name and value is known")
    if names := settings.for_the_console:
        found = f"every name and value is known; for the console only: {'; '.join(names)}"
        known = Check("settings", "note", found, "Do not rely on them in the other doors.")
    services = await service_checks(settings)
    return [
        known,
        *machine_checks(settings),
        await store_check(settings),
        *await index_check(settings),
        *await redis_check(settings),
        *await prompt_checks(settings),
        await sandbox_check(),
        await interpreter_check(settings),
        *services,
    ]
