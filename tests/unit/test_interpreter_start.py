"""When the interpreter server starts, and when it refuses with one line."""

import asyncio
import os
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
import zmq.asyncio

from mcp_servers.python_interpreter.__main__ import Refusal, parse
from mcp_servers.python_interpreter.config import Config
from mcp_servers.python_interpreter.kernels import Kernel
from mcp_servers.python_interpreter.launch import Launcher, NoSandbox
from mcp_servers.python_interpreter.memory import Memory, Remembered
from mcp_servers.python_interpreter.meta import call_meta, handle_of
from mcp_servers.python_interpreter.places import KernelFolders
from mcp_servers.python_interpreter.starting import KernelProcess
from mcp_servers.python_interpreter.wire import KernelWire
from mcp_servers.sandbox import new_mark
from mcp_servers.sandbox.tiers import Tier

ROOT = Path(__file__).parent.parent.parent
TOKEN = {"AGENT_MCP_TOKEN": "0123456789abcdef"}
NOTHING = Tier("none", 0, False, 0, "5.4", [], {"bubblewrap": "not installed", "landlock": "kernel too old"}, [])


def config(tmp_path: Path) -> Config:
    return parse(["--data", str(tmp_path / "data"), "--python", sys.executable], TOKEN)


def test_without_a_token_or_a_kernel_environment_it_does_not_start(tmp_path: Path) -> None:
    arguments = ["--data", str(tmp_path), "--python", sys.executable]
    with pytest.raises(Refusal, match="AGENT_MCP_TOKEN: set the token"):
        parse(arguments, {})
    with pytest.raises(Refusal, match="at least 16"):
        parse(arguments, {"AGENT_MCP_TOKEN": "short"})
    with pytest.raises(Refusal, match="does not exist; `dial-agent up`"):
        parse(["--data", str(tmp_path), "--python", str(tmp_path / "none")], TOKEN)


@pytest.mark.fault("interpreter: a machine without a sandbox")
def test_without_a_sandbox_that_works_it_starts_only_if_that_is_allowed(tmp_path: Path) -> None:
    with pytest.raises(NoSandbox, match="bubblewrap: not installed; landlock: kernel too old"):
        Launcher.find(config(tmp_path), NOTHING)
    unsafe = Launcher.find(replace(config(tmp_path), unsafe=True), NOTHING)
    assert unsafe.tier == "none"

    found = replace(NOTHING, name="landlock", level=1, works={"bubblewrap": "blocked", "landlock": None})
    assert Launcher.find(config(tmp_path), found).tier == "landlock"
    with pytest.raises(NoSandbox, match="blocked"):
        Launcher.find(replace(config(tmp_path), tier="bubblewrap"), found)


def test_the_command_refuses_in_one_line(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mcp_servers.python_interpreter", "--data", str(tmp_path), "--python", "/none"]
    result = subprocess.run(
        command, cwd=ROOT, env={"PATH": os.environ["PATH"]}, capture_output=True, text=True, timeout=30, check=False
    )
    assert (result.returncode, len(result.stderr.splitlines())) == (2, 1)


@pytest.mark.fault("interpreter: a session id of another principal")
def test_a_session_belongs_to_one_caller_and_conversation_and_survives_restarts() -> None:
    handle = handle_of("token", "agent", "p", "c")
    assert handle == handle_of("token", "agent", "p", "c")
    others = ["other agent p c", "token x p c", "token agent q c", "token agent p d", "token agent pc c"]
    assert handle not in [handle_of(*other.split()) for other in others]

    named = call_meta({"dial-general-purpose-agent/conversation_id": "c"}, "legacy", "agent", "token")
    legacy = call_meta({}, "legacy", "agent", "token")
    assert (named.kept, legacy.kept) == (True, True)
    assert legacy == call_meta({}, "legacy", "agent", "token")
    alone = call_meta({}, None, "agent", "token")
    assert not alone.kept
    assert alone.handle != call_meta({}, None, "agent", "token").handle


def test_memory_survives_and_a_damaged_note_still_reports_a_loss(tmp_path: Path) -> None:
    Memory(tmp_path).keep("h", Remembered(3, "evicted"))
    assert Memory(tmp_path).of("h") == Remembered(3, "evicted")
    (tmp_path / "h").write_text("{broken")
    assert Memory(tmp_path).of("h") == Remembered(0)
    Memory(tmp_path).forget("h")
    assert Memory(tmp_path).of("h") is None


@pytest.mark.fault("interpreter: a kernel that is killed")
async def test_a_kernel_killed_while_it_waits_is_not_taken_for_alive(tmp_path: Path) -> None:
    process = await asyncio.create_subprocess_exec("sleep", "60")
    context = zmq.asyncio.Context()
    wire = KernelWire(tmp_path, context)
    kernel = Kernel(KernelFolders(tmp_path, None), KernelProcess(os.pidfd_open(process.pid)), 0, wire)
    assert kernel.alive
    process.kill()
    with suppress(ChildProcessError):
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # the event loop learns of nothing here
    assert not kernel.died.done()
    assert not kernel.alive
    await kernel.died
    await process.wait()
    wire.close()
    context.destroy(linger=0)


async def test_a_kernel_that_is_ended_twice_leaves_a_descriptor_with_its_number_alone(tmp_path: Path) -> None:
    process = await asyncio.create_subprocess_exec("sleep", "60", start_new_session=True)
    context, descriptor = zmq.asyncio.Context(), os.pidfd_open(process.pid)
    wire = KernelWire(tmp_path, context)
    kernel = Kernel(KernelFolders(tmp_path, None), KernelProcess(descriptor), new_mark(), wire)
    await kernel.kill()
    os.dup2(0, descriptor)
    await kernel.kill()
    assert not kernel.alive
    os.close(descriptor)  # fails if it was closed
    await process.wait()
    context.destroy(linger=0)
