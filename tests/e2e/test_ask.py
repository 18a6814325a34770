"""`dial-agent ask` through local Core: answers from attached files, files of an answer, exit codes."""

import asyncio
import base64
import random
import signal
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from aiohttp import web

from task.llm.scripted import Reply, says
from tests.support.core import local_core
from tests.support.core_peers import peer
from tests.support.document_turns import reads_the_file
from tests.support.image_deployment import attaching
from tests.support.up import RunningProduct, dial_agent, environment, running_product
from tests.support.upstream import Item, Received, Upstream, http_error, never_answering, openai_upstream

REPORTS = {
    "report.csv": ("Date,Category,Sales,Profit", ","),
    "umsatz.csv": ("Datum;Gruppe;Umsatz", ";"),
    "revenue.tsv": ("day\tsegment\trevenue\tregion", "\t"),
}


def top_sale(request: Received) -> Reply:
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


async def left_by_its_reader(product: RunningProduct) -> str:
    """What the command writes to standard error when its output is closed after one line, as `head -1` does."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "task", "ask", "--json", "Hi"),
        env=environment(product.home, DIAL_ENDPOINT=product.ready["core"]),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    await process.stdout.readline()
    process.stdout._transport.close()  # type: ignore[attr-defined]
    return (await process.stderr.read()).decode()


async def interrupted(product: RunningProduct, upstream: Upstream) -> int | None:
    """Ctrl-C while the model thinks; the exit code."""
    arguments = (sys.executable, "-m", "task", "ask", "Hi")
    environ = environment(product.home, DIAL_ENDPOINT=product.ready["core"])
    process = await asyncio.create_subprocess_exec(*arguments, cwd=product.home, env=environ)
    await upstream.received(len(upstream.requests) + 1)
    process.send_signal(signal.SIGINT)
    return await asyncio.wait_for(process.wait(), 5)


async def test_the_right_row_is_returned_from_three_files_and_failures_have_their_exit_codes(tmp_path: Path) -> None:
    steps = [reads_the_file, top_sale] * 3
    ends = http_error(400), says("Fine."), says(*("word ",) * 2_000), never_answering()
    async with connected(tmp_path, *steps, *ends) as (product, upstream):
        assert (product.ready["rule"], product.ready["model"]) == ("upstream", "gpt-4o-mini")
        for name in REPORTS:
            path, right = made_report(tmp_path, name)
            answer = await product.ask("What is the top sale for category A?", "--file", str(path))
            assert (answer.code, answer.out) == (0, f"{right}\n"), answer.err
            assert f"✓ file_content_extraction_tool {name} · " in answer.err

        failed = await product.ask("Hi")
        assert (failed.code, failed.out) == (1, "")
        assert "gpt-4o-mini" in failed.err

        printed = await product.ask("Hi", "--json")
        assert printed.events()[0] == {"type": "text", "text": "Fine."}
        assert printed.event("finished").items() >= {"status": "finished", "finish_reason": "stop"}.items()

        assert await left_by_its_reader(product) == ""

        unknown = await product.ask("Hi", "--model", "nobody")
        assert (unknown.code, unknown.out) == (2, "")
        assert "--model nobody is not deployed there" in unknown.err

        assert await interrupted(product, upstream) == 130
        await upstream.disconnected(1)
    assert {request.body["model"] for request in upstream.requests} == {"gpt-4o-mini"}


async def test_nothing_listening_is_exit_code_3(tmp_path: Path) -> None:
    gone = await dial_agent(tmp_path, "ask", "Hi", DIAL_ENDPOINT="http://127.0.0.1:9")
    assert gone.code == 3
    assert "start the product with `dial-agent up`" in gone.err


PIXEL = b"\x89PNG\r\n\x1a\n\x00\x01"


async def returning(request: web.Request) -> web.StreamResponse:
    """Answers with what was attached, under a hostile title, with a picture as data and with a link."""
    [sent] = (await request.json())["messages"][-1]["custom_content"]["attachments"]
    answer = attaching(
        {"title": "../../report.csv", "url": sent["url"]},
        {"title": "pixel.png", "type": "image/png", "data": base64.b64encode(PIXEL).decode()},
        {"title": "A blue pixel v1.0", "type": "image/png", "data": base64.b64encode(PIXEL).decode()},
        {"title": "Sales by day", "type": "application/vnd.plotly.v1+json", "data": "{}"},
        {"title": "The table you sent", "type": "application/octet-stream", "url": sent["url"]},
        {"title": "[1] source", "data": "quote", "reference_url": "https://example.org"},
        text="Here.",
    )
    return await answer(request)


async def test_attached_files_arrive_and_the_answers_files_are_kept_in_the_folder_only(tmp_path: Path) -> None:
    out, name = tmp_path / "out", "sales & 50% #1 é.csv"
    (tmp_path / name).write_text("a,b\n1,2\n")
    out.mkdir()
    (out / "report.csv").write_text("mine")
    async with peer(returning) as application:
        config = {"applications": {"echo": {"endpoint": application.url}}, "keys": {}}
        async with local_core(config, tmp_path) as core:
            environ = {"DIAL_ENDPOINT": core.url, "DIAL_API_KEY": core.api_key}
            done = await dial_agent(
                tmp_path, "ask", "Keep it", "--model", "echo", "--file", name, "--save", "out", **environ
            )
    assert (done.code, done.out) == (0, "Here.\n"), done.err
    assert application.last.json["messages"][-1]["custom_content"]["attachments"][0]["title"] == name
    assert sorted(path.name for path in out.iterdir()) == [
        "A blue pixel v1.0.png", "Sales by day.json", "The table you sent.csv", "pixel.png", "report-2.csv",
        "report.csv",
    ]  # fmt: skip
    assert (out / "report-2.csv").read_text() == "a,b\n1,2\n"
    assert (out / "report.csv").read_text() == "mine"
    assert (out / "pixel.png").read_bytes() == PIXEL
    assert "[1] source https://example.org" in done.err
