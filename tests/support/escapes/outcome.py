"""Try the escape list as a given user, on this machine or as in a container, and read its verdicts."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from mcp_servers.sandbox.self_test import python_for
from tests.support.escapes.arena import copy_of_packages

ROOT = Path(__file__).resolve().parents[3]
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


def escape_list(
    *options: str, ordinary: bool = False, container: bool = False, landlock_abi: int | None = None
) -> Outcome:
    """The escape list tried as this user, or as an ordinary one.

    `container`: under a container's default profile (as root). `landlock_abi`: with no more of Landlock than an older
    kernel has.
    """
    with readable_copy() as folder:
        if landlock_abi is not None:
            with open(f"{folder}/mcp_servers/sandbox/landlock.py", "a") as module:
                module.write(f"\n\ndef abi() -> int:\n    return {landlock_abi}\n")
        uid = ORDINARY_UID if ordinary and IS_ROOT else None
        command = [python_for(uid), "-I", "-S", f"{folder}/tests/support/escapes/__main__.py", *options]
        if container:
            command = [sys.executable, "-m", "tests.support.container", str(uid or 0), *command]
        environment = {"PATH": os.defpath, "TMPDIR": "/tmp", "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            command,
            capture_output=True,
            encoding="utf-8",
            timeout=SECONDS,
            check=False,
            env=environment,
            cwd=ROOT if container else folder,
            user=None if container else uid,
            group=None if container else uid,
            extra_groups=None if container or uid is None else [],
        )
    assert done.stdout, done.stderr
    report = json.loads(done.stdout)
    tried = {
        f"{trial['tier']}, {trial['uid'] or 'this user'}": {v["name"]: v["state"] for v in trial["verdicts"]}
        for trial in report["trials"]
    }
    tier = report["tier"]
    return Outcome(done.returncode, tier["name"], tier["works"], tier["own_uid"], tried)


@contextmanager
def readable_copy() -> Generator[str]:
    """A copy of the launcher and the attacks that every user can read."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        os.chmod(folder, 0o755)
        yield copy_of_packages(folder)
