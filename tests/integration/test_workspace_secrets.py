"""What commands of a hostile repository can read: nothing of the person's, whatever the repository contains."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from task.tools.workspace.commands import Commands
from task.tools.workspace.root import Workspace

KEY = "KEY-OF-THE-PERSON"
PLACES = (".ssh/id_rsa", ".config/gh/hosts.yml", ".local/share/dial-agent/state.key", ".netrc", "bin/python")


@pytest.fixture
async def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[Commands]:
    """In a workspace in a home with keys, one of them in the environment."""
    home, work = tmp_path / "home", tmp_path / "home" / "projects" / "shop"
    work.mkdir(parents=True)
    for place in PLACES:
        file = home / place
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(KEY)
        file.chmod(0o755)
    monkeypatch.setenv("HOME", str(home))
    for name in ("OLLAMA_API_KEY", "LD_PRELOAD", "GIT_SSH_COMMAND", "PYTHONPATH"):
        monkeypatch.setenv(name, f"/nowhere/{KEY}")
    monkeypatch.delenv("VIRTUAL_ENV", raising=False)
    with Workspace(work) as workspace:
        async with Commands(workspace, gated=True) as found:
            yield found


def linked(work: Path, name: str, target: Path) -> None:
    link = work / name
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(os.path.relpath(target, link.parent))


@pytest.mark.fault("workspace: a command that looks for keys in environments")
async def test_no_key_is_in_the_environment_of_a_command_or_of_its_parents(commands: Commands) -> None:
    done = await commands.run("env; cat /proc/*/environ 2>/dev/null | tr '\\0' '\\n'; ps -ef 2>/dev/null", 30)
    assert "PATH=" in done.stdout
    assert KEY not in done.text


@pytest.mark.fault("workspace: a repository whose links or environment pretend that a key is a program")
@pytest.mark.parametrize("place", PLACES)
async def test_no_link_of_the_repository_opens_a_file_of_the_person(commands: Commands, place: str) -> None:
    work = commands.workspace.path
    key = work.parents[1] / place
    for name in (".venv/bin/python", "venv/bin/python", "node_modules/.bin/node", "key"):
        linked(work, name, key)
    (work / ".venv" / "pyvenv.cfg").write_text(f"home = {key.parent}\n")
    done = await commands.run(f"cat {key} key .venv/bin/python; ls -a {key.parent}; echo done", 30)
    assert "done" in done.stdout
    assert KEY not in done.text


@pytest.mark.fault(
    "workspace: a repository that a command makes, or settings of git that it changes, for the person's git to run"
)
@pytest.mark.parametrize(
    "attack",
    [
        "mkdir -p .git/hooks; echo evil > .git/hooks/post-checkout; echo evil > .git/config",
        "mkdir g; echo evil > g/config; echo 'gitdir: g' > .git",
        "mkdir g; ln -s g .git",
    ],
)
async def test_a_command_makes_no_repository_that_waits_for_the_persons_git(commands: Commands, attack: str) -> None:
    done = await commands.run(f"{attack}; ls -d .git", 30)
    assert ".git" in done.stdout
    assert not os.path.lexists(commands.workspace.path / ".git")
