"""`confined_fork.py POLICY PROGRAM.py ARGUMENT…`: run a Python program in a fork that enters the sandbox by itself."""

import os
import runpy
import select
import socket
import subprocess
import sys
import traceback
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

sys.path.insert(0, str(Path(__file__).parents[2]))
from mcp_servers.sandbox import Policy, command, launch, process, server
from mcp_servers.sandbox import joining as joining
from mcp_servers.sandbox.libc import PR_SET_CHILD_SUBREAPER, prctl
from mcp_servers.sandbox.policy import parse

HOLDING = ["/bin/sh", "-c", "echo && exec sleep infinity"]


def forked(policy: Policy, argv: list[str]) -> list[str]:
    """The command line that runs a Python program so; `argv` is Python, its options, the program and its arguments."""
    program = next(number for number, word in enumerate(argv) if word.endswith(".py"))
    return [*argv[:program], __file__, policy.to_json(), *argv[program:]]


def main() -> int:
    process.run_from_memory()
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    policy, argv = parse(sys.argv[1]), sys.argv[2:]
    control, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with held(policy) as bubblewrap:
        if os.fork() == 0:
            be_program(policy, bubblewrap, argv, its.fileno())
        its.close()
        _, [program], _, _ = socket.recv_fds(control, 100, 1)
        select.select([program], [], [])
    return 0


@contextmanager
def held(policy: Policy) -> Generator[int | None]:
    """The process of bubblewrap in whose sandbox the program is to run, if it is to run in one."""
    if policy.tier != "bubblewrap":
        yield None
        return
    with subprocess.Popen(
        command(policy, HOLDING), env={}, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE
    ) as sandbox:
        assert sandbox.stdout is not None
        sandbox.stdout.readline()
        yield sandbox.pid
        sandbox.kill()


def be_program(policy: Policy, bubblewrap: int | None, argv: list[str], control: int) -> NoReturn:
    try:
        os.closerange(3, control)
        os.closerange(control + 1, 4096)
        if bubblewrap is not None:
            launch.join(policy, bubblewrap)
        server.tie(control)
        launch.confine(policy)
        server.announce(control)
        sys.argv = argv
        for name in [name for name in sys.modules if name.startswith("mcp_servers")]:
            del sys.modules[name]
        runpy.run_path(argv[0], run_name="__main__")
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
