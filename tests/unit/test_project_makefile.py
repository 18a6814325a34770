"""The Makefile makes one environment, reuses it, and refuses an interpreter the product cannot run on."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
# Answers the version question with $1, pretends to make environments, and writes down what it was asked.
INTERPRETER = """#!/bin/sh
case "$*" in
  -c*) echo {version} ;;
  "-m venv .venv") mkdir -p .venv/bin && cp "$0" .venv/bin/python ;;
esac
echo "$*" >> asked.txt
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    shutil.copy(ROOT / "Makefile", tmp_path)
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / "constraints.txt").touch()
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


@pytest.mark.parametrize("version", ["2.7", "3.10", "3.14"])
def test_a_wrong_interpreter_gets_one_sentence_and_exit_code_2(project: Path, version: str) -> None:
    result = make(project, "docs", interpreter(project, version))
    (line,) = result.stderr.splitlines()
    assert result.returncode == 2
    assert "needs Python 3.11, 3.12 or 3.13" in line
    assert f"is {version}:" in line


def test_a_missing_interpreter_gets_the_same_sentence(project: Path) -> None:
    result = make(project, "docs", "no-such-python")
    (line,) = result.stderr.splitlines()
    assert (result.returncode, '"no-such-python" is missing' in line) == (2, True)


def test_the_environment_is_made_once_and_again_only_when_the_requirements_change(project: Path) -> None:
    python = interpreter(project, "ok")
    installation = "-m pip install --quiet --disable-pip-version-check -c constraints.txt -e .[dev,rag]"
    assert make(project, "docs", python).returncode == 0
    assert make(project, "docs", python).returncode == 0
    asked = (project / "asked.txt").read_text(encoding="utf-8").splitlines()
    assert [line for line in asked if line.startswith(("-m venv", "-m pip"))] == ["-m venv .venv", installation]

    ready = (project / ".venv" / ".ready").stat().st_mtime
    os.utime(project / "constraints.txt", (ready + 1, ready + 1))
    assert make(project, "docs", python).returncode == 0
    asked = (project / "asked.txt").read_text(encoding="utf-8").splitlines()
    assert asked.count(installation) == 2
    assert asked.count("-m venv .venv") == 1


def test_the_size_is_said_and_torch_can_come_from_an_index_of_its_own(project: Path) -> None:
    (project / "constraints.txt").write_text("tokenizers==1\ntorch==2.13.0\n", encoding="utf-8")
    python = interpreter(project, "ok")
    plain = make(project, "docs", python)
    assert "0.5 GB" in plain.stdout
    assert "TORCH_INDEX" in plain.stdout

    (project / ".venv" / ".ready").unlink()
    chosen = make(project, "docs", python, "TORCH_INDEX=https://torch.example/cpu")
    asked = (project / "asked.txt").read_text(encoding="utf-8").splitlines()
    assert "TORCH_INDEX" not in chosen.stdout
    assert any(line.endswith("--index-url https://torch.example/cpu torch==2.13.0") for line in asked)
