"""MCP servers that the agent starts: what they may touch, how they fail, restart and end."""

import asyncio
import fcntl
import json
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mcp_servers.sandbox.tiers import find_tier
from task.cli.doctor import results
from task.product.parts import mcp_specs
from task.settings import Settings
from task.tools.mcp.hub import MCPHub
from task.tools.mcp.mcp_client import MCPClient
from task.tools.mcp.results import Fault, MCPFailure
from tests.support.core_peers import answers, peer
from tests.support.waiting import until

SUPPORT = Path(__file__).parents[1] / "support"
PROJECT = SUPPORT.parents[1] / "pyproject.toml"
PROGRAM = {
    "name": "local",
    "command": sys.executable,
    "args": [str(SUPPORT / "stdio_server.py")],
    "read": [str(SUPPORT)],
}
FOUND = find_tier()
WORKING = [tier for tier, why in FOUND.works.items() if not why]
NETWORKED = [tier for tier in WORKING if tier == "bubblewrap" or FOUND.landlock_abi >= 4]
SECONDS = 60
OF_THE_SDK = "from tests.support.mcp_server import small_server; small_server().run(transport='stdio')"


def settings(**entry: Any) -> Settings:
    return Settings.model_validate({"mcp_servers": [{**PROGRAM, **entry}]})


@asynccontextmanager
async def running(tier: str = "auto", **entry: Any) -> AsyncGenerator[MCPClient]:
    """A client of the server that the settings' entry describes."""
    (spec,) = mcp_specs(settings(**entry))
    assert spec.program is not None
    spec = replace(spec, program=replace(spec.program, policy={**spec.program.policy, "tier": tier}))
    async with asyncio.timeout(SECONDS), MCPClient(spec.url, name=spec.name, program=spec.program) as client:
        yield client


@pytest.mark.system
async def test_a_server_of_the_official_package_is_understood() -> None:
    root = str(SUPPORT.parents[1])
    async with running(args=["-c", OF_THE_SDK], env={"PYTHONPATH": root}, read=[root]) as client:
        assert [tool.name for tool in await client.get_tools()] == ["add", "echo", "wipe"]
        assert await client.call_tool("add", {"left": 2, "right": 3}) == "5"


@pytest.mark.fault("mcp: a server's program that wants more files or hosts than its entry names")
@pytest.mark.parametrize("tier", WORKING)
async def test_it_reads_and_writes_what_its_entry_names_and_nothing_else(tmp_path: Path, tier: str) -> None:
    folders = {name: tmp_path / name for name in ("readable", "writable", "other")}
    for folder in folders.values():
        folder.mkdir()
        (folder / "a.txt").write_text(f"of {folder.name}")
    entry = {"read": [str(SUPPORT), str(folders["readable"])], "write": [str(folders["writable"])]}
    async with running(tier, **entry) as client:
        read = {name: await client.call_tool("read", {"path": f"{place}/a.txt"}) for name, place in folders.items()}
        for place in folders.values():
            await client.call_tool("write", {"path": f"{place}/b.txt", "text": "made"})
    assert (read["readable"], read["writable"]) == ("of readable", "of writable")
    assert read["other"].startswith("refused")
    assert [name for name, place in folders.items() if (place / "b.txt").exists()] == ["writable"]


async def test_it_has_its_own_environment_and_a_home_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-the-agent")
    async with running(env={"TOKEN": "its-own"}) as client:
        found = dict(line.split("=", 1) for line in (await client.call_tool("environment", {})).splitlines())
        assert await client.call_tool("write", {"path": f"{found['HOME']}/note", "text": "abc"}) == "3"
    assert found["TOKEN"] == "its-own"
    assert found["TMPDIR"] == found["HOME"] != str(Path.home())
    assert "OPENAI_API_KEY" not in found
    assert not Path(found["HOME"]).exists()


@pytest.mark.fault("mcp: a server's program that wants more files or hosts than its entry names")
@pytest.mark.parametrize("tier", NETWORKED)
async def test_it_reaches_the_hosts_of_its_entry_and_no_others(tier: str) -> None:
    async with peer(answers(200, {"it": "works"})) as named, peer(answers()) as other:
        host = named.url.removeprefix("http://")
        async with running(tier, hosts=[host]) as client:
            allowed = await client.call_tool("fetch", {"url": named.url})
            refused = await client.call_tool("fetch", {"url": other.url})
        async with running(tier) as client:
            alone = await client.call_tool("fetch", {"url": named.url})
    assert "works" in allowed
    assert "is not among the hosts that this run may reach" in refused
    assert alone.startswith("refused")
    assert (len(named.requests), other.requests) == (1, [])


