"""Write the table of docs/testing.md from tests/scenarios.toml; `--check` only reports whether it is current.

A scenario whose tests are missing or may not run is an error in both cases.
"""

import sys
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from scripts.faults import tests_of
from scripts.pages import publish

ROOT = Path(__file__).resolve().parent.parent
NUMBERS = range(1, 28)
OPENING = """\
| | the user asks, or the situation | what must hold | tests |
|---|---|---|---|
"""


def problems(scenarios: Mapping[str, Any], reasons: Mapping[str, str | None]) -> Iterator[str]:
    """One sentence per scenario without a test, and per named test that is missing or may not run."""
    for number in sorted({*map(str, NUMBERS), *scenarios}, key=int):
        tests = scenarios.get(number, {}).get("tests", [])
        if not tests:
            yield f"scenario {number}: no test is named"
        for nodeid in tests:
            if nodeid not in reasons:
                yield f"scenario {number}: there is no test {nodeid}"
            elif reason := reasons[nodeid]:
                yield f"scenario {number}: {nodeid} does not count, it uses {reason}"


def page(scenarios: Mapping[str, Any]) -> str:
    rows = list[str]()
    for number, row in scenarios.items():
        tests = [test.partition("::") for test in row["tests"]]
        links = (f"[{name.removeprefix('test_').replace('_', ' ')}](../{file})" for file, _, name in tests)
        rows.append(f"| {number} | {row['asks']} | {row['holds']} | {', '.join(links)} |\n")
    return OPENING + "".join(rows)


def main(arguments: list[str]) -> int:
    scenarios = tomllib.loads((ROOT / "tests" / "scenarios.toml").read_text("utf-8"))
    found = list(problems(scenarios, {nodeid: reason for nodeid, reason, _ in tests_of(ROOT)}))
    for line in found:
        print(f"tests/scenarios.toml: {line}", file=sys.stderr)
    return 1 if found else publish("testing.md", page(scenarios), "tests/scenarios.toml", arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
