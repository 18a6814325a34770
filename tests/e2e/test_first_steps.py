"""The README's and the tutorial's commands and programs, as they stand there, against a model's upstream."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from pathlib import Path

import pytest

from task.llm.scripted import Reply, says, wants
from tests.support.document_turns import reads_the_file
from tests.support.up import ROOT, Finished, running_product
from tests.support.upstream import Received, openai_upstream

BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
TUTORIAL = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")


def blocks(text: str) -> list[tuple[str, str]]:
    """Language (empty: commands) and content of each block of a page."""
    return BLOCK.findall(text)


def step(number: int) -> list[tuple[str, str]]:
    """The blocks of a step of the tutorial."""
    return blocks(re.split(r"^## ", TUTORIAL, flags=re.MULTILINE)[number])


async def run(home: Path, *command: str, **environ: str) -> Finished:
    variables = {"HOME": str(home), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", **environ}
    process = await asyncio.create_subprocess_exec(
        *command, cwd=home, env=variables, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, err = await asyncio.wait_for(process.communicate(), 40)
    return Finished(process.returncode or 0, out.decode(), err.decode())


def top_row(request: Received) -> Reply:
    table = str(request.last["content"])
    return says("The top sale is 1700.") if "| 2025-10-05 | A | 1700 |" in table else says("I saw no table.")


@pytest.mark.system  # six processes one after the other
async def test_the_tutorial_leads_from_a_question_to_a_tool_and_a_program(tmp_path: Path) -> None:
    [(_, ask)], [(_, tool), _, (_, ask_the_tool)] = step(2), step(4)
    [(_, openai_client), (_, key), (_, dial_client)] = step(5)
    (tmp_path / "my_tools.py").write_text(tool)
    calls = [reads_the_file, top_row, wants("vat", net=100), lambda request: says(f"It is {request.last['content']}.")]
    async with openai_upstream(*calls, says("1175"), says("It makes 1175.")) as upstream:
        environ = {"OPENAI_BASE_URL": upstream.url, "DEPLOYMENT_NAME": "gpt-4o", "AGENT_TOOL_PATHS": "my_tools.py"}
        async with running_product(tmp_path, **environ) as product:
            core, agent = product.ready["core"], product.ready["agent"]
            await product.having("vat")
            answers = [
                await run(tmp_path, "bash", "-ec", ask, DIAL_ENDPOINT=core),
                await run(tmp_path, "bash", "-ec", ask_the_tool, DIAL_ENDPOINT=core),
                await run(tmp_path, sys.executable, "-c", openai_client.replace("http://localhost:5030", agent)),
                await run(
                    tmp_path,
                    "bash",
                    "-ec",
                    f'{key}\npython -c "$0"',
                    dial_client.replace("http://localhost:8080", core),
                ),
            ]
    assert [answer.out for answer in answers] == [
        "The top sale is 1700.\n",
        "It is 119.00.\n",
        "1175\n",
        "It makes 1175.\n",
    ], answers


def test_the_readmes_program_is_the_tutorials() -> None:
    [readme, *_] = [
        text for language, text in blocks((ROOT / "README.md").read_text(encoding="utf-8")) if language == "python"
    ]
    assert readme == step(5)[0][1]


async def test_the_model_of_the_tutorial_stays_when_a_tool_is_added(tmp_path: Path) -> None:
    terminal = [text for number in (1, 3, 4) for _, text in step(number) if "make run" in text]
    shown = await run(
        tmp_path, "bash", "-ec", "\n".join(['make() { echo "$OPENAI_API_KEY $AGENT_TOOL_PATHS"; }', *terminal])
    )
    assert shown.out.splitlines() == [" ", "… ", "… my_tools.py"]
