"""The check of tests/faults.toml and tests/scenarios.toml finds every way in which an entry can lose its test."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
SUITE = """
import pytest

def test_runs(): pass

@pytest.mark.parametrize("size", [0, 1])
def test_sizes(size): pass

@pytest.mark.skip
def test_skipped(): pass

@pytest.mark.skipif(False, reason="elsewhere")
def test_skipped_elsewhere(): pass

@pytest.mark.xfail
def test_expected_to_fail(): pass

def test_gives_up():
    pytest.skip("not today")
"""
MAP = """
[good]
"runs" = ["tests/test_suite.py::test_runs", "tests/test_suite.py::test_sizes[1]"]
"all sizes" = ["tests/test_suite.py::test_sizes"]

[bad]
"nameless" = []
"gone" = ["tests/test_suite.py::test_gone"]
"other size" = ["tests/test_suite.py::test_sizes[2]"]
"skipped" = ["tests/test_suite.py::test_runs", "tests/test_suite.py::test_skipped"]
"elsewhere" = ["tests/test_suite.py::test_skipped_elsewhere"]
"hopeless" = ["tests/test_suite.py::test_expected_to_fail"]
"gives up" = ["tests/test_suite.py::test_gives_up"]
"""
SCENARIOS = "".join(f'[{number}]\ntests = ["tests/test_suite.py::test_runs"]\n' for number in range(1, 28))


def check(root: Path, suite: str, faults: str, scenarios: str = SCENARIOS) -> subprocess.CompletedProcess[str]:
    (root / "tests").mkdir()
    (root / "tests" / "test_suite.py").write_text(suite, encoding="utf-8")
    (root / "tests" / "faults.toml").write_text(faults, encoding="utf-8")
    (root / "tests" / "scenarios.toml").write_text(scenarios, encoding="utf-8")
    (root / "pytest.ini").touch()
    command = [sys.executable, "-m", "scripts.faults", str(root)]
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=30, check=False)


def test_every_fault_without_a_test_that_runs_is_named_with_its_reason(tmp_path: Path) -> None:
    result = check(tmp_path, SUITE, MAP)
    assert result.returncode == 1
    suite = "tests/test_suite.py"
    assert [line.removeprefix("tests/faults.toml: bad: ") for line in result.stderr.splitlines()] == [
        "nameless: no test is named",
        f"gone: there is no test {suite}::test_gone",
        f"other size: there is no test {suite}::test_sizes[2]",
        f"skipped: {suite}::test_skipped does not count, it is marked skip",
        f"elsewhere: {suite}::test_skipped_elsewhere does not count, it is marked skipif",
        f"hopeless: {suite}::test_expected_to_fail does not count, it is marked xfail",
        f"gives up: {suite}::test_gives_up does not count, it calls pytest.skip",
    ]


def test_a_scenario_without_a_test_that_runs_is_named_even_if_it_is_not_listed(tmp_path: Path) -> None:
    listed = SCENARIOS.replace("[20]", "[28]").replace("::test_runs", "::test_skipped", 1)
    result = check(tmp_path, SUITE, "", listed)
    assert result.stderr.splitlines() == [
        "tests/scenarios.toml: scenario 1: tests/test_suite.py::test_skipped does not count, it is marked skip",
        "tests/scenarios.toml: scenario 20: no test is named",
    ]


def test_a_map_whose_tests_all_run_passes_and_is_counted(tmp_path: Path) -> None:
    result = check(tmp_path, SUITE, MAP.partition("[bad]")[0])
    assert (result.returncode, result.stdout) == (0, "2 bad inputs and 27 scenarios, each with a test that runs.\n")


def test_a_suite_that_cannot_be_collected_stops_the_check_with_pytests_words(tmp_path: Path) -> None:
    result = check(tmp_path, "import no_such_module_anywhere\n", MAP)
    assert result.returncode == 1
    assert "no_such_module_anywhere" in result.stderr
