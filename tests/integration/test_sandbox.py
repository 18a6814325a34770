"""The launcher as a command: it becomes the program, or says in one line why not."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from mcp_servers.sandbox import Limits, Policy, command, kill_marked, kill_uid, marked, new_mark, probe
from mcp_servers.sandbox.policy import MIB
from mcp_servers.sandbox.self_test import python_for
from tests.support.escapes.outcome import IS_ROOT

OWN_UID = 61_401
PATIENCE = 20
BASE = {"PATH": "/usr/bin:/bin"}
FORKING = "import os\nwhile True:\n  if (child := os.fork()) == 0: os._exit(0)\n  os.waitpid(child, 0)"
HOPPING = (
    "import os, resource, sys\n"
    "resource.setrlimit(10, (int(sys.argv[1]),) * 2)\n"  # the mark, as the launcher sets it
    "print('hopping', flush=True)\n"
    "while True:\n  if os.fork(): os._exit(0)\n  os.setsid()"
)


@dataclass(frozen=True)
class Done:
    code: int
    out: str
    error: str


def run(policy: Policy, *argv: str) -> Done:
    done = subprocess.run(command(policy, argv), capture_output=True, text=True, timeout=PATIENCE, check=False)
    return Done(done.returncode, done.stdout.strip(), done.stderr.strip())


def in_(folder: Path, **more: object) -> Policy:
    policy = Policy(str(folder), (str(folder),), environment=BASE, tier="landlock")
    return policy._replace(**more)  # pyright: ignore[reportArgumentType]


def test_the_program_writes_in_its_folder_and_its_exit_code_is_the_commands(tmp_path: Path) -> None:
    done = run(in_(tmp_path), "sh", "-c", "pwd; echo done > file; exit 7")
    assert done == Done(7, str(tmp_path), "")
    assert (tmp_path / "file").read_text() == "done\n"


def test_the_environment_is_exactly_that_of_the_policy(tmp_path: Path) -> None:
    done = run(in_(tmp_path, environment={**BASE, "A": "1", "JPY_PARENT_PID": "5"}), "env")
    assert set(done.out.splitlines()) - {f"PWD={tmp_path}"} == {"A=1", "PATH=/usr/bin:/bin"}


def test_limits_hold(tmp_path: Path) -> None:
    limits = Limits(memory=512 * MIB, file_bytes=MIB, open_files=64, cpu_seconds=9)
    done = run(in_(tmp_path, limits=limits), "bash", "-c", "ulimit -v -f -n -t -c; head -c 2000000 /dev/zero > big")
    assert [line.split()[-1] for line in done.out.splitlines()] == ["524288", "1024", "64", "9", "0"]
    assert (tmp_path / "big").stat().st_size == MIB


def test_the_program_has_no_rights_and_gains_none(tmp_path: Path) -> None:
    script = "while read name value; do case $name in Cap*|NoNewPrivs:|Seccomp:) echo $name $value;; esac; done"
    done = run(in_(tmp_path), "sh", "-c", f"{script} < /proc/self/status")
    status = dict(line.split() for line in done.out.splitlines())
    assert status.pop("NoNewPrivs:") == "1"
    assert status.pop("Seccomp:") == "2"
    assert {int(mask, 16) for name, mask in status.items() if name != "CapBnd:" or IS_ROOT} == {0}


def test_what_a_kernel_needs_works_and_the_network_does_not(tmp_path: Path) -> None:
    script = (
        "import socket, sqlite3, subprocess, threading\n"
        "a, b = socket.socketpair(); a.send(b'x'); assert b.recv(1) == b'x'\n"
        "server = socket.socket(socket.AF_UNIX); server.bind('s'); server.listen()\n"
        "sqlite3.connect('d').execute('create table t (a)')\n"
        "assert subprocess.run(['echo', 'hi'], capture_output=True).stdout == b'hi\\n'\n"
        "threading.Thread(target=print, args=['thread']).start()\n"
        "try: socket.socket()\n"
        "except OSError as error: print(error.strerror)\n"
    )
    python = os.path.realpath(sys.executable)
    done = run(in_(tmp_path, read_only=(sys.base_prefix,)), python, "-I", "-S", "-c", script)
    assert sorted(done.out.splitlines()) == ["Operation not supported", "thread"], done.error


def test_file_modes_are_accepted_without_a_uid_of_ones_own(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("x")
    (tmp_path / "in").mkdir()
    assert run(in_(tmp_path / "in"), "chmod", "777", str(outside)).code == 0
    assert outside.stat().st_mode & 0o777 != 0o777


@pytest.mark.fault("sandbox: a policy that cannot be enforced")
@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"tier": "none"}, "allow_unsafe"),
        ({"read_only": ("/nowhere",)}, "there is no '/nowhere'"),
        ({"uid": 70_000} if not IS_ROOT else {"uid": 5}, "uid"),
        ({"workdir": "/nowhere"}, "/nowhere"),
    ],
)
def test_a_policy_that_cannot_be_enforced_is_refused_in_one_line(
    tmp_path: Path, more: dict[str, object], said: str
) -> None:
    done = run(in_(tmp_path, **more), "touch", "ran")
    assert done.code in (125, 127)
    assert done.error.startswith("sandbox: ")
    assert said in done.error
    assert len(done.error.splitlines()) == 1
    assert not (tmp_path / "ran").exists()


def test_an_unsafe_run_needs_a_word(tmp_path: Path) -> None:
    assert run(in_(tmp_path, tier="none", allow_unsafe=True), "echo", "open") == Done(0, "open", "")


def test_a_program_that_is_not_there_and_one_that_cannot_run(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no program")
    assert run(in_(tmp_path), "no-such-program").code == 127
    assert run(in_(tmp_path), str(tmp_path / "text")).code == 126


def test_a_policy_comes_from_a_file_too_and_wrong_usage_is_explained(tmp_path: Path) -> None:
    (tmp_path / "policy.json").write_text(in_(tmp_path).to_json())
    launcher = [sys.executable, "-m", "mcp_servers.sandbox"]
    done = subprocess.run(
        [*launcher, "--policy", str(tmp_path / "policy.json"), "--", "echo", "hi"], capture_output=True, check=True
    )
    assert done.stdout == b"hi\n"
    wrong = subprocess.run([*launcher, "--policy", "/nowhere.json", "--", "true"], capture_output=True, check=False)
    assert (wrong.returncode, wrong.stderr[:39]) == (125, b"sandbox: the policy cannot be read: [Er")
    usage = subprocess.run([*launcher, "--polcy"], capture_output=True, check=False)
    assert (usage.returncode, usage.stderr[:6]) == (2, b"usage:")


async def test_a_signal_to_the_launcher_is_one_to_the_program(tmp_path: Path) -> None:
    script = "trap 'echo got it; exit 3' TERM; echo ready; while :; do sleep 0.05; done"
    process = await asyncio.create_subprocess_exec(
        *command(in_(tmp_path), ["sh", "-c", script]), stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    async with asyncio.timeout(PATIENCE):
        assert await process.stdout.readline() == b"ready\n"
        process.send_signal(signal.SIGTERM)
        assert await process.stdout.readline() == b"got it\n"
        assert await process.wait() == 3


@pytest.mark.fault("sandbox: a process that leaves its group and session")
async def test_a_mark_ends_also_what_left_the_group_and_the_session(tmp_path: Path) -> None:
    mark = new_mark()
    process = await asyncio.create_subprocess_exec(
        *command(in_(tmp_path, mark=mark), ["sh", "-c", "(setsid sh -c 'echo free; sleep 60' &); sleep 60"]),
        stdout=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdout is not None
    async with asyncio.timeout(PATIENCE):
        assert await process.stdout.readline() == b"free\n"
        os.killpg(process.pid, signal.SIGKILL)
        assert await asyncio.to_thread(kill_marked, mark) >= 1
        assert await process.stdout.read() == b""
        await process.wait()
    assert marked(mark) == []


@pytest.mark.system
async def test_a_hopping_process_is_ended_also_while_others_start_processes_all_the_time() -> None:
    others = [subprocess.Popen([sys.executable, "-S", "-c", FORKING]) for _ in range(8)]
    try:
        for _ in range(30):
            mark = new_mark()
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-S", "-c", HOPPING, str(mark), stdout=asyncio.subprocess.PIPE
            )
            assert process.stdout is not None
            async with asyncio.timeout(2 * PATIENCE):
                assert await process.stdout.readline() == b"hopping\n"
                await asyncio.to_thread(kill_marked, mark)
                assert await process.stdout.read() == b"", "its output ends with the last of its processes"
                await process.wait()
    finally:
        for other in others:
            other.kill()
            other.wait()


async def test_the_program_ends_with_the_one_who_started_it(tmp_path: Path) -> None:
    starter = (
        "import subprocess, sys\n"
        "child = subprocess.Popen(sys.argv[1:], stdout=subprocess.PIPE)\n"
        "print(child.stdout.readline().decode(), flush=True)\n"
    )
    line = command(in_(tmp_path), ["sh", "-c", "echo alive; exec sleep 60"])
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-I", "-S", "-c", starter, *line, stdout=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(PATIENCE):
        said, _ = await process.communicate()
    assert said.strip() == b"alive"


def test_the_probe_names_the_tier_and_why_not_another() -> None:
    tier = probe()
    assert tier.level == {"bubblewrap": 2, "landlock": 1, "none": 0}[tier.name]
    assert tier.landlock_abi >= 1
    assert "seccomp" in tier.mechanisms
    assert tier.works["landlock"] is None
    done = subprocess.run([sys.executable, "-m", "mcp_servers.sandbox", "--probe"], capture_output=True, check=True)
    assert json.loads(done.stdout)["name"] == tier.name


@pytest.mark.root
@pytest.mark.system
@pytest.mark.parametrize("tier", ["landlock", "bubblewrap"])
def test_processes_of_a_separate_uid_are_counted_and_ended_together(tmp_path: Path, tier: str) -> None:
    python = python_for(OWN_UID)
    script = "import os, time\nif os.fork() == 0: os.setsid(); time.sleep(60)\nprint(os.getuid())"
    policy = in_(Path("/usr"), read_write=(), uid=OWN_UID, tier=tier, die_with_parent=False)
    process = subprocess.Popen(
        command(policy, [python, "-I", "-S", "-c", script]), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == f"{OWN_UID}\n"
    kill_uid(OWN_UID)
    assert process.communicate(timeout=PATIENCE)[0] == ""