@pytest.mark.fault("mcp: a server's program that dies")
async def test_one_that_dies_in_a_call_or_between_two_is_started_again() -> None:
    async with running() as client:
        before = await client.call_tool("started", {})
        with pytest.raises(MCPFailure) as caught:
            await client.call_tool("die", {})
        assert caught.value.fault is Fault.LOST
        second = third = await client.call_tool("started", {})
        await client.call_tool("die", {"seconds": 0.1})
        while third == second:
            await asyncio.sleep(0.05)
            with suppress(MCPFailure):  # it died in just this call
                third = await client.call_tool("started", {})
    assert len({before, second, third}) == 3


def is_locked(path: Path) -> bool:
    with path.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


AGENT = """
import asyncio, json, os, sys
from task.product.parts import mcp_specs
from task.settings import Settings
from task.tools.mcp.mcp_client import MCPClient

async def main():
    (spec,) = mcp_specs(Settings.model_validate(json.loads(sys.argv[1])))
    client = MCPClient(spec.url, name=spec.name, program=spec.program)
    await client.call_tool("started", {})
    os.kill(os.getpid(), 9)

asyncio.run(main())
"""


async def test_it_ends_with_the_agent_also_with_one_that_is_killed(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    async with running(args=[*PROGRAM["args"], str(lock)], write=[str(tmp_path)]) as client:
        await client.call_tool("started", {})
        assert is_locked(lock)
    await until(lambda: not is_locked(lock), SECONDS)
    entry = {**PROGRAM, "args": [*PROGRAM["args"], str(lock)], "write": [str(tmp_path)]}
    agent = await asyncio.create_subprocess_exec(
        sys.executable, "-c", AGENT, json.dumps({"mcp_servers": [entry]}), cwd=PROJECT.parent
    )
    async with asyncio.timeout(SECONDS):
        assert await agent.wait() == -9
        while is_locked(lock):
            await asyncio.sleep(0.05)


NOT_STARTED: dict[str, tuple[dict[str, Any], str]] = {
    "no such program": ({"command": "/no/such/program"}, "/no/such/program"),
    "reads what is not there": ({"read": [str(SUPPORT), "/no/such/folder"]}, "/no/such/folder"),
    "writes the whole disk": ({"write": ["/"]}, "the whole file system is not a sandbox"),
    "reads a part of what it writes": ({"write": [str(SUPPORT)]}, "is in a read_write folder"),
    "a host that is none": ({"hosts": ["https://example.org/"]}, "expected 'none' or a list of hosts"),
    "wants more than its entry names": (
        {"args": ["-c", f"import sys; sys.exit(open({str(PROJECT)!r}).read())"]}, "Error: [Errno"
    ),
    "names its secret": (
        {"args": ["-c", "import os, sys; sys.exit('bad ' + os.environ['KEY'])"], "env": {"KEY": "s3cret"}}, "bad ***"
    ),
    "ends without a word": ({"args": ["-c", ""]}, "it ended without a word"),
}  # fmt: skip


@pytest.mark.fault(
    "mcp: a server's program that wants more files or hosts than its entry names",
    case="wants more than its entry names",
)
@pytest.mark.fault("mcp: a server's program that cannot be started")
@pytest.mark.parametrize("case", NOT_STARTED)
async def test_one_that_cannot_be_started_says_why(case: str) -> None:
    entry, words = NOT_STARTED[case]
    async with running(**entry) as client:
        with pytest.raises(MCPFailure) as caught:
            await client.get_tools()
    assert caught.value.fault is Fault.UNAVAILABLE
    assert "The server local could not be started (" in str(caught.value)
    assert words in str(caught.value)
    assert "s3cret" not in str(caught.value)


async def test_its_tools_are_offered_like_any_others_and_doctor_starts_each_once() -> None:
    hub = MCPHub(mcp_specs(settings(tools=["read", "started"])), patience=SECONDS)
    found = await hub.discover()
    await hub.close()
    assert ([tool.name for tool in found.tools], found.issues) == (["started", "read"], ())
    broken = {"name": "broken", "command": "/no/such/program"}
    both = Settings.model_validate({"mcp_servers": [PROGRAM, broken]})
    started, missing = await results(both, "MCP servers")
    assert (started.name, started.state) == ("MCP server local", "ok")
    assert (missing.name, missing.state, "/no/such/program" in missing.found) == ("MCP server broken", "bad", True)
