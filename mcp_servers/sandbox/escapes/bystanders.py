"""What is outside the sandbox while the escape list runs: a neighbour process and a file in shared memory."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager

from mcp_servers.sandbox.escapes.signals import SIGNALS


@contextmanager
def neighbour(home: str, python: str, script: str, secret: str, uid: int | None) -> Generator[tuple[int, int]]:
    """A process outside with the secret in its memory: its id and the secret's address."""
    signals = ",".join(str(int(number)) for number in SIGNALS.values())
    process = subprocess.Popen(  # noqa: S603
        [python, "-I", "-S", script, signals, secret],
        cwd=home, env={"SECRET": secret}, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, start_new_session=True,
        user=uid, group=uid, extra_groups=None if uid is None else [],
    )  # fmt: skip
    try:
        assert process.stdout is not None
        yield process.pid, int(process.stdout.readline())
    finally:
        process.kill()
        process.communicate()


def python_for(uid: int | None) -> str:
    """A Python that the uid can execute; one's own for None.

    Raises:
        LookupError: there is none.
    """
    # Behind the links of a virtual environment, which -S does not see.
    own = os.path.realpath(sys.executable)
    if uid is None:
        return own
    for candidate in (own, "/usr/local/bin/python3", "/usr/bin/python3"):
        if os.path.exists(candidate) and _runs(candidate, uid):
            return candidate
    raise LookupError(f"uid {uid} can execute no Python here")


def _runs(python: str, uid: int) -> bool:
    try:
        done = subprocess.run(  # noqa: S603
            [python, "-I", "-S", "-c", "import json"],
            cwd="/", user=uid, group=uid, extra_groups=[], check=False, stderr=subprocess.DEVNULL,
        )  # fmt: skip
    except OSError:
        return False
    return done.returncode == 0


@contextmanager
def shared_memory(secret: str, uid: int | None) -> Generator[str]:
    """A file in /dev/shm that only its owner may read, as Python's shared memory makes them; its path."""
    path = f"/dev/shm/escape-{secrets.token_hex(8)}"  # noqa: S108
    try:
        descriptor = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_EXCL, 0o600)
    except OSError:
        yield path
        return
    os.write(descriptor, secret.encode())
    if uid is not None:
        os.fchown(descriptor, uid, uid)
    os.close(descriptor)
    try:
        yield path
    finally:
        os.unlink(path)
