"""The launcher's command lines, for servers that start sandboxed programs."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from mcp_servers.sandbox.errors import SandboxError
from mcp_servers.sandbox.policy import SYSTEM_PATHS, Policy

if TYPE_CHECKING:
    from mcp_servers.sandbox.tiers import Tier

PROBE_SECONDS = 30


def launcher(*arguments: str) -> list[str]:
    """A command line of the launcher; without site packages it starts in half the time."""
    return [sys.executable, "-I", "-S", os.path.join(os.path.dirname(__file__), "__main__.py"), *arguments]


def command(policy: Policy, argv: Sequence[str]) -> list[str]:
    """The command line that runs a program under the policy."""
    return launcher("--policy", policy.to_json(), "--", *argv)


def probe() -> Tier:
    """What this machine offers; takes about 0.2 seconds, so ask once.

    Raises:
        SandboxError: the launcher itself does not run.
    """
    from mcp_servers.sandbox.tiers import Tier

    return Tier(**json.loads(_output("--probe")))


def kill_uid(uid: int) -> None:
    """End every process of a uid that only runs use; the caller must be root.

    Raises:
        SandboxError: some could not be ended.
    """
    _output("--kill-uid", str(uid))


def clear_uid(uid: int, folders: Sequence[str] = ()) -> None:
    """End every process of a uid that only runs use, and delete all that it has left; the caller must be root.

    That is: the contents of the folders, its files in folders that every user may write to, System V objects, keys.

    Raises:
        SandboxError: something could not be ended or deleted.
    """
    _output("--clear-uid", str(uid), *folders)


def python_paths(python: str) -> tuple[str, ...]:
    """The paths that a Python needs to be readable: its environment and the installation behind it."""
    import subprocess

    ask = "import sys; print(sys.prefix, sys.base_prefix, sep='\\n')"
    probe = subprocess.run([python, "-I", "-c", ask], capture_output=True, text=True, timeout=PROBE_SECONDS, check=True)  # noqa: S603
    return tuple(path for path in dict.fromkeys(probe.stdout.splitlines()) if path not in SYSTEM_PATHS)


def _output(*arguments: str) -> str:
    import subprocess

    done = subprocess.run(launcher(*arguments), capture_output=True, text=True, timeout=PROBE_SECONDS, check=False)  # noqa: S603
    if done.returncode != 0:
        raise SandboxError(done.stderr.strip() or f"the launcher ended with {done.returncode}")
    return done.stdout
