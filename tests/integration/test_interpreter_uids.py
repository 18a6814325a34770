"""Kernels of a server that is root: each has a user id of its own, and that keeps it from its neighbours."""

from __future__ import annotations

import os
from collections.abc import Generator
from pathlib import Path

import psutil
import pytest

from tests.support.escapes import IS_ROOT
from tests.support.interpreter import Talk, running_interpreter
from tests.support.open_python import open_python

pytestmark = pytest.mark.system

NEIGHBOUR = """
import os, signal
def tried(what):
    try:
        what()
        return "done"
    except OSError as error:
        return type(error).__name__
[tried(lambda: open({secret!r}).read()), tried(lambda: os.listdir({folder!r})), tried(lambda: os.kill({pid}, 9)),
 tried(lambda: open("/proc/{pid}/environ").read())]
"""
REFUSED = {"PermissionError", "ProcessLookupError", "FileNotFoundError"}
FORKS = "import os\nfor _ in range(2000):\n    if os.fork() == 0:\n        import time; time.sleep(60)"
POOL = "import multiprocessing as m\nm.get_context('fork').Pool(2).map(abs, [-1, -2])"


@pytest.fixture(scope="module")
def python() -> Generator[Path]:
    with open_python() as path:
        yield path


def processes_of(uid: int) -> list[int]:
    """The processes of this machine that live under the uid; those that wait to be reaped are dead."""
    found = (process for process in psutil.process_iter(["uids", "status"]) if process.info["uids"])
    return [p.pid for p in found if p.info["uids"].real == uid and p.info["status"] != psutil.STATUS_ZOMBIE]


@pytest.mark.parametrize("tier", ["landlock", "bubblewrap"])
async def test_neighbours_have_other_uids_and_reach_neither_files_nor_processes(
    tier: str, python: Path, tmp_path: Path
) -> None:
    options = ("--bare", "--spares", "0", "--tier", tier, "--python", str(python))
    with running_interpreter(tmp_path, *options) as server:
        async with server.client() as client:
            mine, theirs = Talk(client, "mine"), Talk(client, "theirs")
            answer = await theirs.run(
                "import os; open('secret', 'w').write('s'); (os.getuid(), os.getpid(), os.getcwd())"
            )
            uid, pid, folder = eval(answer["result"])
            if tier == "bubblewrap":  # where processes have numbers of their own inside
                pid = processes_of(uid)[-1]
            own = int((await mine.run("import os; os.getuid()"))["result"])
            tried = await mine.run(NEIGHBOUR.format(secret=f"{folder}/secret", folder=folder, pid=pid))
            assert (uid != own, uid != os.getuid()) == (IS_ROOT, IS_ROOT)
            assert set(eval(tried["result"])) <= REFUSED
            assert (await theirs.run("open('secret').read()"))["result"] == "'s'"


@pytest.mark.root
async def test_a_fork_bomb_hits_the_limit_of_its_own_uid_and_ends_with_its_session(
    python: Path, tmp_path: Path
) -> None:
    options = ("--bare", "--spares", "0", "--tier", "landlock", "--python", str(python))
    with running_interpreter(tmp_path, *options) as server:
        async with server.client() as client:
            bomb, calm = Talk(client, "bomb"), Talk(client, "calm")
            uid = int((await bomb.run("import os; os.getuid()"))["result"])
            assert (await calm.run(POOL))["result"] == "[1, 2]"  # needs shared memory, which only an own uid gets
            exploded = await bomb.run(FORKS)
            assert exploded["error"]["ename"] == "BlockingIOError"
            assert (await calm.run("6 * 7"))["result"] == "42"
            await bomb.call("clear_session")
            assert processes_of(uid) == []


@pytest.mark.root
async def test_a_server_that_was_killed_leaves_no_process_that_the_next_one_meets(python: Path, tmp_path: Path) -> None:
    options = ("--bare", "--spares", "0", "--tier", "landlock", "--python", str(python))
    orphan = "import os, subprocess; subprocess.Popen(['sleep', '600'], start_new_session=True); os.getuid()"
    with running_interpreter(tmp_path, *options) as first:
        async with first.client() as client:
            uid = int((await Talk(client, "before").run(orphan))["result"])
        first.process.kill()
        first.process.wait(10)
    with running_interpreter(tmp_path, *options) as second:
        async with second.client() as client:
            again = await Talk(client, "after").run("import os; os.getuid()")
            seen = await Talk(client, "after").run("import os; len(os.listdir('.'))")
    assert int(again["result"]) == uid
    assert seen["result"] == "0"
    assert processes_of(uid) == []
