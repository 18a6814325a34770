"""The launcher beside a run: limits of all its processes together, its end, protected paths, and some hosts."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from mcp_servers.sandbox import Limits, Policy, command, marked, new_mark
from mcp_servers.sandbox.policy import MIB, TierName
from tests.support.sandbox_tiers import NETWORKED, SAMPLED, WORKING
from tests.support.serving import serving

PATIENCE = 60
SUPERVISED = Limits(memory=None, run_memory=256 * MIB, processes=60)
PYTHON = os.path.realpath(sys.executable)
tiers = pytest.mark.parametrize("tier", WORKING)
sampled = pytest.mark.parametrize("tier", SAMPLED)


def policy_of(folder: Path, tier: TierName, **more: object) -> Policy:
    policy = Policy(
        str(folder), (str(folder),), (sys.base_prefix,), environment={"PATH": "/usr/bin:/bin"},
        limits=SUPERVISED, tier=tier, mark=new_mark(),
    )  # fmt: skip
    return policy._replace(**more)  # pyright: ignore[reportArgumentType]


def run(policy: Policy, *argv: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(policy, argv), capture_output=True, text=True, timeout=PATIENCE, check=False)


@tiers
def test_exit_code_and_output_are_the_programs_and_files_get_the_modes_of_the_umask(
    tmp_path: Path, tier: TierName
) -> None:
    done = run(policy_of(tmp_path, tier, umask="027"), "sh", "-c", "echo out; echo error >&2; > file; mkdir d; exit 7")
    assert (done.returncode, done.stdout, done.stderr) == (7, "out\n", "error\n")
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o640
    assert (tmp_path / "d").stat().st_mode & 0o777 == 0o750


@sampled
def test_a_program_that_a_signal_ends_has_its_number_in_the_exit_code(tmp_path: Path, tier: TierName) -> None:
    assert run(policy_of(tmp_path, tier), "sh", "-c", "kill -KILL $$").returncode == 128 + signal.SIGKILL


@pytest.mark.fault("workspace: a command that takes too long, or is interrupted, with processes that hide")
@tiers
def test_nothing_outlives_the_program(tmp_path: Path, tier: TierName) -> None:
    policy = policy_of(tmp_path, tier)
    hiding = "(setsid sh -c 'sleep 300; touch late' > /dev/null 2>&1 &) ; (sleep 300 > /dev/null 2>&1 &) ; echo done"
    done = run(policy, "sh", "-c", hiding)
    assert (done.returncode, done.stdout) == (0, "done\n")
    assert policy.mark is not None
    assert marked(policy.mark) == []


@pytest.mark.fault("workspace: a command that takes too long, or is interrupted, with processes that hide")
@tiers
def test_a_signal_to_the_launcher_ends_all_of_the_run(tmp_path: Path, tier: TierName) -> None:
    policy = policy_of(tmp_path, tier)
    script = "(setsid sleep 300 &); trap '' TERM; echo ready; sleep 300; sleep 300"
    process = subprocess.Popen(command(policy, ["sh", "-c", script]), stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.terminate()
    assert process.communicate(timeout=PATIENCE)[0] == ""
    assert process.returncode == 128 + signal.SIGTERM
    assert policy.mark is not None
    assert marked(policy.mark) == []


@pytest.mark.fault(
    "workspace: the product or the launcher killed while a command runs, and a run that nobody waits for"
)
@sampled
def test_the_run_ends_with_the_one_who_started_it(tmp_path: Path, tier: TierName) -> None:
    policy = policy_of(tmp_path, tier)
    starter = (
        "import os, subprocess, sys\n"
        "child = subprocess.Popen(sys.argv[1:], stdout=subprocess.PIPE)\n"
        "child.stdout.readline()\nos.kill(os.getpid(), 9)\n"
    )
    line = command(policy, ["sh", "-c", "(setsid sleep 300 > /dev/null 2>&1 &); echo alive; exec sleep 300"])
    subprocess.run([sys.executable, "-I", "-S", "-c", starter, *line], check=False, timeout=PATIENCE)
    assert policy.mark is not None
    until = time.monotonic() + PATIENCE
    while marked(policy.mark):
        assert time.monotonic() < until


@pytest.mark.fault("workspace: a fork bomb, 100 GB of memory, or memory spread over processes")
@sampled
@pytest.mark.parametrize(
    "hog",
    [
        "x = bytearray(400 << 20); import time; time.sleep(300)",
        "import mmap, time; m = mmap.mmap(-1, 400 << 20); m.write(b'x' * (400 << 20)); time.sleep(300)",
        "import os, time\nfor _ in range(3): os.fork()\nx = b'x' * (90 << 20); time.sleep(300)",
    ],
    ids=["one process", "shared memory", "many processes"],
)
def test_memory_is_counted_for_all_processes_of_the_run_together(tmp_path: Path, tier: TierName, hog: str) -> None:
    done = run(policy_of(tmp_path, tier), PYTHON, "-I", "-S", "-c", hog)
    assert done.returncode == 128 + signal.SIGKILL
    assert "sandbox: the run was ended: it had more than 256 MiB of memory" in done.stderr


@sampled
def test_memory_that_processes_share_is_counted_once(tmp_path: Path, tier: TierName) -> None:
    sharing = (
        "import os, time\nx = b'x' * (90 << 20)\nchildren = []\n"
        "for _ in range(5):\n  if (child := os.fork()) == 0: time.sleep(0.5); os._exit(0)\n  children.append(child)\n"
        "[os.waitpid(child, 0) for child in children]"
    )
    assert run(policy_of(tmp_path, tier), PYTHON, "-I", "-S", "-c", sharing).returncode == 0


@pytest.mark.fault("workspace: a fork bomb, 100 GB of memory, or memory spread over processes")
@sampled
def test_a_fork_bomb_is_ended(tmp_path: Path, tier: TierName) -> None:
    policy = policy_of(tmp_path, tier)
    done = run(policy, "sh", "-c", "i=0; while [ $i -lt 400 ]; do sleep 300 & i=$((i+1)); done; wait")
    assert done.returncode != 0, "the kernel refuses more processes, or the launcher ends the run"
    assert policy.mark is not None
    assert marked(policy.mark) == []


def layout(folder: Path) -> dict[str, tuple[int, str]]:
    found = {str(path.relative_to(folder)): path for path in sorted(folder.rglob("*"))}
    return {
        name: (
            path.lstat().st_mode,
            os.readlink(path) if path.is_symlink() else path.read_text() if path.is_file() else "",
        )
        for name, path in found.items()
    }


@pytest.mark.fault(
    "workspace: a command that changes git's hooks or settings, renames them away or puts a link in their place"
)
@sampled
@pytest.mark.parametrize(
    "attack",
    [
        "echo x > .git/hooks/pre-commit; chmod +x .git/hooks/pre-commit",
        "echo x > .git/config; echo x > .git/commondir",
        "rm -f .git/config; ln -s ../evil .git/config",
        "rm -rf .git/hooks; ln -s ../evil .git/hooks",
        "mv .git g2; ln -s g2 .git; echo x > g2/config; mkdir -p g2/hooks; echo x > g2/hooks/a; rm -r g2",
        "mv .git g2; mkdir .git; echo x > .git/config; mkdir .git/hooks; echo x > .git/hooks/a; rm -r .git; mv g2 .git",
        "rm -rf .git; ln -s $OUTSIDE .git; true",
        "cp -r .git g2; echo x > g2/config; rm -rf .git; mv g2 .git; rm -rf .git/index g2; echo index > .git/index",
        "echo x > .git/commondir; chmod 500 .git .",
        "echo x > .git/commondir; chmod 0 .git",
        "rm .git/hooks/sample; mkfifo .git/hooks/sample; mkdir -p .git/hooks/a/b/c; echo deep > .git/hooks/a/b/c/d",
    ],
)
def test_protected_paths_are_after_the_run_what_they_were_before(tmp_path: Path, tier: TierName, attack: str) -> None:
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    (inside / ".git" / "hooks").mkdir(parents=True)
    outside.mkdir()
    (inside / ".git" / "config").write_text("[core]\n")
    (inside / ".git" / "index").write_text("index\n")
    (inside / ".git" / "hooks" / "sample").write_text("#!/bin/sh\n")
    (inside / ".git" / "hooks" / "sample").chmod(0o755)
    (inside / ".git" / "hooks" / "link").symlink_to("sample")
    names = ("hooks", "config", "commondir")
    before = {name: entry for name, entry in layout(inside).items() if "hooks" in name or "config" in name}
    policy = policy_of(inside, tier, protected=tuple(f"{inside}/.git/{name}" for name in names))
    policy = policy._replace(environment={"PATH": "/usr/bin:/bin", "OUTSIDE": str(outside)})
    run(policy, "sh", "-c", attack)
    after = layout(inside)
    assert {name: entry for name, entry in after.items() if name.startswith((".git/h", ".git/con"))} == before
    assert ".git/commondir" not in after
    assert layout(outside) == {}


@pytest.mark.fault("workspace: git's own files larger than the launcher keeps")
def test_a_protected_path_that_is_too_large_is_refused(tmp_path: Path) -> None:
    (tmp_path / "kept").write_bytes(bytes(17 * MIB))
    done = run(policy_of(tmp_path, "landlock", protected=(f"{tmp_path}/kept",)), "touch", "ran")
    assert (done.returncode, done.stdout) == (125, "")
    assert "is larger than 16 MiB" in done.stderr
    assert not (tmp_path / "ran").exists()


FETCH = "import sys, urllib.request as r\nprint(r.urlopen(sys.argv[1], timeout=20).read().decode())"
FETCH_NONE = (
    "import sys, urllib.error, urllib.request as r\n"
    "for url in sys.argv[1:]:\n"
    "  try: print(r.urlopen(url, timeout=20).read())\n"
    "  except urllib.error.HTTPError as error: print(error.code)\n"
)


networked = pytest.mark.parametrize("tier", NETWORKED)


@pytest.mark.fault("workspace: a setup whose packages call this machine, its network or the metadata of a cloud")
@networked
def test_a_named_host_is_reached_through_the_proxy_and_another_port_of_it_is_not(
    tmp_path: Path, tier: TierName
) -> None:
    with serving() as named, serving() as other:
        policy = policy_of(tmp_path, tier, network=("*", f"127.0.0.1:{named.server_port}"))
        done = run(policy, PYTHON, "-I", "-S", "-c", FETCH, f"http://127.0.0.1:{named.server_port}/a?b=c")
        assert done.stdout == "page /a?b=c\n", done.stderr
        hosts = ("127.0.0.1", "localhost", "[::ffff:127.0.0.1]", "0.0.0.0", "127.1", "2130706433", "169.254.169.254")
        done = run(
            policy, PYTHON, "-I", "-S", "-c", FETCH_NONE, *(f"http://{host}:{other.server_port}/" for host in hosts)
        )
        assert done.stdout.splitlines() == ["403"] * len(hosts), done.stderr
        assert other.paths == []
    assert policy.mark is not None
    assert marked(policy.mark) == []


@networked
def test_a_program_that_is_not_there_is_reported_with_a_network_too(tmp_path: Path, tier: TierName) -> None:
    assert run(policy_of(tmp_path, tier, network=("*",)), "no-such-program").returncode == 127


AROUND = """
import os, socket, sys
def tried(name, attempt):
    try: attempt()
    except OSError: print("held", name)
    else: print("OUT", name)
