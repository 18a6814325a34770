"""Started in a folder of somebody else's making, the product runs its own modules and never the folder's."""

import subprocess
from pathlib import Path

import pytest

from task.cli.companions import INTERPRETER, SEARCH
from task.cli.doctor import SANDBOX
from task.cli.up import COMMAND


@pytest.mark.fault("workspace: a folder with modules called like the product's own")
@pytest.mark.parametrize("command", [SANDBOX, SEARCH, INTERPRETER, COMMAND], ids=lambda command: command[-1])
def test_a_module_of_the_folder_does_not_take_the_place_of_ours(tmp_path: Path, command: tuple[str, ...]) -> None:
    package = tmp_path
    for name in command[-1].split("."):
        package /= name
        package.mkdir()
        (package / "__init__.py").touch()
    (package / "__main__.py").write_text("print('FOREIGN')")
    done = subprocess.run([*command, "--help"], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert "usage" in f"{done.stdout}{done.stderr}".lower()
    assert "FOREIGN" not in done.stdout
