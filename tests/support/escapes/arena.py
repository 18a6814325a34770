"""The ground on which the escape list is tried: canaries, listeners, a neighbour, and the sandbox in their midst."""

import os
import secrets
import shutil
import tempfile
from collections.abc import Generator, Iterable
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from mcp_servers.sandbox.policy import MIB
from mcp_servers.sandbox.self_test import python_for
from tests.support.escapes.bystanders import neighbour, shared_memory
from tests.support.escapes.catalogue import QUICK
from tests.support.escapes.listeners import Listeners
from tests.support.escapes.objects import Objects
from tests.support.escapes.traces import Canaries, Condition, harm_to
from tests.support.escapes.world import World

ROOT = Path(__file__).resolve().parents[3]
MEMORY = 768 * MIB
LEFTOVERS = {"leave_file": "/tmp", "leave_lasting_file": "/var/tmp", "leave_posix_queue": "/dev/mqueue"}


@dataclass(frozen=True, slots=True)
class Arena:
    """`secret` is a word that exists only outside; `descriptor` is open on the outside folder."""

    world: World
    secret: str
    python: str
    program: str
    descriptor: int
    canaries: Canaries
    read_only: Canaries
    listeners: Listeners
    objects: Objects
    neighbour: Condition

    def traces(self) -> dict[str, str]:
        """The visible effects outside, by attack."""
        messages = {name: "its message arrived" for name in self.listeners.received().split("|") if name}
        with open(os.path.join(os.path.dirname(self.world.neighbour_file), "received")) as file:
            harm = harm_to(self.world.neighbour_pid, self.neighbour, file.read())
        left = {name: f"left {path}" for name, path in self.world.leftovers.items() if os.path.lexists(path)}
        return {
            **self.canaries.changed(), **self.read_only.changed(), **self.objects.changed(), **messages, **harm, **left,
        }  # fmt: skip


@contextmanager
def arena(uid: int | None, owner: int | None) -> Generator[Arena]:
    """Prepare a sandbox of this uid; `owner` owns everything outside. None: the current uid."""
    secret = secrets.token_hex(16)
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="escape-", ignore_cleanup_errors=True))
        os.chmod(folder, 0o755)
        python, program = python_for(uid), f"{copy_of_packages(folder)}/tests/support/escapes/inside.py"
        canaries = Canaries.make(_folder(folder, "outside"), QUICK, secret, owner)
        read_only = Canaries.make(
            _folder(folder, "read_only"), ["write_to_read_only", "change_mode_by_descriptor"], secret, owner
        )
        inside = _folder(folder, "inside", 0o700, uid)
        os.symlink(canaries.folder, f"{inside}/prepared_link")
        listeners = Listeners.open(folder)
        stack.callback(listeners.close)
        file = _owned_file(_folder(folder, "neighbour", 0o700, owner), secret, owner)
        script = os.path.join(os.path.dirname(program), "neighbour.py")
        pid, address = stack.enter_context(neighbour(os.path.dirname(file), python, script, secret, owner))
        objects = Objects.make(secret, owner)
        stack.callback(objects.remove)
        leftovers = {name: f"{place}/escape-{secrets.token_hex(8)}" for name, place in LEFTOVERS.items()}
        stack.callback(_remove, leftovers.values())
        descriptor = os.open(canaries.folder, os.O_RDONLY)
        stack.callback(os.close, descriptor)
        world = World(
            inside=inside,
            outside=canaries.folder,
            read_only=read_only.folder,
            neighbour_pid=pid,
            neighbour_address=address,
            neighbour_file=file,
            shared_memory=stack.enter_context(shared_memory(secret, owner)),
            objects=objects.ids,
            keys=objects.keys,
            leftovers=leftovers,
            tcp_port=listeners.tcp.getsockname()[1],
            tcp6_port=listeners.tcp6.getsockname()[1] if listeners.tcp6 else 1,
            udp_port=listeners.udp.getsockname()[1],
            stream_socket=f"{folder}/service.sock",
            datagram_socket=f"{folder}/datagram.sock",
            sequence_socket=f"{folder}/sequence.sock",
            abstract_socket=listeners.abstract.getsockname().decode().replace("\0", "@"),
            memory_limit=MEMORY,
        )
        for name in ("service.sock", "datagram.sock", "sequence.sock"):
            os.chmod(f"{folder}/{name}", 0o666)
        yield Arena(
            world, secret, python, program, descriptor, canaries, read_only, listeners, objects, Condition.of(pid)
        )


def _remove(paths: Iterable[str]) -> None:
    for path in paths:
        with suppress(OSError):
            os.unlink(path)


def _folder(parent: str, name: str, mode: int = 0o777, uid: int | None = None) -> str:
    path = f"{parent}/{name}"
    os.mkdir(path)
    os.chmod(path, mode)
    if uid is not None:
        os.chown(path, uid, uid)
    return path


def copy_of_packages(folder: str) -> str:
    """A copy of the launcher and of the attacks that every uid can read, wherever the project lies; its folder."""
    root = f"{folder}/program"
    for package in ("mcp_servers/sandbox", "tests/support/escapes"):
        shutil.copytree(ROOT / package, f"{root}/{package}", ignore=shutil.ignore_patterns("__pycache__"))
    open(f"{root}/mcp_servers/__init__.py", "w").close()
    for place, _, names in os.walk(root):
        os.chmod(place, 0o755)
        for name in names:
            os.chmod(f"{place}/{name}", 0o644)
    return root


def _owned_file(folder: str, text: str, uid: int | None) -> str:
    path = f"{folder}/secret.txt"
    with open(path, "w") as file:
        file.write(text)
    if uid is not None:
        os.chown(path, uid, uid)
    return path
