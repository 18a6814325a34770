"""What people's code may do runs in every tier, as root, under a uid of its own and as an ordinary user."""

import os
import subprocess
import tempfile
from collections.abc import Generator
from pathlib import Path

import pytest

from mcp_servers.sandbox import Policy
from mcp_servers.sandbox.policy import TierName
from tests.support.escapes.outcome import ORDINARY_UID, readable_copy
from tests.support.open_python import open_python

pytestmark = pytest.mark.system

OWN_UID = 61_403
WORK = """
import asyncio, os, shutil, sqlite3, subprocess, sys, tempfile, threading, zipfile
import matplotlib; matplotlib.use("Agg")
import matplotlib.pyplot as plt, numpy as np, pandas as pd

frame = pd.DataFrame({"a": np.arange(100), "b": np.linalg.norm(np.ones((50, 50)))})
frame.to_csv("table.csv"); frame.to_excel("table.xlsx")
assert pd.read_csv("table.csv", index_col=0).equals(frame) and len(pd.read_excel("table.xlsx")) == 100
frame.plot().figure.savefig("chart.png"); assert os.path.getsize("chart.png") > 1000
with zipfile.ZipFile("all.zip", "w") as archive: archive.write("table.csv")
shutil.copytree(".", tempfile.mkdtemp() + "/copy", ignore=shutil.ignore_patterns("tmp*"))
os.makedirs("x/y"); os.rename("table.csv", "x/y/moved.csv"); os.symlink("x/y/moved.csv", "link"); open("link").read()
base = sqlite3.connect("base.db"); base.execute("create table t (a)"); base.commit()
results = []
threads = [threading.Thread(target=results.append, args=[n]) for n in range(4)]
[thread.start() for thread in threads]; [thread.join() for thread in threads]; assert len(results) == 4
async def piped():
    process = await asyncio.create_subprocess_exec("sort", stdin=-1, stdout=-1)
    return (await process.communicate(b"b\\na\\n"))[0]
assert asyncio.run(piped()) == b"a\\nb\\n"
open("test_it.py", "w").write('''
import subprocess, sys, unittest
class Case(unittest.TestCase):
    def test_it(self):
        done = subprocess.run([sys.executable, "-c", "print(6 * 7)"], capture_output=True, text=True)
        self.assertEqual(done.stdout, "42\\\\n", done.stderr)
''')
tests = subprocess.run([sys.executable, "-m", "unittest", "-q", "test_it"], capture_output=True, text=True)
assert tests.returncode == 0, tests.stderr
shell = subprocess.check_output("ls x | wc -l; for i in 1 2; do echo $i; done | tail -1", shell=True, text=True)
assert shell.split() == ["1", "2"]
print("done")
"""
SHARED = """
import multiprocessing as m
from multiprocessing import shared_memory
assert m.get_context("fork").Pool(2).map(abs, [-1, -2]) == [1, 2]
memory = shared_memory.SharedMemory(create=True, size=100); memory.close(); memory.unlink()
print("shared")
"""


@pytest.fixture(scope="module")
def python() -> Generator[str]:
    with open_python() as path:
        yield str(path)


def worked(program: str, python: str, tier: TierName, uid: int | None = None, user: int | None = None) -> str:
    """What the program prints under the tier; `uid` is its own, `user` the launcher's."""
    with readable_copy() as launcher, tempfile.TemporaryDirectory(dir="/tmp") as folder:
        os.chmod(folder, 0o755)
        home = Path(folder) / "home"
        home.mkdir(mode=0o700)
        if (owner := uid or user) is not None:
            os.chown(home, owner, owner)
        root = Path(python).parents[2]
        environment = {
            "PATH": "/usr/bin:/bin", "HOME": str(home), "TMPDIR": str(home), "OPENBLAS_NUM_THREADS": "1",
            "LD_LIBRARY_PATH": f"{root}/base/lib",
        }  # fmt: skip
        policy = Policy(str(home), (str(home),), (str(root),), environment=environment, uid=uid, tier=tier)
        command = [python, "-I", "-S", f"{launcher}/mcp_servers/sandbox/__main__.py", "--policy", policy.to_json()]
        done = subprocess.run(
            [*command, "--", python, "-c", program],
            capture_output=True, text=True, timeout=120, check=False, cwd="/", user=user, group=user,
            extra_groups=None if user is None else [],
        )  # fmt: skip
    return done.stdout.strip() or done.stderr


@pytest.mark.parametrize("tier", ["landlock", "bubblewrap"])
def test_analysis_files_and_a_test_run_work(tier: TierName, python: str) -> None:
    assert worked(WORK, python, tier) == "done"


@pytest.mark.root
@pytest.mark.parametrize("tier", ["landlock", "bubblewrap"])
@pytest.mark.parametrize("own", [False, True])
def test_the_same_works_for_another_uid(tier: TierName, own: bool, python: str) -> None:
    uid, user = (OWN_UID, None) if own else (None, ORDINARY_UID)
    assert worked(WORK, python, tier, uid, user) == "done"


@pytest.mark.root
@pytest.mark.parametrize(("tier", "uid"), [("landlock", OWN_UID), ("bubblewrap", OWN_UID), ("bubblewrap", None)])
def test_processes_share_memory_where_nobody_else_can_reach_it(tier: TierName, uid: int | None, python: str) -> None:
    assert worked(SHARED, python, tier, uid) == "shared"
