"""Check that every bad input in tests/faults.toml and every validation scenario in tests/scenarios.toml is covered by
tests that really run: `faults.py [PROJECT]`.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import re
import sys
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SWITCHED_OFF = frozenset({"skip", "skipif", "xfail"})
SCENARIOS = range(1, 28)
GIVES_UP = re.compile(r"\bpytest\.(skip|xfail|importorskip)\(")


class Collected:
    """A pytest plugin that remembers the collected tests, each with the reason why it may not count, if any."""

    def __init__(self) -> None:
        self.tests: dict[str, str | None] = {}

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        for item in session.items:
            self.tests[item.nodeid] = _switched_off(item)


def _switched_off(item: pytest.Item) -> str | None:
    for mark in item.iter_markers():
        if mark.name in SWITCHED_OFF:
            return f"it is marked {mark.name}"
    if isinstance(item, pytest.Function) and (found := GIVES_UP.search(inspect.getsource(item.function))):
        return f"it calls pytest.{found[1]}"
    return None


def read_map(path: Path) -> dict[str, list[str]]:
    """Bad input -> ids of the tests that cover it; the key names its section."""
    document = tomllib.loads(path.read_text(encoding="utf-8"))
    return {f"{section}: {fault}": ids for section, faults in document.items() for fault, ids in faults.items()}


def read_scenarios(path: Path) -> dict[str, list[str]]:
    """Scenario -> ids of the tests that prove it; a scenario that is not listed has none."""
    document = tomllib.loads(path.read_text(encoding="utf-8"))
    numbers = {*map(str, SCENARIOS), *document}
    return {f"scenario {number}": document.get(number, {}).get("tests", []) for number in sorted(numbers, key=int)}


def problems(faults: Mapping[str, list[str]], tests: Mapping[str, str | None]) -> Iterable[str]:
    """One sentence per fault without a test, and per named test that is missing or switched off."""
    reasons: dict[str, list[str | None]] = {}
    for nodeid, reason in tests.items():
        reasons.setdefault(nodeid, []).append(reason)
        reasons.setdefault(nodeid.partition("[")[0], []).append(reason)
    for fault, ids in faults.items():
        if not ids:
            yield f"{fault}: no test is named"
        for nodeid in ids:
            if nodeid not in reasons:
                yield f"{fault}: there is no test {nodeid}"
            elif reason := next(filter(None, reasons[nodeid]), None):
                yield f"{fault}: {nodeid} does not count, {reason}"


def collect(root: Path) -> dict[str, str | None]:
    """Every test below `root`, by its id.

    Raises:
        SystemExit: the collection itself fails; pytest's words are printed.
    """
    collected, output = Collected(), io.StringIO()
    arguments = [
        "--collect-only",
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:xdist",
        "--rootdir",
        str(root),
        str(root / "tests"),
    ]
    with contextlib.redirect_stdout(output):
        code = pytest.main(arguments, plugins=[collected])
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        raise SystemExit(f"{output.getvalue()}\nThe tests cannot be collected.")
    return collected.tests


def main(arguments: list[str]) -> int:
    root = Path(arguments[0]) if arguments else ROOT
    faults = read_map(root / "tests" / "faults.toml")
    scenarios = read_scenarios(root / "tests" / "scenarios.toml")
    tests = collect(root)
    found = [f"faults.toml: {line}" for line in problems(faults, tests)]
    found += [f"scenarios.toml: {line}" for line in problems(scenarios, tests)]
    for line in found:
        print(f"tests/{line}", file=sys.stderr)
    if not found:
        print(f"{len(faults)} bad inputs and {len(scenarios)} scenarios, each with a test that runs.")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
