"""The command `dial-agent`, and how its commands end: every exit code and what it means."""

from enum import IntEnum


class Exit(IntEnum):
    DONE = 0
    FAILED = 1
    USAGE = 2
    UNREACHABLE = 3
    LIMITED = 3
    WAITING = 4
    INTERRUPTED = 130


MEANINGS = {
    Exit.DONE: "success; also `up` and the servers after Ctrl-C",
    Exit.FAILED: "failure; `doctor` found a problem; two traces differ; what `run` did is not verified",
    Exit.USAGE: "wrong usage or settings: one line says what to change",
    Exit.UNREACHABLE: "`ask`: nothing answers at that address; `run`, `chat -p`: the limit of steps was reached",
    Exit.WAITING: "`ask`: the answer waits for an approval, and no user is there to give it",
    Exit.INTERRUPTED: "any other command: interrupted with Ctrl-C",
}


def main() -> None:
    """Run the command line; imported late, so that parts of this room cost no more than themselves."""
    from task.cli.app import main

    main()
