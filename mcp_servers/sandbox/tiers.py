"""Which tier this machine offers, found by running a program in each."""

import os
import tempfile
from dataclasses import dataclass

from mcp_servers.sandbox import bubblewrap, landlock, process
from mcp_servers.sandbox.launch import SAFE_TIERS, failure
from mcp_servers.sandbox.policy import Policy, TierName

LEVELS: dict[TierName, int] = {"bubblewrap": 2, "landlock": 1, "none": 0}
TRIAL_UID = 70_000
SIGNALS_ABI = 6


@dataclass(frozen=True, slots=True)
class Tier:
    """What a run gets here. `own_uid`: a policy may name a uid. `works`: tier -> None, or why it does not work."""

    name: TierName
    level: int
    own_uid: bool
    landlock_abi: int
    kernel: str
    mechanisms: list[str]
    works: dict[str, str | None]
    gaps: list[str]


def find_tier() -> Tier:
    """Try every tier; this forks, so a server asks through `probe()`."""
    # A folder of everyone, so that a trial under another uid may enter it.
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)  # noqa: S103
        uid = TRIAL_UID if _uid_works(folder) else None
        policy = Policy(folder, read_only=(folder,), environment={}, uid=uid)
        works = {tier: failure(policy._replace(tier=tier)) for tier in SAFE_TIERS}
    offered: list[TierName] = [tier for tier in SAFE_TIERS if works[tier] is None]
    name = offered[0] if offered else "none"
    return Tier(
        name=name,
        level=LEVELS[name],
        own_uid=uid is not None,
        landlock_abi=landlock.abi(),
        kernel=os.uname().release,
        mechanisms=_mechanisms(name, uid),
        works={str(tier): reason for tier, reason in works.items()},
        gaps=_gaps(name, uid, landlock.abi()),
    )


def _uid_works(folder: str) -> bool:
    if not process.may_change_uid():
        return False
    return failure(Policy(folder, environment={}, uid=TRIAL_UID, tier="none", allow_unsafe=True)) is None


def _mechanisms(name: TierName, uid: int | None) -> list[str]:
    own = ["own uid"] if uid is not None else []
    match name:
        case "bubblewrap":
            return ["namespaces", "seccomp", "rlimits", f"bubblewrap at {bubblewrap.program()}", *own]
        case "landlock":
            return ["Landlock", "seccomp", "rlimits", *own]
        case _:
            return ["rlimits", *own]


def _gaps(name: TierName, uid: int | None, abi: int) -> list[str]:
    if name == "none":
        return ["files, processes and the network are open"]
    uncounted = "no limit on the number of processes: give the container one"
    if name == "bubblewrap":
        return [uncounted] if uid is None and os.geteuid() == 0 else []
    gaps = ["names and sizes of files outside can be asked for, not their contents"]
    if uid is None:
        gaps.append(uncounted)
        gaps.append("chmod, chown, utime and extended attributes are accepted and ignored")
        gaps.append("no /dev/shm, no pseudo-terminals")
    if uid is None and abi < SIGNALS_ABI:
        gaps.append("no signals between the run's own processes")
    return gaps
