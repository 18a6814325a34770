"""The policy of one run: what a sandboxed program may read, write and use, read from documented JSON."""

import json
import os
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from mcp_servers.sandbox.errors import SandboxError

TierName = Literal["auto", "bubblewrap", "landlock", "none"]
# Where a run finds the proxy: a port of the loopback, to which in a network of its own a socket leads.
Door = tuple[int, str | None]
TIERS: tuple[TierName, ...] = ("auto", "bubblewrap", "landlock", "none")
LOWEST_UID = 1000
HIGHEST_UID = 2**31 - 1
MIB = 1024 * 1024
_OF_HOSTS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.:[]*"

# What programs need in order to start. Never all of /etc: it contains secrets, which root's programs own.
SYSTEM_PATHS = (
    "/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc/alternatives", "/etc/debian_version",
    "/etc/fonts", "/etc/group", "/etc/host.conf", "/etc/inputrc", "/etc/ld.so.cache", "/etc/ld.so.conf",
    "/etc/ld.so.conf.d", "/etc/locale.alias", "/etc/locale.gen", "/etc/localtime", "/etc/lsb-release", "/etc/magic",
    "/etc/mime.types", "/etc/nsswitch.conf", "/etc/os-release", "/etc/passwd", "/etc/protocols", "/etc/python3",
    "/etc/python3.11", "/etc/redhat-release", "/etc/services", "/etc/ssl/certs", "/etc/ssl/openssl.cnf",
    "/etc/timezone",
)  # fmt: skip


# Named tuples, since importing dataclasses takes a third of the launcher's start.
class Limits(NamedTuple):
    """Resource limits of every process of the run; bytes, seconds and counts; None leaves the launcher's own.

    `run_memory` is for all processes of the run together; the launcher then stays beside the program to watch it.
    `nice` is their least niceness.
    """

    memory: int | None = 1024 * MIB
    data: int | None = None
    cpu_seconds: int | None = None
    file_bytes: int | None = 512 * MIB
    open_files: int | None = 512
    # Counted per uid, including threads: effective only with a separate uid or user namespace, or with `run_memory`.
    processes: int | None = 128
    run_memory: int | None = None
    nice: int | None = None


class Policy(NamedTuple):
    """What one run may do; everything not named is denied.

    `protected` are paths inside `read_write` folders that are after the run what they were before, absent ones too.
    `objects` are git's folders of that name there: a run adds to them and takes nothing away. `kept` is a folder that
    no run reaches, for their copies.
    `network` are the hosts, `NAME` or `NAME:PORT`, that a proxy connects the run with; `*` is the public internet.
    `environment` is complete: nothing is inherited. `mark` (from `new_mark()`) names every process of the run for
    `kill_marked`. `uid` is applied or the run is refused.
    """

    workdir: str
    read_write: tuple[str, ...] = ()
    read_only: tuple[str, ...] = ()
    system: bool = True
    environment: Mapping[str, str] | None = None
    uid: int | None = None
    limits: Limits = Limits()
    tier: TierName = "auto"
    allow_unsafe: bool = False
    die_with_parent: bool = True
    mark: int | None = None
    umask: str = "077"
    protected: tuple[str, ...] = ()
    objects: tuple[str, ...] = ()
    kept: str | None = None
    network: tuple[str, ...] = ()

    @property
    def is_supervised(self) -> bool:
        """Whether the launcher stays beside the program, until all processes of the run have ended."""
        return bool(self.limits.run_memory or self.protected or self.objects or self.network)

    def to_json(self) -> str:
        """The policy as the launcher reads it."""
        return json.dumps(self._asdict() | {"limits": self.limits._asdict()})

    def readable(self) -> tuple[str, ...]:
        """Every read-only path that exists; one that was asked for and is missing is an error."""
        missing = [path for path in self.read_only if not os.path.exists(path)]
        if missing:
            raise SandboxError(f"read_only: there is no {missing[0]!r}")
        system = [path for path in SYSTEM_PATHS if os.path.exists(path)] if self.system else []
        return (*system, *self.read_only)


def parse(text: str) -> Policy:
    """The policy in JSON text.

    Raises:
        SandboxError: an unknown name, a wrong type, or paths that cannot be enforced.
    """
    try:
        values = json.loads(text)
    except ValueError as error:
        raise SandboxError(f"the policy is not JSON: {error}") from None
    values = _object("policy", values, set(Policy._fields))
    limits = Limits(**_numbers(_object("limits", values.pop("limits", {}), set(Limits._fields))))
    policy = Policy(
        workdir=_path("workdir", values.get("workdir")),
        read_write=_paths("read_write", values.get("read_write", [])),
        read_only=_paths("read_only", values.get("read_only", [])),
        environment=_environment(values.get("environment")),
        uid=_integer("uid", values.get("uid"), LOWEST_UID, HIGHEST_UID),
        limits=limits,
        tier=_tier(values.get("tier", "auto")),
        mark=_integer("mark", values.get("mark"), 1, 2**62),
        umask=_umask(values.get("umask", "077")),
        protected=_paths("protected", values.get("protected", [])),
        objects=_paths("objects", values.get("objects", [])),
        kept=_path("kept", values["kept"]) if values.get("kept") else None,
        network=_hosts(values.get("network", "none")),
        **{name: _flag(name, values[name]) for name in ("system", "allow_unsafe", "die_with_parent") if name in values},
    )
    _refuse_contradictions(policy)
    return policy