port, path, abstract = int(sys.argv[1]), sys.argv[2], sys.argv[3]
def direct(): socket.create_connection(("127.0.0.1", port), 5).send(b"direct")
def fast_open(): socket.socket().sendto(b"fast", 0x20000000, ("127.0.0.1", port))
def datagram(): socket.socket(type=socket.SOCK_DGRAM).sendto(b"datagram", ("127.0.0.1", port))
def mptcp(): socket.socket(proto=262).connect(("127.0.0.1", port))
def named(): socket.socket(socket.AF_UNIX).connect(path)
def nameless(): socket.socket(socket.AF_UNIX).connect("\\0" + abstract)
def raw(): socket.socket(type=socket.SOCK_RAW)
for one in (direct, fast_open, mptcp, named, nameless, raw): tried(one.__name__, one)
try: datagram()
except OSError: pass
a, b = socket.socketpair(); a.send(b"x"); assert b.recv(1) == b"x"
"""


@pytest.mark.fault("workspace: a setup whose packages call this machine, its network or the metadata of a cloud")
@networked
def test_there_is_no_way_around_the_proxy(tmp_path: Path, tier: TierName) -> None:
    with (
        serving() as other,
        socket.socket(type=socket.SOCK_DGRAM) as datagrams,
        tempfile.TemporaryDirectory(dir="/tmp") as short,  # a socket's path has at most 107 characters
        socket.socket(socket.AF_UNIX) as named,
        socket.socket(socket.AF_UNIX) as abstract,
    ):
        path, name = f"{short}/s", f"abstract-{os.urandom(8).hex()}"
        datagrams.bind(("127.0.0.1", other.server_port))
        datagrams.setblocking(False)
        named.bind(path)
        abstract.bind(f"\0{name}")
        named.listen()
        abstract.listen()
        policy = policy_of(tmp_path, tier, network=("*",))
        done = run(policy, PYTHON, "-I", "-S", "-c", AROUND, str(other.server_port), path, name)
        assert done.stdout.split().count("held") == 6, done.stdout + done.stderr
        assert "OUT" not in done.stdout
        assert other.paths == []
        with pytest.raises(BlockingIOError):
            datagrams.recv(10)
