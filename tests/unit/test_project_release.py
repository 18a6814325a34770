"""What stands around the code: the pipelines of both hosts, hooks, templates, locked dependencies, the version."""

import re
import tomllib
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from scripts import coverage_floors, release, version_copies
from task.conversation.state import VERSION as STATE_VERSION
from task.store.schema import HEAD
from tests.support.compose import FILLED, composed, image_builds

ROOT = Path(__file__).parent.parent.parent
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
PYTHONS = ["3.11", "3.12", "3.13"]
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
KERNELS = ROOT / "mcp_servers" / "python_interpreter" / "requirements.txt"
LOCKS = [KERNELS, *sorted((ROOT / "locks").glob("*.txt"))]
PINNED = re.compile(r"^([\w.-]+)(?:\[[^\]]*\])?==([^\s;]+)", re.MULTILINE)
LOG = "\n## [Unreleased]\n{open}\n## [1.2.0]{date}\n\n- It works.\n\n## [1.1.0] - 2026-01-01\n\n- It worked.\n"
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def read(path: Path) -> Any:
    """The file with texts for values: YAML would read the key `on` as true, and a version as a number."""
    return yaml.load(path.read_text(encoding="utf-8"), Loader=yaml.BaseLoader)


def commands_of_github() -> dict[str, set[str]]:
    """What the jobs of each workflow run beside trusting the checkout."""
    return {
        path.stem: {
            step["run"]
            for job in read(path)["jobs"].values()
            for step in job["steps"]
            if "run" in step and not step["run"].startswith("git config")
        }
        for path in WORKFLOWS
    }


def test_both_hosts_call_the_same_few_commands_and_nothing_else() -> None:
    gitlab = {
        name: line
        for name, job in read(ROOT / ".gitlab-ci.yml").items()
        if isinstance(job, dict) and "script" in job
        for line in ([job["script"]] if isinstance(job["script"], str) else job["script"][-1:])
    }
    assert gitlab == {
        "check": ".ci/run", "test-system": "make test-system", "audit": "make audit", "release": "make release",
    }  # fmt: skip
    assert commands_of_github() == {
        "check": {".ci/run"}, "nightly": {"make test-system"}, "weekly": {"make audit"}, "release": {"make release"},
    }  # fmt: skip
    assert all(re.search(f"^{line[5:]}:", MAKEFILE, re.MULTILINE) for line in gitlab.values() if line != ".ci/run")


def test_a_change_is_checked_on_every_python_that_the_product_supports() -> None:
    checked = read(ROOT / ".github/workflows/check.yml")["jobs"]["check"]["strategy"]["matrix"]["python"]
    [matrix] = read(ROOT / ".gitlab-ci.yml")[".each-python"]["parallel"]["matrix"]
    assert checked == matrix["RUNTIME"] == PYTHONS
    named = [text.rpartition(" ")[2] for text in PROJECT["classifiers"] if text.startswith("Programming Language")]
    assert named == PYTHONS
    assert PROJECT["requires-python"] == f">={PYTHONS[0]},<3.{int(PYTHONS[-1][2:]) + 1}"


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_may_read_only_and_pins_each_action_to_a_commit(path: Path) -> None:
    workflow = read(path)
    actions = [step["uses"] for job in workflow["jobs"].values() for step in job["steps"] if "uses" in step]
    assert workflow["permissions"] == {"contents": "read"}
    assert actions
    assert all(re.search(r"@[0-9a-f]{40}$", action) for action in actions)


def test_the_hooks_before_a_commit_are_steps_of_make_check() -> None:
    [repository] = read(ROOT / ".pre-commit-config.yaml")["repos"]
    entries = [hook["entry"].removeprefix(".venv/bin/") for hook in repository["hooks"]]
    assert repository["repo"] == "local"
    assert entries == ["ruff format", "ruff check --fix", "lint-imports --no-logo", "python -m scripts.house"]
    assert all(entry.removesuffix(" --fix") in MAKEFILE for entry in entries)


def test_both_hosts_ask_the_same_of_a_change() -> None:
    github, gitlab = ".github/pull_request_template.md", ".gitlab/merge_request_templates/Default.md"
    assert (ROOT / github).read_text(encoding="utf-8") == (ROOT / gitlab).read_text(encoding="utf-8")


@pytest.mark.parametrize("package", ["task", "mcp_servers"])
def test_a_package_says_that_it_is_typed(package: str) -> None:
    assert (ROOT / package / "py.typed").is_file()


def test_the_page_about_upgrades_has_the_versions_of_this_release() -> None:
    rows = re.findall(
        r"^\| (\d\S+) \| (\d{4}) \| (\d+) \|",
        (ROOT / "docs" / "upgrading.md").read_text(encoding="utf-8"),
        re.MULTILINE,
    )
    assert rows[-1] == (PROJECT["version"], HEAD, str(STATE_VERSION))


