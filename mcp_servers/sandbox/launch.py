"""Put this process into a sandbox and become the program: signals and process groups stay simple."""

import os
import signal
import sys
from collections.abc import Mapping
from typing import NoReturn

from mcp_servers.sandbox import bpf, bubblewrap, filters, landlock, process
from mcp_servers.sandbox.errors import SandboxError
from mcp_servers.sandbox.policy import Door, Limits, Policy, TierName

REFUSED_EXIT, NOT_EXECUTABLE_EXIT, NOT_FOUND_EXIT = 125, 126, 127
SAFE_TIERS: tuple[TierName, ...] = ("bubblewrap", "landlock")
NOTHING, ANY_PORT = "/bin/true", 1


def launch(policy: Policy, argv: list[str], parent: int) -> int:
    """Become the program under the policy; this process is replaced, unless it supervises: then the exit code.

    Raises:
        SandboxError: the policy cannot be enforced here.
        OSError: the program cannot be executed.
    """
    if policy.tier == "auto":
        policy = policy._replace(tier=best_tier(policy))
    if policy.is_supervised:
        from mcp_servers.sandbox.supervisor import supervise

        return supervise(policy, lambda policy, parent, door: _turn_into(policy, argv, parent, door), parent)
    return _turn_into(policy, argv, parent)


def _turn_into(policy: Policy, argv: list[str], parent: int, door: Door | None = None) -> NoReturn:
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # Python ignores it, and programs would inherit that
    match policy.tier:
        case "bubblewrap":
            _in_bubblewrap(policy, argv, parent, door)
        case "landlock":
            _in_landlock(policy, argv, parent, door)
        case _:
            _unprotected(policy, argv, parent)


def join(policy: Policy, bubblewrap: int) -> None:
    """Continue, in a child of this process, where a process of bubblewrap's has set up the policy's namespaces.

    This process runs from memory: `/proc/self/exe` would lead to its program's file past all mounts.

    Raises:
        SandboxError, OSError: they cannot be entered.
    """
    from mcp_servers.sandbox import joining

    process.apply_limits(policy.limits, policy.mark, counts_processes=policy.uid is not None)
    process.become(policy.uid)
    joining.join(bubblewrap)
    if os.fork() != 0:
        os._exit(0)
    os.setpgid(0, 0)  # in the session whose share of the processor is set


def confine(policy: Policy) -> None:
    """Put this process itself under the policy, before it runs code that is not trusted: a fork of a trusted program.

    It has one thread, and no open files but those that the code may have. In bubblewrap it has joined before.
    `die_with_parent` is not its concern.

    Raises:
        SandboxError, OSError: the policy cannot be enforced; the process must end.
    """
    policy, parent = policy._replace(die_with_parent=False), os.getppid()
    match policy.tier:
        case "bubblewrap":
            _in_joined_namespaces(policy)
        case "landlock":
            _behind_landlock(policy, parent)
        case _:
            _without_protection(policy, parent)
    os.environ.clear()
    os.environ.update(policy.environment or {})
    process.be_readable_to_itself()


def _in_joined_namespaces(policy: Policy) -> None:
    # Without a uid of its own the run is counted in its user namespace; the other limits are set already.
    limits = Limits(*[None] * len(Limits._fields))._replace(processes=policy.limits.processes)
    process.apply_limits(limits, None, counts_processes=policy.uid is None)
    process.become(None, umask=int(policy.umask, 8))
    process.no_new_privileges()
    os.chdir(policy.workdir)
    bpf.install(filters.bubblewrap_filter())


def best_tier(policy: Policy) -> TierName:
    """The first tier that starts a program under this policy here.

    Raises:
        SandboxError: none does, and the policy does not allow an unsafe run.
    """
    reasons: list[str] = []
    for tier in SAFE_TIERS:
        reason = failure(policy._replace(tier=tier))
        if reason is None:
            return tier
        reasons.append(f"{tier}: {reason}")
    if policy.allow_unsafe:
        return "none"
    raise SandboxError(f"no sandbox works here ({'; '.join(reasons)})")


