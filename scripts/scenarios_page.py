"""Write docs/scenarios.md from tests/scenarios.toml; `--check` only reports whether it is current."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

from scripts.pages import publish

SCENARIOS = Path(__file__).resolve().parent.parent / "tests" / "scenarios.toml"
OPENING = """\
# Validation scenarios

<!-- Written by `make docs` from tests/scenarios.toml; change the texts there. -->

The platform validates an agent with 27 scenarios. Each is proven by tests with real parts: local Core, the agent, the
Python interpreter, the search server in front of a site of ours, the embedding process, an image deployment. Only the
model is scripted. `make check` fails if a scenario has no test that runs.

| | the person asks, or the situation | what must hold | tests |
|---|---|---|---|
"""


def page() -> str:
    rows = tomllib.loads(SCENARIOS.read_text("utf-8")).items()
    return OPENING + "".join(
        f"| {number} | {row['asks']} | {row['holds']} | {', '.join(map(_link, row['tests']))} |\n"
        for number, row in rows
    )


def _link(test: str) -> str:
    file, _, name = test.partition("::")
    return f"[{name.removeprefix('test_').replace('_', ' ')}](../{file})"


if __name__ == "__main__":
    sys.exit(publish("scenarios.md", page(), "tests/scenarios.toml", sys.argv[1:]))
