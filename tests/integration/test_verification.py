"""What pytest verifies: honest projects, and none of the ways to make a failing test look like a passing one."""

import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from time import time_ns
from typing import Any, cast

import pytest
import yaml

from task.coding.diffs import FileDiff
from task.coding.verification import PytestRuns, changed_tests
from task.tools.workspace.commands import HOME, Commands, run_python
from task.tools.workspace.root import Workspace

DATA = cast("dict[str, Any]", yaml.safe_load(Path(__file__).with_name("verification.yaml").read_text("utf-8")))
SAMPLE = {"the code under test ends the process", "flat, with tests in a folder"}
NEW = "diff --git a b\nnew file mode 100644\n"
SECONDS = 120.0
PLUGINS = ("pytest", "_pytest", "pluggy", "iniconfig", "packaging", "pygments", "xdist", "execnet", "pytest_asyncio")
pytestmark = pytest.mark.timeout(300)


def cases(kind: str) -> list[Any]:
    return [
        pytest.param(files, id=name, marks=() if name in SAMPLE else pytest.mark.system)
        for name, files in DATA[kind].items()
    ]


def lay(folder: Path, files: Mapping[str, Any]) -> list[str]:
    """Write the files; their paths."""
    written = [name for name in files if "." in name or "/" in name]
    for name in written:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(files[name])
        (folder / name).chmod(files.get("mode", 0o644))
    return written


def environment(folder: Path) -> Path:
    """An environment in the workspace that has pytest and plugins of it."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / ".venv"], check=True)
    packages, ours = next((folder / ".venv" / "lib").glob("*/site-packages")), Path(pytest.__file__).parents[1]
    for place in ours.iterdir():
        if place.name.startswith(PLUGINS):
            (shutil.copytree if place.is_dir() else shutil.copy)(place, packages / place.name)
    for module in ("py.py", "typing_extensions.py"):
        shutil.copy(ours / module, packages)
    return folder / ".venv" / "bin" / "python"


@pytest.fixture(scope="module")
def active(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return environment(tmp_path_factory.mktemp("active"))


@pytest.fixture
def python(active: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The Python of the user's environment, which has few packages."""
    monkeypatch.setenv("VIRTUAL_ENV", str(active.parents[1]))
    return active


@pytest.mark.fault("coding: code, settings or files by which a failing test looks like one that passed")
@pytest.mark.parametrize("forged", cases("forgeries"))
async def test_a_forgery_is_not_verified(forged: dict[str, Any], tmp_path: Path, python: Path) -> None:
    lay(tmp_path, DATA["project"])
    began = time_ns()
    with Workspace(tmp_path) as workspace:
        async with Commands(workspace, gated=True, unsafe=True) as commands:
            environments = {commands.scratch / HOME / ".local": began}
            changed = changed_tests(
                [FileDiff(name, "" if name in DATA["project"] else NEW) for name in lay(tmp_path, forged)]
            )
            if script := forged.get("script"):
                assert (await run_python(commands, "snippet", script, SECONDS)).ok
            runs = PytestRuns(commands, python, environments, changed)
            plain = await commands.run("python -m pytest -q", SECONDS)
            assert plain.ok is forged.get("fooled", True), plain.text
            done = await runs.run("python -m pytest -q", SECONDS)
    assert runs.fault is not None, runs.passed
    assert done.code != 0


@pytest.mark.parametrize("files", cases("honest"))
async def test_an_honest_project_is_verified(files: dict[str, Any], tmp_path: Path, python: Path) -> None:
    lay(tmp_path, files)
    with Workspace(tmp_path) as workspace:
        async with Commands(workspace, gated=True, unsafe=True) as commands:
            runs = PytestRuns(commands, python, {}, [])
            done = await runs.run("python -m pytest -q", SECONDS)
    assert (runs.fault, runs.passed) == (None, [files.get("reads", "1 test passed")]), done.text
    assert done.code == 0


@pytest.mark.fault("coding: code, settings or files by which a failing test looks like one that passed")
@pytest.mark.system
@pytest.mark.parametrize(
    "name", ["bin/python", "pyvenv.cfg", "lib/PYTHON/site-packages/_pytest/runner.py", "new/a.pth", ""]
)
async def test_an_environment_that_changed_verifies_nothing(name: str, tmp_path: Path) -> None:
    lay(tmp_path, DATA["honest"]["flat, with tests in a folder"])
    python, began = environment(tmp_path), time_ns()
    place, content = tmp_path / ".venv" / name.replace("PYTHON", f"python3.{sys.version_info.minor}"), b""
    if name == "":  # another environment, none of whose files is new
        place.rename(tmp_path / "other")
    elif place.exists():
        content = place.read_bytes()
    place.parent.mkdir(exist_ok=True)
    while not place.exists() or place.lstat().st_ctime_ns <= began:  # until the file system's clock shows it
        place.unlink(missing_ok=True)
        if name:
            place.write_bytes(content)
            place.chmod(0o755)
        else:
            place.symlink_to("other")
    with Workspace(tmp_path) as workspace:
        async with Commands(workspace, gated=True, unsafe=True) as commands:
            runs = PytestRuns(commands, python, {tmp_path / ".venv": began}, [])
            await runs.run("python -m pytest -q", SECONDS)
    assert runs.fault == ("not_verified", f"not verified: the run changed {tmp_path}/.venv, from which pytest runs")
