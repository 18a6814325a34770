"""Run the launcher's self-test as a given user, on this machine or as in a container, and read its verdicts."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mcp_servers.sandbox.escapes.bystanders import python_for

ROOT = Path(__file__).parents[2]
ORDINARY_UID = 61_234
IS_ROOT = os.geteuid() == 0
SECONDS = 240


@dataclass(frozen=True)
class Outcome:
    """`tried` maps `tier, identity` to `attack -> state`."""

    exit_code: int
    tier: str
    reasons: dict[str, str | None]
    own_uid: bool
    tried: dict[str, dict[str, str]]

    def not_held(self) -> list[str]:
        return [f"{way}: {name}" for way, all_ in self.tried.items() for name, state in all_.items() if state != "held"]


def self_test(
    *options: str, ordinary: bool = False, container: bool = False, landlock_abi: int | None = None
) -> Outcome:
    """The self-test as this user, or as an ordinary one.

    `container`: under a container's default profile (as root). `landlock_abi`: with no more of Landlock than an older
    kernel has.
    """
    with readable_copy() as folder:
        if landlock_abi is not None:
            with open(f"{folder}/mcp_servers/sandbox/landlock.py", "a") as module:
                module.write(f"\n\ndef abi() -> int:\n    return {landlock_abi}\n")
        command = [sys.executable, "-I", "-S", f"{folder}/mcp_servers/sandbox/__main__.py", "--self-test", "--json"]
        uid = ORDINARY_UID if ordinary and IS_ROOT else None
        command[0] = python_for(uid)
        if container:
            command = [sys.executable, "-m", "tests.support.container", str(uid or 0), *command]
        environment = {"PATH": os.defpath, "TMPDIR": "/tmp", "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            [*command, *options],
            capture_output=True, encoding="utf-8", timeout=SECONDS, check=False, env=environment,
            cwd=ROOT if container else folder, user=None if container else uid, group=None if container else uid,
            extra_groups=None if container or uid is None else [],
        )  # fmt: skip
    assert done.stdout, done.stderr
    return _outcome(done.returncode, json.loads(done.stdout))


@contextmanager
def readable_copy() -> Generator[str]:
    """A copy of the launcher that every user can read, wherever the project lies."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        os.chmod(folder, 0o755)
        shutil.copytree(ROOT / "mcp_servers" / "sandbox", f"{folder}/mcp_servers/sandbox")
        shutil.copy(ROOT / "mcp_servers" / "__init__.py", f"{folder}/mcp_servers/__init__.py")
        yield folder


def _outcome(exit_code: int, report: dict[str, Any]) -> Outcome:
    tried = {
        f"{trial['tier']}, {trial['identity']}": {verdict["name"]: verdict["state"] for verdict in trial["verdicts"]}
        for trial in report["trials"]
    }
    return Outcome(exit_code, report["tier"]["name"], report["tier"]["works"], report["tier"]["own_uid"], tried)