def failure(policy: Policy) -> str | None:
    """Why a program that does nothing cannot be run under the policy; None when it can."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        _try(policy, writer)
    os.close(writer)
    with os.fdopen(reader, "rb") as said:
        words = said.read(4096).decode(errors="replace").strip()
    if os.waitpid(child, 0)[1] == 0:
        return None
    return words or "the trial run failed"


def _try(policy: Policy, writer: int) -> NoReturn:
    os.dup2(writer, 1)
    os.dup2(writer, 2)
    try:
        process.close_descriptors()
        _turn_into(
            policy._replace(mark=None, objects=()),
            [NOTHING],
            os.getppid(),
            (ANY_PORT, None) if policy.network else None,
        )
    except (SandboxError, OSError) as error:
        print(error, file=sys.stderr, flush=True)
    os._exit(REFUSED_EXIT)


def _in_bubblewrap(policy: Policy, argv: list[str], parent: int, door: Door | None) -> NoReturn:
    filter_ = os.memfd_create("filter", 0)
    os.write(filter_, filters.bubblewrap_filter())
    os.lseek(filter_, 0, os.SEEK_SET)
    command = bubblewrap.command(policy, argv, filter_, door)
    # Since Linux 5.12 mapping root into a user namespace needs this capability.
    _shrink(policy, parent, keep=1 << process.CAP_SETFCAP if policy.uid is None and os.geteuid() == 0 else 0)
    os.execve(command[0], command, {})  # noqa: S606


def _in_landlock(policy: Policy, argv: list[str], parent: int, door: Door | None) -> NoReturn:
    _behind_landlock(policy, parent, door)
    _become(argv, policy.environment or {})


def _behind_landlock(policy: Policy, parent: int, door: Door | None = None) -> None:
    version, own_uid = landlock.abi(), policy.uid is not None
    if version == 0:
        raise SandboxError("this kernel has no Landlock (Linux 5.13 and newer have it)")
    if policy.network and version < landlock.TCP_ABI:
        raise SandboxError("network: this kernel cannot allow one port (Linux 6.7 and newer can)")
    rules = landlock.ruleset(version, policy.readable(), policy.read_write, own_uid, door[0] if door else None)
    filter_ = filters.landlock_filter(filters.Gaps(own_uid, version), os.getpid(), connects=door is not None)
    _shrink(policy, parent)
    os.chdir(policy.workdir)
    landlock.restrict(rules)
    bpf.install(filter_)


def _unprotected(policy: Policy, argv: list[str], parent: int) -> NoReturn:
    _without_protection(policy, parent)
    _become(argv, policy.environment or {})


def _without_protection(policy: Policy, parent: int) -> None:
    if not policy.allow_unsafe:
        raise SandboxError("tier 'none' protects nothing; allow_unsafe must say that this is wanted")
    _shrink(policy, parent)
    os.chdir(policy.workdir)


def _shrink(policy: Policy, parent: int, keep: int = 0) -> None:
    process.apply_limits(policy.limits, policy.mark, counts_processes=policy.uid is not None)
    process.become(policy.uid, keep, int(policy.umask, 8))
    process.no_new_privileges()
    if policy.die_with_parent:
        process.die_with(parent)


def _become(argv: list[str], environment: Mapping[str, str]) -> NoReturn:
    program = argv[0] if "/" in argv[0] else _found(argv[0], environment.get("PATH", os.defpath))
    os.execve(program, argv, dict(environment))  # noqa: S606


def _found(name: str, path: str) -> str:
    for folder in path.split(os.pathsep):
        place = os.path.join(folder, name)
        if os.path.isfile(place) and os.access(place, os.X_OK):
            return place
    raise FileNotFoundError(f"there is no program {name!r} on the PATH of this run")
