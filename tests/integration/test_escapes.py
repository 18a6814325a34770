"""The escape list against the launcher: nothing gets out, and every attack works where there is no sandbox."""

import json
import subprocess
from pathlib import Path

import pytest

from mcp_servers.sandbox import Limits
from mcp_servers.sandbox.command import launcher, probe
from mcp_servers.sandbox.policy import TierName
from mcp_servers.sandbox.self_test import verdicts
from task.tools.workspace.commands import Commands
from task.tools.workspace.launcher import Sandbox
from task.tools.workspace.root import Workspace
from tests.support.escapes.arena import arena
from tests.support.escapes.commands import COMMANDS, escaped, lay_out, outside, script
from tests.support.escapes.outcome import escape_list
from tests.support.escapes.trial import quick_verdicts

SECRET = "the-secret-of-the-folder-outside"
OPEN_UID = 61_300
NO_LIMITS = Limits(memory=None, file_bytes=None, open_files=None, processes=None)
# Without a sandbox the machine itself refuses these: they need root, a device, or a limit to break.
REFUSED_BY_THE_MACHINE = {
    "become_another_user", "become_root", "bluetooth", "change_kernel_setting", "change_root", "count_events",
    "create_device", "dump_core", "enter_namespace", "handle_page_faults", "hold_capabilities",
    "kernel_crypto_socket", "leave_posix_queue", "load_bpf", "load_module", "mount_by_new_calls",
    "mount_file_system", "much_memory", "network_namespace", "open_the_machine", "packets", "press_kernel_key",
    "raw_ip", "read_by_inherited_descriptor", "read_kernel_log", "read_password_hashes", "rename_machine",
    "slow_group", "type_into_terminal", "virtual_machine_socket",
}  # fmt: skip


@pytest.mark.parametrize("tier", ["landlock", "bubblewrap"])
def test_the_launchers_own_probes_are_held(tier: TierName) -> None:
    if (reason := probe().works[tier]) is not None:
        assert reason, "a tier that does not work says why"
        return
    done = subprocess.run(
        launcher("--self-test", "--json", "--tier", tier), capture_output=True, text=True, check=False
    )
    trials = json.loads(done.stdout)["trials"]
    assert done.returncode == 0
    assert trials
    assert all([verdict["state"] for verdict in trial["verdicts"]] == ["held"] * 10 for trial in trials)


def test_the_launchers_own_probes_succeed_without_a_sandbox() -> None:
    held = {verdict.name for verdict in verdicts("none", None) if verdict.state != "out"}
    # The end of a run finds every process of it in any tier; some machines refuse namespaces.
    assert held <= {"outlive", "new_namespace"}


