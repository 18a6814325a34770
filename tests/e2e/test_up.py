"""`dial-agent up` in an empty home: ready, used, hurt, ended."""

import asyncio
import os
import signal
from collections.abc import AsyncGenerator
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pytest
import pytest_asyncio

from tests.support.up import RunningProduct, dial_agent, running_product

pytestmark = pytest.mark.asyncio(loop_scope="module")

REPORT = "Date,Category,Sales\n2025-10-01,A,1200\n2025-10-05,A,1700\n2025-10-05,B,1200\n"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def demo(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[RunningProduct]:
    """The product with no model anywhere."""
    home = tmp_path_factory.mktemp("home")
    (home / "report.csv").write_text(REPORT)
    async with running_product(home) as product:
        yield product


async def connects(url: str) -> bool:
    try:
        _, writer = await asyncio.open_connection(urlsplit(url).hostname, urlsplit(url).port)
    except ConnectionRefusedError:
        return False
    writer.close()
    return True


async def test_one_table_names_addresses_model_tools_and_what_is_missing(demo: RunningProduct) -> None:
    await demo.having("Ctrl-C")
    table = "\n".join(demo.lines)
    for part in (demo.ready["agent"], demo.ready["core"], "scripted-demo (a demo, not a real model)", "calculator",
                 "file_content_extraction_tool", "OPENAI_API_KEY", 'dial-agent ask "'):  # fmt: skip
        assert part in table
    assert "gpt-4o" not in table
    assert "\x1b" not in table


async def test_the_demo_calls_the_tool_shows_what_came_back_and_says_that_it_is_a_demo(demo: RunningProduct) -> None:
    answer = await demo.ask("What is the top sale for category A?", "--file", "report.csv")
    assert answer.code == 0, answer.err
    assert "✓ file_content_extraction_tool" in answer.err
    assert "| 2025-10-05 | A | 1700 |" in answer.out
    assert "scripted demo, not a real model" in answer.out


async def test_the_key_is_random_and_its_owners_alone(demo: RunningProduct) -> None:
    key = demo.home / ".local/share/dial-agent/core.key"
    assert len(key.read_text()) >= 32
    assert key.stat().st_mode & 0o777 == 0o600
    refused = await dial_agent(demo.home, "ask", "Hi", DIAL_ENDPOINT=demo.ready["core"], DIAL_API_KEY="guess")
    assert refused.code == 2
    assert "refuses the key" in refused.err


async def test_killed_processes_are_reported_and_come_back(demo: RunningProduct) -> None:
    for name in ("core", "agent"):
        os.kill(demo.ready["processes"][name], signal.SIGKILL)
        await demo.having(f"{name:<5} │ was ended by SIGKILL; it is started again")
    for name in ("core", "agent"):
        await demo.having(f"{name:<5} │ runs again")
    assert (await demo.ask("Hi")).code == 0


async def test_a_second_product_on_the_same_port_is_told_who_holds_it(demo: RunningProduct) -> None:
    port = str(urlsplit(demo.ready["agent"]).port)
    refused = await dial_agent(demo.home, "up", "--port", port, "--core-port", "0")
    assert refused.code == 2
    assert f"Port {port} is in use by python" in refused.err
    assert "--port or AGENT_PORT" in refused.err


async def test_ctrl_c_leaves_no_process_and_no_port(tmp_path: Path) -> None:
    async with running_product(tmp_path) as product:
        processes = [psutil.Process(pid) for pid in product.ready["processes"].values()]
        assert await product.stop(signal.SIGINT) == 0
        assert [process for process in processes if process.is_running()] == []
        assert not await connects(product.ready["agent"])
        assert not await connects(product.ready["core"])
