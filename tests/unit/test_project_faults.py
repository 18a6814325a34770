"""No bad input and no validation scenario can lose its test unnoticed."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts import faults, scenarios_page

SUITE = """
import pytest

@pytest.mark.fault("request: no key")
@pytest.mark.fault("model: torn stream")
def test_runs(): pass

@pytest.mark.fault("model: torn stream", case="1")
@pytest.mark.parametrize("size", [0, 1])
async def test_sizes(size): pass
"""
IDLE = {
    "skip": '@pytest.mark.skip\n@pytest.mark.fault("a: b")\ndef test_it(): pass',
    "skipif": '@pytest.mark.fault("a: b")\n@pytest.mark.skipif(False, reason="elsewhere")\ndef test_it(): pass',
    "xfail": '@pytest.mark.fault("a: b")\n@pytest.mark.xfail\ndef test_it(): pass',
    "in its body": '@pytest.mark.fault("a: b")\ndef test_it():\n    pytest.skip("not today")',
    "whole module": 'pytestmark = [pytest.mark.skip]\n@pytest.mark.fault("a: b")\ndef test_it(): pass',
    "without its case": '@pytest.mark.fault("a: b", case="500")\n@pytest.mark.parametrize("n", [4])\ndef test_a(n): 1',
    "without an area": '@pytest.mark.fault("b")\ndef test_it(): pass',
}


def project(root: Path, suite: str) -> Path:
    for folder in ("docs", "tests"):
        (root / folder).mkdir()
    (root / "tests" / "test_suite.py").write_text(suite, encoding="utf-8")
    return root


def test_the_list_is_made_of_the_markers_and_has_to_match_them(tmp_path: Path) -> None:
    root = project(tmp_path, SUITE)
    assert faults.main(["--check"], root) == 1
    assert faults.main([], root) == 0
    page = (root / "docs" / "faults.md").read_text(encoding="utf-8")
    assert page.endswith("## model\n\n- torn stream (2 tests)\n\n## request\n\n- no key\n")
    assert faults.main(["--check"], root) == 0


@pytest.mark.parametrize("arguments", [[], ["--check"]], ids=["write", "check"])
def test_a_bad_input_without_a_test_stays_in_the_list_until_it_is_deleted_there(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = project(tmp_path, SUITE)
    assert faults.main([], root) == 0
    (root / "tests" / "test_suite.py").write_text(
        SUITE.replace("request: no key", "request: no body"), encoding="utf-8"
    )
    assert faults.main(arguments, root) == 1
    assert "'request: no key' has no test any more" in capsys.readouterr().err
    assert "- no key\n" in (root / "docs" / "faults.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("suite", IDLE.values(), ids=IDLE)
def test_a_marker_at_a_test_that_may_not_run_is_an_error(suite: str, tmp_path: Path) -> None:
    assert faults.main([], project(tmp_path, suite)) == 1


def test_a_scenario_without_a_test_that_runs_is_named_even_if_it_is_not_listed() -> None:
    tests = {"t.py::test_runs": None, "t.py::test_skipped": "pytest.mark.skip"}
    listed = {str(number): {"tests": ["t.py::test_runs"]} for number in range(1, 28) if number != 20}
    listed["1"] = {"tests": ["t.py::test_skipped", "t.py::test_gone"]}
    assert list(scenarios_page.problems(listed, tests)) == [
        "scenario 1: t.py::test_skipped does not count, it uses pytest.mark.skip",
        "scenario 1: there is no test t.py::test_gone",
        "scenario 20: no test is named",
    ]
