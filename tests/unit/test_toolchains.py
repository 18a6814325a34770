"""Which folders outside a workspace its commands may read: installations of programs, nothing else of a home."""

import sys
from pathlib import Path

import pytest

from task.tools.workspace.bounds import python_of, toolchains
from task.tools.workspace.git import INTERNALS, protected_paths


def program(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home with keys beside programs."""
    home = tmp_path / "homes" / "me"
    for name in (".cargo/bin/cargo", ".pyenv/versions/3.12/bin/python3.12", ".nvm/versions/node/v20/bin/node"):
        program(home / name)
    for name in ("bin/node", ".local/bin/uv", ".pyenv/shims/python3", "go/bin/gofmt", "mini/bin/python"):
        program(home / name)
    (home / "mini" / "conda-meta").mkdir()
    (home / ".rustup").mkdir()
    (home / ".ssh").mkdir()
    (home / ".cargo" / "credentials.toml").write_text("token")
    (home / "project").mkdir()
    return home


def readable(home: Path, *places: str, **more: str) -> set[str]:
    path = ":".join(str(home / place) for place in places)
    found = toolchains(home / "project", {"HOME": str(home), "PATH": path, **more})
    readable_ = map(Path, found.readable)
    return {str(place.relative_to(home)) for place in readable_ if place.is_relative_to(home)}


@pytest.mark.fault("workspace: a `PATH` with a home, a folder of keys or the workspace on it")
@pytest.mark.parametrize(
    ("places", "expected"),
    [
        ([".cargo/bin"], {".cargo/bin", ".rustup"}),
        ([".local/bin"], {".local/bin", ".rustup"}),
        ([".nvm/versions/node/v20/bin"], {".nvm/versions/node/v20/bin", ".nvm/versions/node/v20", ".rustup"}),
        ([".pyenv/shims"], {".pyenv/shims", ".pyenv", ".rustup"}),
        (["mini/bin"], {"mini/bin", "mini", ".rustup"}),
        (["go/bin"], {"go/bin", ".rustup"}),
        (["bin", ".", "..", "../..", "/", ".ssh", "project", "missing"], {".rustup"}),
    ],
)
def test_of_a_home_only_programs_are_readable(home: Path, places: list[str], expected: set[str]) -> None:
    assert readable(home, *places) == expected


def test_the_python_is_the_workspaces_then_the_active_one_then_the_products(home: Path) -> None:
    project, active = home / "project", {"VIRTUAL_ENV": str(home / "envs" / "a")}
    assert python_of(project, active) == Path(sys.executable)
    program(home / "envs" / "a" / "bin" / "python")
    (home / "envs" / "a" / "pyvenv.cfg").touch()
    assert python_of(project, active) == home / "envs" / "a" / "bin" / "python"
    assert {"envs/a"} <= readable(home, **active)
    program(project / ".venv" / "bin" / "python")
    assert python_of(project, active) == project / ".venv" / "bin" / "python"
    assert toolchains(project, {"PATH": ""}).path.startswith(f"{project}/.venv/bin:")


def test_what_git_would_run_is_protected_whatever_git_is(tmp_path: Path) -> None:
    def protected() -> set[str]:
        return {path.removeprefix(f"{tmp_path}/") for path in protected_paths(tmp_path) if ".git" in path}

    git = tmp_path / ".git"
    assert protected() == {".git"}
    git.write_text("gitdir: elsewhere\n")
    assert protected() == {".git"}
    git.unlink()
    git.symlink_to("/nowhere")
    assert protected() == {".git"}
    git.unlink()
    for place in ("modules/a/config", "modules/b/c/config", "modules/b/c/modules/d/config", "worktrees/e/commondir"):
        program(git / place)
    (git / "modules" / "link").symlink_to(tmp_path)
    folders = ("", "modules/a/", "modules/b/c/", "modules/b/c/modules/d/", "worktrees/e/")
    assert protected() == {f".git/{folder}{name}" for folder in folders for name in INTERNALS}
