"""Start runs from one process in which the launcher is loaded: each takes a fork instead of the start of a Python."""

import fcntl
import os
import signal
import socket
from collections.abc import Callable
from typing import NoReturn

from mcp_servers.sandbox import supervisor as supervisor  # loaded once, not in every run

Run = Callable[[str, list[str], int], int]

MOST_BYTES = 2**20
OPEN_MAX = 4096
F_SETSIG = 10


def serve(run: Run) -> int:
    """Serve the socket at standard input until it is closed; every run ends with this process.

    A request is one message: the policy's JSON, a NUL, and the program's words, joined by NULs. With it come three
    descriptors: the run's output, its errors, and a socket that gets the process id and then the exit code; closing its
    other end ends the run. `run` is the launcher: for a policy's text, a program's words and that socket it returns the
    exit code.
    """
    requests = socket.socket(fileno=os.dup(0))
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # reaped by the kernel
    while True:
        message, descriptors, _, _ = socket.recv_fds(requests, MOST_BYTES, 3)
        if not message:
            return 0
        try:
            child = os.fork()
        except OSError as error:  # this run alone fails: its socket is closed without a process id
            child = -1
            os.write(descriptors[1], f"sandbox: no process can be started: {error.strerror}\n".encode())
        if child == 0:
            _run(run, message, descriptors)
        for descriptor in descriptors:
            os.close(descriptor)


def tie(control: int) -> None:
    """End this process by force from now on when the socket's other end is closed, whatever code it runs."""
    fcntl.fcntl(control, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(control, F_SETSIG, signal.SIGKILL)


def announce(control: int) -> None:
    """Send a descriptor of this process to the socket's other end."""
    process = os.pidfd_open(os.getpid())
    with socket.socket(fileno=os.dup(control)) as other:
        socket.send_fds(other, [b"process"], [process])
    os.close(process)


def _run(run: Run, message: bytes, descriptors: list[int]) -> NoReturn:
    own, (output, errors, control) = os.getpid(), descriptors
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(output, 1)
    os.dup2(errors, 2)
    os.set_inheritable(control, False)
    # Nobody at its other end: the same as a signal to end.
    fcntl.fcntl(control, fcntl.F_SETOWN, own)
    fcntl.fcntl(control, F_SETSIG, signal.SIGTERM)
    fcntl.fcntl(control, fcntl.F_SETFL, os.O_ASYNC)
    os.closerange(3, control)
    os.closerange(control + 1, OPEN_MAX)
    os.write(control, str(own).encode())
    policy, *words = message.decode("utf-8", "surrogateescape").split("\0")
    code = 1
    try:
        code = run(policy, words, control)
    finally:
        if os.getpid() == own:  # not the run's first process, when it could not become the program
            os.write(control, str(code).encode())
        os._exit(code)
