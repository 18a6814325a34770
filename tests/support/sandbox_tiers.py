"""The sandboxes of this machine, as parameters of tests."""

import pytest

from mcp_servers.sandbox import probe
from mcp_servers.sandbox.policy import TierName

FOUND = probe()
_NAMES: tuple[TierName, ...] = ("landlock", "bubblewrap")
WORKING: list[TierName] = [name for name in _NAMES if FOUND.works[name] is None]
# One in `make test`, the others with the full counts.
SAMPLED = [*WORKING[:1], *(pytest.param(name, marks=pytest.mark.system) for name in WORKING[1:])]
# Those that can lead a run to named hosts.
NETWORKED = [name for name in WORKING if name == "bubblewrap" or FOUND.landlock_abi >= 4]
