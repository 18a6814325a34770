"""The self-test: the escape list in every tier and identity that this machine offers, with its verdicts."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass

from mcp_servers.sandbox.errors import SandboxError
from mcp_servers.sandbox.escapes.bystanders import python_for
from mcp_servers.sandbox.escapes.trial import Verdict, verdicts
from mcp_servers.sandbox.launch import SAFE_TIERS
from mcp_servers.sandbox.policy import TierName
from mcp_servers.sandbox.tiers import Tier, find_tier

TEST_UID = 69_000  # not one of those that kernels have
USAGE = "usage: --self-test [--tier bubblewrap|landlock] [--quick] [--json]"


@dataclass(frozen=True, slots=True)
class Trial:
    """One way to run programs here, and what came of the escape list."""

    tier: TierName
    identity: str
    verdicts: list[Verdict]

    @property
    def escaped(self) -> list[Verdict]:
        """The attacks that got out, and those that proved nothing."""
        return [verdict for verdict in self.verdicts if verdict.state != "held"]


def main(options: list[str]) -> int:
    """Try everything and print it; 0 when nothing got out, 1 when something did or no sandbox works.

    Raises:
        SandboxError: the options are not understood.
    """
    tiers = _tiers([option for option in options if option not in ("--json", "--quick")])
    tier = find_tier()
    trials = [_trial(name, uid, "--quick" in options) for name, uid in _ways(tier, tiers)]
    if "--json" in options:
        print(json.dumps({"tier": asdict(tier), "trials": [asdict(trial) for trial in trials]}))
    else:
        print("\n".join(_lines(tier, trials)))
    return 1 if not trials or any(trial.escaped for trial in trials) else 0


def _tiers(options: list[str]) -> tuple[TierName, ...]:
    match options:
        case []:
            return SAFE_TIERS
        case ["--tier", name] if name in SAFE_TIERS:
            return tuple(tier for tier in SAFE_TIERS if tier == name)
        case _:
            raise SandboxError(USAGE)


def _ways(tier: Tier, tiers: tuple[TierName, ...]) -> Iterator[tuple[TierName, int | None]]:
    for name in tiers:
        if tier.works[name] is None:
            yield name, None
            if tier.own_uid and _has_python(TEST_UID):
                yield name, TEST_UID


def _has_python(uid: int) -> bool:
    try:
        python_for(uid)
    except LookupError:
        return False
    return True


def _trial(tier: TierName, uid: int | None, quick: bool) -> Trial:
    own = "root without capabilities" if os.geteuid() == 0 else "the ordinary user"
    return Trial(tier, own if uid is None else "a uid of its own", list(verdicts(tier, uid, quick)))


def _lines(tier: Tier, trials: list[Trial]) -> Iterator[str]:
    yield f"Tier of this machine: {tier.name} (level {tier.level}), kernel {tier.kernel}, {', '.join(tier.mechanisms)}"
    yield from (f"  {name} does not work here: {reason}" for name, reason in tier.works.items() if reason)
    yield from (f"  note: {gap}" for gap in tier.gaps)
    for trial in trials:
        yield f"\n{trial.tier}, {trial.identity}: {len(trial.escaped)} of {len(trial.verdicts)} got out"
        for verdict in trial.verdicts:
            yield f"  {verdict.state:6}  {verdict.name:30} {verdict.about}: {verdict.detail}"
    if not trials:
        yield "No sandbox works here: programs are not run unless the configuration says so explicitly."
