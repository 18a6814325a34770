"""`dial-agent serve` as a process: what it loads before its port is open, and what it writes into its log."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from task.errors import SettingsError
from task.llm.scripted import says, wants
from task.server import create_app
from task.settings import Settings
from task.telemetry.logs import set_up_logging
from tests.support.chat_reader import chat_reader
from tests.support.ports import free_port
from tests.support.stores import opened, sqlite_url
from tests.support.upstream import hanging, openai_upstream

ROOT = Path(__file__).parent.parent.parent


@asynccontextmanager
async def serving(log: Path, **environment: str) -> AsyncGenerator[str]:
    """The agent's address, healthy; all it writes goes into `log`."""
    port = free_port()
    settings = {"AGENT_DATA_DIR": str(log.parent), "AGENT_PORT": str(port), **environment}
    with log.open("wb") as file:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "task", "serve", cwd=ROOT, env=settings, stdout=file, stderr=file
        )
    try:
        url = f"http://127.0.0.1:{port}"
        await asyncio.wait_for(healthy(url), 20)
        yield url
    finally:
        process.terminate()
        await asyncio.wait_for(process.wait(), 15)


async def healthy(url: str) -> None:
    async with aiohttp.ClientSession() as session:
        while True:
            try:
                async with session.get(f"{url}/health") as response:
                    if response.status == 200:
                        return
            except aiohttp.ClientConnectionError:
                await asyncio.sleep(0.02)


@pytest.mark.parametrize("fast_chunks", ["true", pytest.param("false", marks=pytest.mark.system)])
async def test_a_caller_who_leaves_is_one_line_in_the_log(fast_chunks: str, tmp_path: Path) -> None:
    log = tmp_path / "agent.log"
    async with (
        openai_upstream(hanging(says("Once ", "upon"), chunks=2)) as upstream,
        serving(log, DIAL_ENDPOINT=upstream.endpoint, AGENT_FAST_CHUNKS=fast_chunks) as url,
        chat_reader(url, "key-one") as reader,
    ):
        async with aclosing(reader.watch("Tell me a story")) as watching:
            while not (await anext(watching)).content:
                pass
        await upstream.disconnected(1)
    written = log.read_text(encoding="utf-8")
    assert written.count("Client disconnected") == 1
    assert "Traceback" not in written


@pytest.mark.fault("configuration: a log file that cannot be written")
@pytest.mark.parametrize(
    ("path", "reason"), [("/proc/nowhere/agent.log", "No such file or directory"), ("/", "Is a directory")]
)
def test_a_log_file_that_cannot_be_written_is_one_line_with_the_fix(path: str, reason: str) -> None:
    with pytest.raises(SettingsError, match=f"^AGENT_LOG_FILE: {path} cannot be written: {reason}. Name a file that"):
        set_up_logging("INFO", Path(path))


@pytest.mark.fault("configuration: settings that would break the first request")
@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"mcp_servers": [{"name": "a", "url": "http://127.0.0.1:1/mcp"}] * 2}, "AGENT_MCP_SERVERS: there are two"),
        ({"data_dir": "/proc/nowhere"}, "AGENT_DATA_DIR: /proc/nowhere/state.key cannot be used"),
        ({"permissions": {"rules": [{"action": "deny", "command": "a; b"}]}}, "AGENT_PERMISSIONS__RULES: no command"),
    ],
)
def test_what_would_break_the_first_request_is_found_before_the_port_is_open(
    settings: dict[str, Any], reason: str
) -> None:
    with pytest.raises(SettingsError, match=f"^{reason}"):
        create_app(Settings.model_validate(settings))


@pytest.mark.fault("gate: a blocked or allowed command that no command begins with")
def test_a_list_of_commands_that_cannot_be_meant_stops_the_start(tmp_path: Path) -> None:
    lists = {"AGENT_TEPS__BASH__BLOCKED_COMMANDS": "curl | sh"}
    environment = {"AGENT_DATA_DIR": str(tmp_path), "AGENT_PORT": str(free_port()), **lists}
    command = [sys.executable, "-m", "task", "serve"]
    ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=30, check=False)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith("AGENT_TEPS__BASH__BLOCKED_COMMANDS: no command begins with 'curl | sh'. List each")
    assert ended.stderr.count("\n") == 1


@pytest.mark.fault("compose: SIGTERM in the middle of an answer")
async def test_an_answer_under_way_is_kept_when_the_agent_is_ended(tmp_path: Path) -> None:
    script = wants("calculator", expression="25*47"), hanging(says("Half", " a sentence"), chunks=2)
    async with openai_upstream(*script) as upstream, aiohttp.ClientSession() as caller:
        environment = {"DIAL_ENDPOINT": upstream.endpoint, "AGENT_SHUTDOWN_SECONDS": "0"}
        async with serving(tmp_path / "agent.log", **environment) as url:
            async with caller.post(f"{url}/session/start") as started:
                session_id = (await started.json())["session_id"]
            body = {"messages": [{"role": "user", "content": "?"}], "session_id": session_id, "stream": True}
            answer = await caller.post(f"{url}/v1/chat/completions", json=body)
            async for line in answer.content:
                if b"Half" in line:
                    break
        answer.close()
    async with opened(sqlite_url(tmp_path), chores=False) as store:
        [run] = (await store.runs.list("local")).items
        messages = (await store.sessions.get("local", session_id)).messages
    assert (run.status, [message.text() for message in messages]) == ("cancelled", ["?", "", "1175", "Half"])
