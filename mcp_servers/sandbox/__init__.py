"""The one launcher: run a program with named paths, limits and no network but named hosts, or not at all.

As a command (the product's other half uses it only so)::

    python -m mcp_servers.sandbox --policy POLICY -- PROGRAM ARGUMENT…   # POLICY: a file, or JSON text
    python -m mcp_servers.sandbox --probe                                # what this machine offers, as JSON
    python -m mcp_servers.sandbox --self-test [--tier T] [--quick] [--json]   # the escape list; exit 1: one got out
    python -m mcp_servers.sandbox --serve                                # stay ready, and start runs by a fork
    python -m mcp_servers.sandbox --kill MARK                            # end every process of a run
    python -m mcp_servers.sandbox --kill-uid UID                         # end every process of a run's own uid
    python -m mcp_servers.sandbox --clear-uid UID FOLDER…                # the same, and delete what it has left

As an interface for the servers beside it::

    tier = probe()                        # once, at start: tier.name, tier.level, tier.own_uid, tier.gaps
    if tier.level == 0: refuse to start
    mark = new_mark()
    policy = Policy(
        workdir=folder, read_write=(folder,), read_only=python_paths(python),
        environment={"PATH": …, "HOME": folder, "TMPDIR": folder},     # complete, nothing is inherited
        uid=70001 if tier.own_uid else None,                            # the folder must belong to it
        limits=Limits(memory=1 << 30, processes=128), tier=tier.name, mark=mark,
    )
    process = await asyncio.create_subprocess_exec(*command(policy, [python, "-m", …]), start_new_session=True)
    …
    kill_marked(mark)                     # after the end: also ends what left the process group

The launcher becomes the program, so the process id, its signals and its exit code are the program's own (under
bubblewrap: of the one process whose end ends all others). Exit codes of the launcher itself: 125 refused, 126 not
executable, 127 not found; the reason is one line on standard error. Start it from a thread that lives as long as the
program: `die_with_parent` follows the thread.
"""

from mcp_servers.sandbox.command import clear_uid, command, kill_uid, probe, python_paths
from mcp_servers.sandbox.errors import SandboxError
from mcp_servers.sandbox.marks import kill_marked, marked, new_mark
from mcp_servers.sandbox.policy import Limits, Policy

__all__ = [
    "Limits", "Policy", "SandboxError",
    "clear_uid", "command", "kill_marked", "kill_uid", "marked", "new_mark", "probe", "python_paths",
]  # fmt: skip