def pinned(path: Path) -> set[tuple[str, str]]:
    """Names and versions; a package may have another version on another system."""
    return {(canonicalize_name(name), found) for name, found in PINNED.findall(path.read_text(encoding="utf-8"))}


@pytest.mark.parametrize("path", LOCKS, ids=lambda path: path.name)
def test_a_lock_has_exact_versions_with_hashes_and_no_address(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert "://" not in text
    for entry in text.replace("\\\n", "").splitlines():
        assert re.fullmatch(PINNED.pattern + r"( ; [^\\]+?)?( +--hash=sha256:[0-9a-f]{64})+", entry), entry


def test_the_locks_have_what_the_project_requires_in_the_same_versions() -> None:
    groups = {"agent": (), "image": ("dapr", "otel"), "tools": ("dev",)}
    for name in ("agent", "image", "tools", "search", "interpreter"):
        locked = pinned(ROOT / "locks" / f"{name}.txt")
        extras = (PROJECT["optional-dependencies"][extra] for extra in groups.get(name, ()))
        required = [*PROJECT["dependencies"], *chain(*extras)] if name in groups else []
        for requirement in map(Requirement, required):
            versions = [found for name, found in locked if name == canonicalize_name(requirement.name)]
            assert any(map(requirement.specifier.contains, versions)), f"{requirement}: run `make lock`"
        assert locked <= pinned(ROOT / "locks" / "tools.txt"), "run `make lock`"
    torch = dict(pinned(ROOT / "locks" / "torch.txt"))
    for requirement in map(Requirement, PROJECT["optional-dependencies"]["sentence-transformers"]):
        assert requirement.specifier.contains(torch[requirement.name]), f"{requirement}: run `make lock`"
    assert pinned(KERNELS) == pinned(ROOT / "locks" / "kernels.in"), "run `make lock`"


def test_the_version_has_one_place_from_which_its_copies_are_written(tmp_path: Path) -> None:
    assert all(path.read_text(encoding="utf-8") == text for path, text in version_copies.copied().items())
    for name in ("pyproject.toml", *version_copies.COPIES):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        text = (ROOT / name).read_text(encoding="utf-8")
        (tmp_path / name).write_text(
            text.replace(f'\nversion = "{PROJECT["version"]}"\n', '\nversion = "9.8.7"\n'), encoding="utf-8"
        )
    written = version_copies.copied(tmp_path)
    assert [text.count("9.8.7") for text in written.values()] == [3, 2, 3]


def test_the_text_of_a_release_is_its_section_of_the_changelog() -> None:
    assert release.notes(LOG.format(open="", date=" - 2026-02-03"), "1.2.0") == "- It works.\n"


@pytest.mark.parametrize(
    ("open_", "date", "wanted", "reason"),
    [
        ("", "", "1.2.0", "needs a section"),
        ("", " - soon", "1.2.0", "needs a section"),
        ("", " - 2026-02-03", "1.3.0", "needs a section"),
        ("\n- Something new.\n", " - 2026-02-03", "1.2.0", "Move the lines under"),
    ],
)
def test_a_changelog_that_does_not_fit_the_version_stops_the_release(
    open_: str, date: str, wanted: str, reason: str
) -> None:
    with pytest.raises(release.NotReleasable, match=reason):
        release.notes(LOG.format(open=open_, date=date), wanted)


def test_a_release_names_every_image_with_labels_that_a_shell_takes() -> None:
    built = {composed(FILLED)["services"][name]["image"] for name in image_builds()}
    assert {f"{name}:{PROJECT['version']}" for name in release.IMAGES} == built
    assert all((ROOT / file).is_file() for file in release.IMAGES.values())
    assert not [
        line for line in release.labels("1.2.0", "a" * 40, "2026-02-03T04:05:06+00:00") if re.search(r"\s", line)
    ]


def report(**lines: tuple[int, int]) -> dict[str, Any]:
    """A report of `coverage json`, with covered lines and all, half as many branches, per file of a room."""
    return {
        "files": {
            f"task/{room}/file.py": {
                "summary": {
                    "covered_lines": covered, "num_statements": everything,
                    "covered_branches": covered // 2, "num_branches": everything // 2,
                }
            }
            for room, (covered, everything) in lines.items()
        }
    }  # fmt: skip


def test_the_floors_of_coverage_only_rise() -> None:
    figures = coverage_floors.reached(report(runs=(80, 100), store=(90, 100), empty=(0, 0)))
    assert figures == {"task/runs": 80, "task/store": 90}
    floors = {"task/runs": 85, "task/store": 70, "task/gone": 99}
    assert [text.partition(":")[0] for text in coverage_floors.problems(figures, floors)] == ["task/runs"]
    assert coverage_floors.raised(figures, floors) == {"task/runs": 85, "task/store": 89}
    assert list(coverage_floors.problems(figures, {"task/runs": 1})) == [
        "task/store: 90.0 %, and coverage.toml gives no floor; run `make floors`"
    ]
