"""`dial-agent up` in an empty home, with no model anywhere: ready, used, hurt, ended."""

import asyncio
import os
import shlex
import shutil
import signal
import socket
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
import psutil

from task.commands.checks import service_checks
from task.settings import load_settings
from tests.support.isolation import NO_OLLAMA
from tests.support.up import RunningProduct, dial_agent, running_product

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
        await ctrl_c_leaves_no_process_and_no_port(product)


async def test_a_second_product_on_the_same_port_is_refused_with_the_process_that_holds_it(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as first:
        port = first.getsockname()[1]
        refused = await dial_agent(tmp_path, "up", "--port", str(port), "--core-port", "0")
    assert (refused.code, refused.out) == (2, "")
    assert refused.err.startswith(f"Port {port} is in use by ")
    assert refused.err.endswith(f"(process {os.getpid()}); choose another with --port or AGENT_PORT.\n")


async def one_table_says_everything(product: RunningProduct) -> None:
    await product.having("--file report.csv")
    table = "\n".join(product.lines)
    for part in (product.ready["agent"], product.ready["core"], "scripted-demo (a demo, not a real model)",
                 f"Web page  │ {product.ready['agent']}/ ", "calculator", "execute_code",
                 "file_content_extraction_tool", "duckduckgo_web_search",
                 "OPENAI_API_KEY", "Ctrl-C", "Search ", "Python ", "/mcp"):  # fmt: skip
        assert part in table
    command = shlex.split(product.lines[product.lines.index("Try:") + 1])
    assert command[1:] == ["ask", QUESTION, "--file", "report.csv", "--endpoint", product.ready["core"]]
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
    async with aiohttp.ClientSession() as session:
        rows = await service_checks(load_settings(environ=environ, directory=product.home), session)
    assert {row.name: row.state for row in rows} == {
        "agent": "ok", "core": "ok", "core key": "ok", "deployments": "ok", "model": "note",
    }  # fmt: skip
    assert "general-purpose-agent, scripted-demo, dall-e-3" in {row.found for row in rows}


async def a_killed_process_comes_back(product: RunningProduct) -> None:
    os.kill(product.ready["processes"]["core"], signal.SIGKILL)
    await product.having("core   │ was ended by SIGKILL; it is started again")
    await product.having("core   │ runs again")
    assert (await product.ask("Hi")).code == 0


async def ctrl_c_leaves_no_process_and_no_port(product: RunningProduct) -> None:
    processes = psutil.Process(product.process.pid).children(recursive=True)
    assert set(product.ready["processes"]) >= {"search", "core", "agent"}
    assert await product.stop(signal.SIGINT) == 0
    assert [left for left in processes if left.is_running() and left.status() != psutil.STATUS_ZOMBIE] == []
    assert not await connects(product.ready["agent"])
    assert not await connects(product.ready["core"])


async def connects(url: str) -> bool:
    try:
        _, writer = await asyncio.open_connection(urlsplit(url).hostname, urlsplit(url).port)
    except ConnectionRefusedError:
        return False
    writer.close()
    return True
