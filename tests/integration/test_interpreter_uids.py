"""Kernels of a server that is root: each has a user id of its own, and that keeps it from its neighbours."""

import os
from collections.abc import Generator
from pathlib import Path

import psutil
import pytest

from mcp_servers.python_interpreter.uids import NAME
from mcp_servers.sandbox.leftovers import SHARED_FOLDERS
from tests.support.escapes.outcome import IS_ROOT
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

# Whatever of this the tier refuses is not left either.
LEAVE = """
import contextlib, ctypes, os
for folder in ("/dev/shm", "/tmp", "/var/tmp", "."):
    with contextlib.suppress(OSError):
        os.makedirs(f"{folder}/left-by-{os.getuid()}/a/b")
        open(f"{folder}/left-by-{os.getuid()}/a/b/c", "w").close()
        os.chmod(f"{folder}/left-by-{os.getuid()}/a", 0)
        open(f"{folder}/left-{os.getuid()}", "w").close()
ctypes.CDLL(None).shmget(0, 4096, 0o1600), ctypes.CDLL(None).msgget(0, 0o1600), ctypes.CDLL(None).semget(0, 1, 0o1600)
os.getuid()
"""
LOCK = """
import fcntl, os
try:
    fcntl.flock(os.open({name!r}, os.O_RDONLY), fcntl.LOCK_EX)
except OSError:
    pass
"""
UIDS_FILE = f"/run/{NAME}"


@pytest.fixture(scope="module")
def python() -> Generator[Path]:
    with open_python() as path:
        yield path


def processes_of(uid: int) -> list[int]:
    """The processes of this machine that live under the uid; those that wait to be reaped are dead."""
    found = (process for process in psutil.process_iter(["uids", "status"]) if process.info["uids"])
    return [p.pid for p in found if p.info["uids"].real == uid and p.info["status"] != psutil.STATUS_ZOMBIE]


def left_by(uid: int) -> list[object]:
    """What the uid still owns: processes, files where everyone may write, System V objects."""
    files = [path for folder in SHARED_FOLDERS for path in Path(folder).glob("*") if path.lstat().st_uid == uid]
    lists = [Path(f"/proc/sysvipc/{kind}").read_text() for kind in ("shm", "msg", "sem")]
    rows = [line.split() for text in lists for line in text.splitlines()]
    return [*processes_of(uid), *files, *(row for row in rows if str(uid) in row)]


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


@pytest.mark.fault("sandbox: files, queues and shared memory that a run leaves behind")
@pytest.mark.root
async def test_a_server_that_was_killed_leaves_nothing_that_a_later_kernel_meets(python: Path, tmp_path: Path) -> None:
    options = ("--bare", "--spares", "0", "--tier", "landlock", "--python", str(python))
    orphan = (
        "import os, subprocess; subprocess.Popen(['sleep', '600'], start_new_session=True)\n"
        "name = f'/dev/shm/left-{os.getuid()}'; open(name, 'w').close(); (os.getuid(), name)"
    )
    with running_interpreter(tmp_path, *options) as first:
        async with first.client() as client:
            uid, left = eval((await Talk(client, "before").run(orphan))["result"])
        first.process.kill()
        first.process.wait(10)
        assert Path(left).exists()
    with running_interpreter(tmp_path, *options) as second:
        async with second.client() as client:
            again = await Talk(client, "after").run("import os; os.getuid(), len(os.listdir('.'))")
    own, seen = eval(again["result"])
    assert (own != uid, seen) == (True, 0)
    assert processes_of(uid) == []
    assert not Path(left).exists()


@pytest.mark.fault("sandbox: files, queues and shared memory that a run leaves behind")
@pytest.mark.root
@pytest.mark.parametrize("options", [("--tier", "landlock"), ("--tier", "bubblewrap"), ("--unsafe",)])
async def test_nothing_of_a_session_is_left_when_it_ends_and_its_uid_is_not_lent_next(
    options: tuple[str, ...], python: Path, tmp_path: Path
) -> None:
    with running_interpreter(tmp_path, "--bare", "--spares", "0", *options, "--python", str(python)) as server:
        async with server.client() as client:
            first, second = Talk(client, "first"), Talk(client, "second")
            uid = int((await first.run(LEAVE))["result"])
            await first.call("clear_session")
            assert int((await second.run("import os; os.getuid()"))["result"]) != uid
    assert left_by(uid) == []


@pytest.mark.fault("interpreter: code that takes the names by which servers reserve user ids")
@pytest.mark.root
async def test_a_kernel_is_started_whatever_names_another_one_has_taken(python: Path, tmp_path: Path) -> None:
    squat = (
        "import os, socket\nheld = [socket.socket(socket.AF_UNIX) for _ in range(100)]\n"
        "for number, taken in enumerate(held):\n    taken.bind(f'\\0dial-agent-kernel-{70001 + number}')"
    )
    options = ("--bare", "--spares", "0", "--tier", "landlock", "--python", str(python))
    with running_interpreter(tmp_path, *options) as server:
        async with server.client() as client:
            assert (await Talk(client, "squatter").run(squat + "\n" + LOCK.format(name=UIDS_FILE)))["error"] is None
            assert (await Talk(client, "other").run("6 * 7"))["result"] == "42"
