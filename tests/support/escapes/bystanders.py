"""What is outside the sandbox while the escape list runs: a neighbour process and a file in shared memory."""

import os
import secrets
import subprocess
from collections.abc import Generator
from contextlib import contextmanager

from tests.support.escapes.signals import SIGNALS


@contextmanager
def neighbour(home: str, python: str, script: str, secret: str, uid: int | None) -> Generator[tuple[int, int]]:
    """A process outside with the secret in its memory: its id and the secret's address."""
    signals = ",".join(str(int(number)) for number in SIGNALS.values())
    process = subprocess.Popen(
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


@contextmanager
def shared_memory(secret: str, uid: int | None) -> Generator[str]:
    """A file in /dev/shm that only its owner may read, as Python's shared memory makes them; its path."""
    path = f"/dev/shm/escape-{secrets.token_hex(8)}"
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
