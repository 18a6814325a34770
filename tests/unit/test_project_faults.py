"""No bad input and no scenario loses its test, no bound grows, and no library has a licence that may not be used."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from scripts import faults, sbom, scenarios_page
from scripts.house import ROOT, Figures, lowered, measured, problems
from scripts.sbom import permissive, required, vendored

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


FILES = {
    "task/loop.py": "from task.tools.base import call\n\n\ndef _asked():\n    return call()\n\n\nasked = _asked()\n",
    "task/tools/base.py": "class Answer: ...\n\n\ndef call():\n    return Answer()\n",
    "task/local/core/app.py": "class Answer: ...\n",
    "task/permissions/shell.py": "",
    "task/permissions/programs.toml": "a = 1\nb = 2\n",
    "tests/test_loop.py": "x = 1\n",
}


def test_each_room_has_its_lines_and_files() -> None:
    figures = measured(FILES)
    assert figures["task"] == {"files": 1, "lines": 8}
    assert figures["task/tools"] == {"files": 1, "lines": 5}
    assert figures["task/local/core"] == {"files": 1, "lines": 1}
    assert figures["task/permissions.reader"] == {"files": 1, "lines": 0, "toml": 2}
    assert figures["task as a whole"] == {"files": 4, "lines": 14}
    assert figures["tests"] == {"files": 1, "lines": 1}


def test_the_shape_counts_what_tires_a_reader() -> None:
    shape = measured(FILES)["shape"]
    assert shape["private functions called from one place"] == 1
    assert shape["class names defined in two files"] == 1
    assert shape["files with one importer"] == 1


def test_a_figure_above_its_bound_fails() -> None:
    (problem,) = problems({"task": {"lines": 11}}, {"task": {"lines": 10}})
    assert "11 lines, at most 10" in problem


def test_a_gain_that_is_not_written_down_fails() -> None:
    (problem,) = problems({"task": {"lines": 9}}, {"task": {"lines": 10}})
    assert "make house" in problem


def test_writing_lowers_bounds_and_never_raises_them() -> None:
    bounds: Figures = {"task": {"lines": 10, "files": 3}, "task/gone": {"lines": 5}}
    assert lowered({"task": {"lines": 12, "files": 2}}, bounds) == {"task": {"lines": 10, "files": 2}}


CORE = {f"task/{room}" for room in ("conversation", "loop.py", "output", "permissions", "product", "runs")}


def test_the_core_has_no_unknown_types_and_any_is_rare_there() -> None:
    strict = set(tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["pyright"]["strict"])
    assert strict >= CORE, "pyright reports an unknown type in each file of these as an error"
    files = (file for room in CORE for file in (*(ROOT / room).rglob("*.py"), ROOT / room) if file.is_file())
    text = "\n".join(file.read_text("utf-8") for file in files)
    hidden = r"\bAny as\b|^\w+(: TypeAlias)? = .*\bAny\b|# *(type|pyright):(?! ignore\[reportMissingTypeStubs\])"
    assert [found[0] for found in re.finditer(hidden, text, re.MULTILINE)] == []
    code = re.sub(r"^(from|import) .*", "", text, flags=re.MULTILINE)
    assert 10 < len(re.findall(r"\bAny\b(?! \w)", code)) <= 20, "not counting prose"


def component(name: str, *stated: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "version": "1.0", "licenses": list(stated)}


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("MIT", True),
        ("Apache-2.0 WITH LLVM-exception AND (GPL-2.0-only OR BSD-3-Clause)", True),
        ("MIT OR GPL-3.0-only", True),
        ("MIT AND GPL-3.0-only", False),
        ("GPL-3.0-only WITH Classpath-exception-2.0", False),
        ("License :: Other/Proprietary License", False),
        ("True", False),
        ("", False),
    ],
)
def test_a_licence_is_permissive_if_it_leaves_a_permissive_choice(expression: str, expected: bool) -> None:
    assert permissive(expression) == expected


def test_a_package_with_another_licence_or_none_is_named() -> None:
    found = sbom.problems([
        component("reader", {"license": {"id": "MIT"}}), component("copyleft", {"expression": "AGPL-3.0-only"}),
        component("silent"), component("certifi", {"license": {"id": "MPL-2.0"}}),
    ])  # fmt: skip
    assert list(found) == [
        "copyleft 1.0: AGPL-3.0-only is not among the accepted.",
        "silent 1.0: no licence stated is not among the accepted.",
    ]


def test_what_the_product_requires_counts_and_what_only_tests_need_does_not() -> None:
    found = required(["httpx>=0.28", "no-such-package-anywhere; sys_platform == 'nowhere'"])
    assert {"httpx", "httpcore", "h11", "certifi", "idna", "anyio"} <= found
    assert not {"pytest", "no-such-package-anywhere"} & found


def test_the_libraries_of_the_page_are_listed_with_their_licences() -> None:
    assert not list(sbom.problems(vendored()))
    assert "katex" in {item["name"] for item in vendored()}
