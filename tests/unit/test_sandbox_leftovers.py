"""What a run has left is deleted, however it was made."""

import os
import subprocess
import tempfile
from pathlib import Path

import pytest

from mcp_servers.sandbox import Policy, clear_uid, command
from mcp_servers.sandbox.leftovers import empty, owners
from mcp_servers.sandbox.self_test import python_for

UID = 61_402
DEPTH = 1500


@pytest.mark.fault("sandbox: folders nested deeper than Python recurses")
def test_a_folder_is_emptied_whatever_its_depth_names_and_modes(tmp_path: Path) -> None:
    outside, folder = tmp_path / "outside", tmp_path / "folder"
    outside.mkdir()
    (outside / "kept").write_text("kept")
    folder.mkdir()
    (folder / "link").symlink_to(outside)
    (folder / "closed").mkdir()
    (folder / "closed" / "file").touch()
    (folder / "closed").chmod(0)
    os.mkfifo(folder / "pipe")
    os.mkdir(os.fsencode(folder) + b"/\xff\xfe")
    home = os.getcwd()
    os.chdir(folder)
    try:
        for _ in range(DEPTH):
            os.mkdir("deep")
            os.chdir("deep")
        Path("file").touch()
    finally:
        os.chdir(home)
    empty(str(folder))
    assert list(folder.iterdir()) == []
    assert (outside / "kept").read_text() == "kept"


@pytest.mark.fault("sandbox: files, queues and shared memory that a run leaves behind")
@pytest.mark.root
def test_nothing_of_a_uid_is_left_in_shared_places() -> None:
    script = (
        "import ctypes, os\n"
        "for folder in ('/dev/shm', '/tmp', '/var/tmp', '.'):\n"
        "    os.makedirs(f'{folder}/left-by-test/a'); open(f'{folder}/left-by-test/a/b', 'w').close()\n"
        "    os.chmod(f'{folder}/left-by-test', 0o777)\n"
        "library = ctypes.CDLL(None)\n"
        "assert min(library.shmget(0, 4096, 0o1600), library.msgget(0, 0o1600), library.semget(0, 1, 0o1600)) >= 0\n"
    )
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:  # pytest's own folders let no other user in
        os.chmod(folder, 0o755)
        own = f"{folder}/own"
        os.mkdir(own)
        os.chown(own, UID, UID)
        policy = Policy(own, uid=UID, tier="none", allow_unsafe=True)
        subprocess.run(command(policy, [python_for(UID), "-I", "-S", "-c", script]), check=True, timeout=20)
        assert UID in owners()
        clear_uid(UID, [own])
        assert UID not in owners()
        assert os.listdir(own) == []
