"""How the product is set up: the Makefile's one environment."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
# Answers the version question with $1, pretends to make environments, and writes down what it was asked.
INTERPRETER = """#!/bin/sh
case "$*" in
  -c*) echo {version} ;;
  up) echo "$*" >> asked.txt; exit ;;
  "-m task.cli.environments .venv "*) mkdir -p .venv/bin && cp "$0" .venv/bin/python && cp "$0" .venv/bin/dial-agent ;;
esac
echo "$*" >> asked.txt
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    shutil.copy(ROOT / "Makefile", tmp_path)
    (tmp_path / "pyproject.toml").touch()
    for name in ("locks/agent", "locks/tools", "mcp_servers/python_interpreter/requirements"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / f"{name}.txt").touch()
    return tmp_path


def interpreter(project: Path, version: str) -> Path:
    path = project / f"python-{version}"
    path.write_text(INTERPRETER.format(version=version), encoding="utf-8")
    path.chmod(0o755)
    return path


def make(project: Path, target: str, python: Path | str, *variables: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    command = ["make", target, f"PYTHON={python}", *variables]
    return subprocess.run(
        command, cwd=project, env=environment, capture_output=True, encoding="utf-8", timeout=20, check=False
    )


def test_without_make_the_same_is_installed(project: Path) -> None:
    page = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
    made = re.findall(r"environments \.venv (.*)", make(project, "run", sys.executable, "-n").stdout)
    assert made == re.findall(r"\.venv/bin/pip install (.*)", page)


@pytest.mark.fault("start: an interpreter that is too old, too new or missing")
@pytest.mark.parametrize("version", ["2.7", "3.10", "3.14"])
def test_a_wrong_interpreter_gets_one_sentence_and_exit_code_2(project: Path, version: str) -> None:
    result = make(project, "docs", interpreter(project, version))
    (line,) = result.stderr.splitlines()
    assert result.returncode == 2
    assert "needs Python 3.11, 3.12 or 3.13" in line
    assert f"is {version}:" in line


@pytest.mark.fault("start: an interpreter that is too old, too new or missing")
def test_a_missing_interpreter_gets_the_same_sentence(project: Path) -> None:
    result = make(project, "docs", "no-such-python")
    (line,) = result.stderr.splitlines()
    assert (result.returncode, '"no-such-python" is missing' in line) == (2, True)


def test_the_environment_is_made_once_and_again_only_when_the_requirements_change(project: Path) -> None:
    python = interpreter(project, "ok")
    installation = [
        f"-m task.cli.environments .venv {what}"
        for what in ("--require-hashes -r locks/agent.txt", "--no-deps --no-build-isolation -e .")
    ]
    assert make(project, "docs", python).returncode == 0
    assert make(project, "docs", python).returncode == 0
    asked = (project / "asked.txt").read_text(encoding="utf-8").splitlines()
    made = [line for line in asked if line.startswith("-m task.cli.environments")]
    assert made == [*installation, installation[0].replace("agent", "tools")]

    ready = (project / ".venv" / ".ready").stat().st_mtime
    os.utime(project / "locks" / "agent.txt", (ready + 1, ready + 1))
    assert make(project, "docs", python).returncode == 0
    asked = (project / "asked.txt").read_text(encoding="utf-8").splitlines()
    assert [asked.count(command) for command in installation] == [2, 2]
