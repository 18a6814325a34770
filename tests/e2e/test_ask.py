"""`dial-agent ask` through local Core, agent and an OpenAI-compatible upstream that works with what reached it."""

import asyncio
import random
import re
import signal
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from task.llm.scripted import Reply, says, wants
from tests.support.up import RunningProduct, dial_agent, environment, running_product
from tests.support.upstream import Item, Received, Upstream, http_error, never_answering, openai_upstream

REPORTS = {
    "report.csv": ("Date,Category,Sales,Profit", ","),
    "umsatz.csv": ("Datum;Gruppe;Umsatz", ";"),
    "revenue.tsv": ("day\tsegment\trevenue\tregion", "\t"),
}


def first_step(request: Received) -> Reply:
    """Read the file that is attached."""
    url = re.search(r"files/\S+", request.last["content"])
    assert url is not None
    return wants("file_content_extraction_tool", file_url=url[0])


def second_step(request: Received) -> Reply:
    """Find the top row of category A in the table that reached the model: third column, second names the category."""
    lines = [line.strip("| ").split(" | ") for line in request.last["content"].splitlines() if line.startswith("|")]
    top = max((row for row in lines if row[1] == "A"), key=lambda row: int(row[2]))
    return says("The top sale ", f"is {top[2]} on {top[0]}.")


def made_report(folder: Path, name: str) -> tuple[Path, str]:
    """A file with this name's columns and random values, and the right answer."""
    header, comma = REPORTS[name]
    more = [""] * (header.count(comma) - 2)
    values = random.sample(range(1000, 99_999), 40)
    rows = [(f"2025-10-{n % 28 + 1:02}", "AB"[n % 2], str(value), *more) for n, value in enumerate(values)]
    (folder / name).write_text("\n".join([header, *map(comma.join, rows)]) + "\n")
    top = max((row for row in rows if row[1] == "A"), key=lambda row: int(row[2]))
    return folder / name, f"The top sale is {top[2]} on {top[0]}."


@asynccontextmanager
async def connected(home: Path, *items: Item) -> AsyncGenerator[tuple[RunningProduct, Upstream]]:
    async with openai_upstream(*items, api_key="sk-test") as upstream:
        environ = {"OPENAI_BASE_URL": upstream.url, "OPENAI_API_KEY": "sk-test", "DEPLOYMENT_NAME": "gpt-4o-mini"}
        async with running_product(home, **environ) as product:
            yield product, upstream


async def interrupted(product: RunningProduct, upstream: Upstream) -> int | None:
    """Ctrl-C while the model thinks; the exit code."""
    arguments = (sys.executable, "-m", "task", "ask", "Hi")
    environ = environment(product.home, DIAL_ENDPOINT=product.ready["core"])
    process = await asyncio.create_subprocess_exec(*arguments, cwd=product.home, env=environ)
    await upstream.received(len(upstream.requests) + 1)
    process.send_signal(signal.SIGINT)
    return await asyncio.wait_for(process.wait(), 5)


async def test_the_right_row_is_returned_from_three_files_and_failures_have_their_exit_codes(tmp_path: Path) -> None:
    steps = [first_step, second_step] * 3
    async with connected(tmp_path, *steps, http_error(400), says("Fine."), never_answering()) as (
        product,
        upstream,
    ):
        assert (product.ready["rule"], product.ready["model"]) == ("upstream", "gpt-4o-mini")
        for name in REPORTS:
            path, right = made_report(tmp_path, name)
            answer = await product.ask("What is the top sale for category A?", "--file", str(path))
            assert (answer.code, answer.out) == (0, f"{right}\n"), answer.err
            assert f"✓ file_content_extraction_tool: {name} [" in answer.err

        failed = await product.ask("Hi")
        assert (failed.code, failed.out) == (1, "")
        assert "gpt-4o-mini" in failed.err

        printed = await product.ask("Hi", "--json")
        assert printed.events() == [{"event": "text", "text": "Fine."}, {"event": "end", "reason": "stop"}]

        unknown = await product.ask("Hi", "--model", "nobody")
        assert (unknown.code, unknown.out) == (2, "")
        assert "--model nobody is not deployed there" in unknown.err

        assert await interrupted(product, upstream) == 130
        await upstream.disconnected(1)
    assert {request.body["model"] for request in upstream.requests} == {"gpt-4o-mini"}


async def test_nothing_listening_is_exit_code_3(tmp_path: Path) -> None:
    gone = await dial_agent(tmp_path, "ask", "Hi", DIAL_ENDPOINT="http://127.0.0.1:9")
    assert gone.code == 3
    assert "start the product with `make run`" in gone.err
