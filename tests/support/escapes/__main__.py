"""Try the escape list in every tier and identity of this machine, and print JSON: `[--tier TIER] [--quick]`."""

import json
import os
import sys
from dataclasses import asdict

if not __package__:
    # Started by its path, by a user who may read nothing but a copy.
    sys.path.insert(0, os.path.abspath(__file__).rsplit("/", 4)[0])

from mcp_servers.sandbox.self_test import ways
from mcp_servers.sandbox.tiers import find_tier
from tests.support.escapes.trial import verdicts


def main(options: list[str]) -> int:
    """0 when nothing got out, 1 when something did or no sandbox works."""
    tier = find_tier()
    only = options[options.index("--tier") + 1] if "--tier" in options else None
    trials = [(name, uid, list(verdicts(name, uid, "--quick" in options))) for name, uid in ways(tier, only)]
    report = [
        {"tier": name, "uid": uid, "verdicts": [asdict(verdict) for verdict in tried]} for name, uid, tried in trials
    ]
    print(json.dumps({"tier": asdict(tier), "trials": report}))
    return 1 if not trials or any(verdict.state != "held" for _, _, tried in trials for verdict in tried) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
