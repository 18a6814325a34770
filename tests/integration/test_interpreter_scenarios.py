"""Python in DIAL Chat: the validation scenarios 12, 13, 14 and 17 with the real server, its kernels and local Core."""

import io
import json
import zipfile
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from task.llm.scripted import Reply, says, wants
from tests.support.chat_reader import Answer, ChatReader
from tests.support.documents import SALES, csv_bytes
from tests.support.interpreter import TOKEN, RunningInterpreter, running_interpreter
from tests.support.product import product
from tests.support.upstream import Received

pytestmark = pytest.mark.usefixtures("chat")
BARS = """
import pandas as pd, matplotlib.pyplot as plt
totals = pd.read_csv("report.csv").groupby("Category").Sales.sum()
totals.plot.bar(); plt.savefig("bars.png")
print(totals.to_dict())
"""
TREND = """
import pandas as pd, plotly.express as px
px.line(pd.read_csv("report.csv"), x="Date", y="Sales", color="Category").show()
"""
OFFICE = """
import pandas as pd, docx
pd.DataFrame({"a": [1, 2]}).to_excel("table.xlsx", index=False)
document = docx.Document(); document.add_paragraph("Hello"); document.save("letter.docx")
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Generator[RunningInterpreter]:
    with running_interpreter(tmp_path_factory.mktemp("interpreter")) as running:
        yield running


def settings(server: RunningInterpreter) -> dict[str, Any]:
    return {"pyinterpreter_mcp_url": server.url, "mcp_token": TOKEN}


def runs(code: str) -> Reply:
    return wants("execute_code", code=code)


def tool_result(received: Received) -> str:
    """The latest tool result in the request."""
    return received.messages[-1]["content"]


async def downloaded(reader: ChatReader, answer: Answer, title: str) -> bytes:
    [file] = [item for item in answer.attachments.values() if item["title"] == title]
    status, content = await reader.get(file["url"])
    assert status == 200
    return content


async def test_12_a_sine_is_computed_in_the_documented_layout(server: RunningInterpreter, tmp_path: Path) -> None:
    code = "import math\nmath.sin(5682936329203)"
    async with product(runs(code), says("0.87"), tmp_path=tmp_path, **settings(server)) as p:
        answer = await p.reader.ask("What is the sin of 5682936329203?")
    [stage] = answer.stages.values()
    head, output = f"## Execution Result\n\n```python\n{code}\n```\n\n", "**Output:**\n```\n0.8703154672931336\n```\n"
    assert tool_result(p.upstream.requests[1]) == head + output
    assert (stage.content.startswith(head), stage.content.endswith(output)) == (True, True)
    assert stage.status == "completed"
    assert stage.name.startswith("execute_code: import math [")


async def test_13_a_bar_chart_of_the_attached_file_is_attached(server: RunningInterpreter, tmp_path: Path) -> None:
    async with product(runs(BARS), says("Here."), tmp_path=tmp_path, **settings(server)) as p:
        p.reader.conversation_id = "thirteen"
        file = await p.reader.upload("report.csv", csv_bytes(SALES), "text/csv")
        answer = await p.reader.ask("Create a bar chart showing sales by category", file)
        assert (await downloaded(p.reader, answer, "bars.png")).startswith(b"\x89PNG")
        [picture] = answer.attachments.values()
        status, _ = await p.other.get(picture["url"])
        assert status in (403, 404)
    assert picture["type"] == "image/png"
    assert "/appdata/" in picture["url"]
    [stage] = answer.stages.values()
    assert [item["url"] for item in stage.attachments] == [picture["url"]]
    assert "{'A': 7350, 'B': 5200}" in stage.content
    assert f"**Generated Files:**\n- [bars.png]({picture['url']})" in stage.content


@pytest.mark.fault("tool: text, links or arguments that would make a stage too large for the chat")
async def test_the_stage_of_code_that_prints_much_stays_below_what_the_chat_shows(
    server: RunningInterpreter, tmp_path: Path
) -> None:
    code = "open('all.txt', 'w').write('all'); print('see [this](http://printed.example/page) ' * 2_000)"
    async with product(runs(code), says("Done."), tmp_path=tmp_path, **settings(server)) as p:
        answer = await p.reader.ask("Print the addresses")
    [stage] = answer.stages.values()
    assert len(tool_result(p.upstream.requests[1])) > 5_000
    assert (stage.status, [item["title"] for item in stage.attachments]) == ("completed", ["all.txt"])
    assert 30_000 < len(stage.content.encode()) <= 40_000


async def test_14_variables_survive_the_turn_and_the_agents_restart(server: RunningInterpreter, tmp_path: Path) -> None:
    turns = (runs("x = 42"), says("Done."))
    async with product(*turns, tmp_path=tmp_path, **settings(server)) as p:
        p.reader.conversation_id = "fourteen"
        await p.reader.ask("Run this code: x = 42")
        kept = p.reader.messages
    turns = (runs("x *= 2; print(x)"), says("84"))
    async with product(*turns, tmp_path=tmp_path, **settings(server)) as again:
        again.reader.messages, again.reader.conversation_id = kept, "fourteen"
        answer = await again.reader.ask("Now multiply x by 2 and print the result")
    assert "```\n84\n```" in answer.stages[0].content


@pytest.mark.system
async def test_14_a_client_without_conversation_ids_keeps_its_session_in_the_state(
    server: RunningInterpreter, tmp_path: Path
) -> None:
    turns = (runs("x = 42"), says("Done."), runs("print(x * 2)"), says("84"))
    async with product(*turns, tmp_path=tmp_path, **settings(server)) as p:
        p.reader.conversation_id = ""
        await p.reader.ask("Run this code: x = 42")
        answer = await p.reader.ask("Now multiply x by 2 and print the result")
    assert "```\n84\n```" in answer.stages[0].content


@pytest.mark.fault("state: a chat that was renamed")
async def test_14_a_renamed_chat_keeps_its_variables_and_files(server: RunningInterpreter, tmp_path: Path) -> None:
    turns = (runs("x = 42"), says("Done."), says("Fine."), runs("print(x * 2, len(open('report.csv').read()))"))
    async with product(*turns, says("84"), tmp_path=tmp_path, **settings(server)) as p:
        p.reader.conversation_id = "conversations/bucket/New chat"
        file = await p.reader.upload("report.csv", b"a,b\n", "text/csv")
        await p.reader.ask("Run this code: x = 42", file)
        p.reader.conversation_id = "conversations/bucket/Doubling x"
        await p.reader.ask("Thank you")
        answer = await p.reader.ask("Now multiply x by 2 and print the result")
    assert "```\n84 4\n```" in answer.stages[0].content


@pytest.mark.fault("interpreter: a session id of another principal")
async def test_14_another_person_with_the_same_conversation_id_finds_nothing(
    server: RunningInterpreter, tmp_path: Path
) -> None:
    turns = (runs("secret = 42"), says("Done."), runs("print('secret' in dir())"), says("No."))
    async with product(*turns, tmp_path=tmp_path, **settings(server)) as p:
        p.reader.conversation_id = p.other.conversation_id = "shared"
        await p.reader.ask("Run this code: secret = 42")
        answer = await p.other.ask("Is there a secret?")
    assert "```\nFalse\n```" in answer.stages[0].content


async def test_17_a_trend_is_an_interactive_chart(server: RunningInterpreter, tmp_path: Path) -> None:
    async with product(runs(TREND), says("Rising."), tmp_path=tmp_path, **settings(server)) as p:
        p.reader.conversation_id = "seventeen"
        file = await p.reader.upload("report.csv", csv_bytes(SALES), "text/csv")
        answer = await p.reader.ask("Analyze this sales data and show trends over time", file)
        [chart] = answer.attachments.values()
        content = json.loads(await downloaded(p.reader, answer, chart["title"]))
    assert chart["type"] == "application/vnd.plotly.v1+json"
    assert {trace["name"] for trace in content["data"]} == {"A", "B"}


@pytest.mark.system
async def test_office_files_made_by_code_can_be_downloaded(server: RunningInterpreter, tmp_path: Path) -> None:
    async with product(runs(OFFICE), says("Here."), tmp_path=tmp_path, **settings(server)) as p:
        p.reader.conversation_id = "office"
        answer = await p.reader.ask("Make a table and a letter")
        table = zipfile.ZipFile(io.BytesIO(await downloaded(p.reader, answer, "table.xlsx")))
        letter = zipfile.ZipFile(io.BytesIO(await downloaded(p.reader, answer, "letter.docx")))
    assert "xl/workbook.xml" in table.namelist()
    assert b"Hello" in letter.read("word/document.xml")
    assert {item["type"].rpartition(".")[2] for item in answer.attachments.values()} == {"sheet", "document"}


async def test_failing_code_is_a_failed_stage_and_a_message_the_model_can_act_on(
    server: RunningInterpreter, tmp_path: Path
) -> None:
    async with product(runs("1 / 0"), runs("print(1)"), says("1"), tmp_path=tmp_path, **settings(server)) as p:
        answer = await p.reader.ask("Divide")
    assert [stage.status for stage in answer.stages.values()] == ["failed", "completed"]
    assert "ZeroDivisionError: division by zero" in tool_result(p.upstream.requests[1])
    assert answer.stages[0].content.count("```python") == 1