def _refuse_contradictions(policy: Policy) -> None:
    for path in policy.read_write:
        if not os.path.isdir(path):
            raise SandboxError(f"read_write: {path!r} is not a folder")
        if os.path.realpath(path) == "/":
            raise SandboxError("read_write: the whole file system is not a sandbox")
    writable = [os.path.realpath(path) for path in policy.read_write]
    for path in policy.read_only:
        if any(inside(os.path.realpath(path), folder) for folder in writable):
            raise SandboxError(
                f"read_only: {path!r} is in a read_write folder; this cannot be enforced, but `protected` can"
            )
    for path in (*policy.protected, *policy.objects):
        folder_of(path, policy.read_write)
    if policy.objects and (policy.kept is None or any(inside(policy.kept, folder) for folder in writable)):
        raise SandboxError("objects: `kept` must name a folder that is not in a read_write folder")


def folder_of(path: str, folders: tuple[str, ...]) -> str:
    """The one of the folders that contains the path.

    Raises:
        SandboxError: none does.
    """
    for folder in folders:
        if path != folder and inside(path, folder):
            return folder
    raise SandboxError(f"protected: {path!r} is not in a read_write folder")


def shown_objects(path: str) -> str:
    """Where bubblewrap shows the objects of before."""
    return f"/objects-of-before{path}"


def new_objects(policy: Policy, path: str) -> str:
    """The folder that bubblewrap shows in their place."""
    return f"{path}.{policy.mark}"


def inside(path: str, folder: str) -> bool:
    """Whether the path is the folder or below it."""
    return path == folder or path.startswith(f"{folder.rstrip('/')}/")


def _object(name: str, value: Any, known: set[str]) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise SandboxError(f"{name}: expected a JSON object")
    unknown = sorted(set(value) - known)
    if unknown:
        raise SandboxError(f"{name}: unknown name {unknown[0]!r}; known: {', '.join(sorted(known))}")
    return dict(value)


def _numbers(values: dict[str, Any]) -> dict[str, int | None]:
    return {name: _integer(f"limits.{name}", value, 1, 2**62) for name, value in values.items()}


def _integer(name: str, value: Any, least: int, most: int) -> int | None:
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise SandboxError(f"{name}: expected a whole number from {least} to {most}, not {value!r}")
    return value


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise SandboxError(f"{name}: expected true or false, not {value!r}")
    return value


def _tier(value: Any) -> TierName:
    for tier in TIERS:
        if value == tier:
            return tier
    raise SandboxError(f"tier: expected one of {', '.join(TIERS)}, not {value!r}")


# Compiling a regular expression would take longer than all the rest of this module.
def _umask(value: Any) -> str:
    if not isinstance(value, str) or len(value.removeprefix("0")) not in (2, 3) or value.strip("01234567"):
        raise SandboxError(f"umask: expected octal digits such as '022', not {value!r}")
    return value


def _hosts(value: Any) -> tuple[str, ...]:
    hosts = [] if value == "none" else value
    if not isinstance(hosts, list) or not all(isinstance(host, str) and _is_host(host) for host in hosts):
        raise SandboxError("network: expected 'none' or a list of hosts, such as 'pypi.org', '127.0.0.1:8080' or '*'")
    return tuple(host.lower() for host in hosts)


def _is_host(text: str) -> bool:
    return bool(text) and not text.strip(_OF_HOSTS) and text.isascii()


def _path(name: str, value: Any) -> str:
    if not isinstance(value, str) or not value.startswith("/") or "\0" in value:
        raise SandboxError(f"{name}: expected an absolute path, not {value!r}")
    return os.path.normpath(value)


def _paths(name: str, value: Any) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise SandboxError(f"{name}: expected a list of absolute paths")
    return tuple(_path(name, item) for item in value)


def _environment(value: Any) -> dict[str, str]:
    pairs = {"PATH": "/usr/local/bin:/usr/bin:/bin"} if value is None else value
    if not isinstance(pairs, dict) or not all(isinstance(item, str) for pair in pairs.items() for item in pair):
        raise SandboxError("environment: expected an object of strings")
    # A kernel that finds this name in a new pid namespace believes that its parent has died, and ends.
    return {name: text for name, text in pairs.items() if name != "JPY_PARENT_PID"}
