"""What stands around the code: the pipelines of both hosts, hooks, templates, locked dependencies, the version."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from task.conversation.state import VERSION as STATE_VERSION
from task.store.schema import HEAD

ROOT = Path(__file__).parent.parent.parent
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
PYTHONS = ["3.11", "3.12", "3.13"]
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
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
        "check": ".ci/run", "test-system": "make test-system", "audit": "make audit",
    }  # fmt: skip
    assert commands_of_github() == {
        "check": {".ci/run"}, "nightly": {"make test-system"}, "weekly": {"make audit"},
    }  # fmt: skip
    assert all(re.search(f"^{line[5:]}:", MAKEFILE, re.MULTILINE) for line in gitlab.values() if line != ".ci/run")


def test_a_change_is_checked_on_every_python_that_the_product_supports() -> None:
    checked = read(ROOT / ".github/workflows/check.yml")["jobs"]["check"]["strategy"]["matrix"]["python"]
    [matrix] = read(ROOT / ".gitlab-ci.yml")[".each-python"]["parallel"]["matrix"]
    assert checked == matrix["RUNTIME"] == PYTHONS
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