def test_an_unknown_option_of_the_self_test_is_refused() -> None:
    done = subprocess.run(launcher("--self-test", "--fast"), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (125, "")
    assert "usage: --self-test" in done.stderr


@pytest.mark.fault("sandbox: a file outside, by link, rename or race")
@pytest.mark.fault("sandbox: a neighbour's process, memory or environment")
def test_nothing_gets_out_beside_landlock() -> None:
    outcome = escape_list("--tier", "landlock", "--quick")
    assert outcome.not_held() == []
    assert outcome.exit_code == 0
    assert all(len(attacks) > 160 for attacks in outcome.tried.values())


@pytest.mark.fault("sandbox: a message to the network or to a host's socket")
@pytest.mark.fault("sandbox: shared memory, queues or semaphores of another process, by their ids")
def test_nothing_gets_out_of_an_ordinary_users_landlock() -> None:
    outcome = escape_list("--tier", "landlock", "--quick", ordinary=True)
    assert outcome.not_held() == []
    assert list(outcome.tried) == ["landlock, this user"]


@pytest.mark.fault("sandbox: a kernel whose Landlock is old")
@pytest.mark.fault("sandbox: a signal sent through the owner of a socket")
def test_nothing_gets_out_beside_the_landlock_of_older_kernels() -> None:
    outcome = escape_list("--tier", "landlock", "--quick", ordinary=True, landlock_abi=5)
    assert outcome.not_held() == []
    assert outcome.exit_code == 0


@pytest.mark.system
@pytest.mark.parametrize("ordinary", [False, True])
@pytest.mark.parametrize("landlock_abi", [1, 2, 3, 4, 5, 6])
def test_nothing_gets_out_beside_any_landlock_under_any_identity(landlock_abi: int, ordinary: bool) -> None:
    outcome = escape_list("--tier", "landlock", "--quick", ordinary=ordinary, landlock_abi=landlock_abi)
    assert outcome.not_held() == []
    assert len(outcome.tried) == (2 if outcome.own_uid else 1)


@pytest.mark.fault("sandbox: a fork bomb, a flood, memory beyond the limit")
@pytest.mark.system
@pytest.mark.parametrize("ordinary", [False, True])
def test_the_whole_list_is_held_in_every_tier_of_this_machine(ordinary: bool) -> None:
    outcome = escape_list(ordinary=ordinary)
    assert outcome.not_held() == []
    assert {way.split(",")[0] for way in outcome.tried} == {"bubblewrap", "landlock"}
    assert all(len(attacks) >= 170 for attacks in outcome.tried.values())


@pytest.mark.fault("sandbox: a container without user namespaces")
@pytest.mark.root
@pytest.mark.system
@pytest.mark.parametrize("ordinary", [False, True])
def test_a_container_without_user_namespaces_uses_landlock_and_withstands_the_whole_list(ordinary: bool) -> None:
    outcome = escape_list(ordinary=ordinary, container=True)
    assert outcome.tier == "landlock"
    assert "namespace" in str(outcome.reasons["bubblewrap"])
    assert outcome.not_held() == []
    assert outcome.exit_code == 0


@pytest.mark.root
@pytest.mark.system
def test_every_attack_succeeds_without_a_sandbox() -> None:
    with arena(OPEN_UID, OPEN_UID) as ground:
        held = {v.name for v in quick_verdicts(ground, "none", OPEN_UID, NO_LIMITS) if v.state != "out"}
    assert held <= REFUSED_BY_THE_MACHINE


async def escaped_commands(folder: Path, tier: TierName, *, slow: bool = True) -> set[str]:
    inside, place = folder / "inside", folder / "outside"
    for made in (inside, place):
        made.mkdir()
    with outside(place, SECRET) as world, Workspace(inside) as workspace:
        lay_out(inside, world)
        (inside / "run.sh").write_text(script(inside, world, slow=slow))
        sandbox = Sandbox(tier, "none is wanted" if tier == "none" else None)
        async with Commands(workspace, sandbox=sandbox, unsafe=tier == "none") as commands:
            done = await commands.run_words(["sh", "run.sh"], seconds=240)
        assert done.ok, done.text
        return escaped(inside, world)


@pytest.mark.fault("sandbox: a command that a filter on words lets through")
@pytest.mark.fault("workspace: every command of the bypass list")
async def test_no_command_of_the_bypass_list_gets_out_beside_landlock(tmp_path: Path) -> None:
    assert await escaped_commands(tmp_path, "landlock", slow=False) == set()


@pytest.mark.fault("workspace: every command of the bypass list")
@pytest.mark.system
@pytest.mark.parametrize("tier", ["landlock", "bubblewrap"])
async def test_no_command_of_the_whole_bypass_list_gets_out(tmp_path: Path, tier: TierName) -> None:
    assert await escaped_commands(tmp_path, tier) == set()


@pytest.mark.system
async def test_the_commands_of_the_bypass_list_succeed_without_a_sandbox(tmp_path: Path) -> None:
    held = {command.name for command in COMMANDS} - await escaped_commands(tmp_path, "none")
    # The first needs a terminal; the second is another's where the tests run as root and the command has no rights.
    assert held <= {"git pager", "environment of a neighbour"}
