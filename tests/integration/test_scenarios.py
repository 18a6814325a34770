"""What a person asks of the agent in DIAL Chat; numbered like the platform's validation scenarios."""

from itertools import count
from pathlib import Path

import pytest

from task.llm.scripted import Reply, says, wants
from task.prompts import SYSTEM_PROMPT
from tests.support.document_turns import EXTRACT, attached_urls, reads_the_file
from tests.support.documents import SALES, csv_bytes, manual
from tests.support.product import product
from tests.support.upstream import Received, cut_arguments

pytestmark = pytest.mark.usefixtures("chat")


def top_row(received: Received) -> Reply:
    """The row with the largest number in the third column for the category A, computed from the table that came."""
    rows = [line.strip("| ").split(" | ") for line in received.messages[-1]["content"].splitlines() if line[:1] == "|"]
    best = max((row for row in rows if row[1] == "A"), key=lambda row: int(row[2]))
    return says(f"The top sale is {best[2]} on {best[0]}.")


async def test_01_the_marketplace_shows_the_agent(tmp_path: Path) -> None:
    async with product(tmp_path=tmp_path) as p:
        status, listing = await p.reader.get("../openai/applications")
    assert status == 200
    assert b'"general-purpose-agent"' in listing
    assert b'"General Purpose Agent"' in listing


async def test_02_and_03_the_model_knows_its_tools_and_their_documented_parameters(tmp_path: Path) -> None:
    async with product(says("I read files and calculate."), tmp_path=tmp_path) as p:
        await p.reader.ask("Hi, what can you do?")
    [request] = p.upstream.requests
    assert {EXTRACT, "calculator"} <= set(request.tools)
    assert request.messages[0] == {"role": "system", "content": SYSTEM_PROMPT}
    [tool] = [t["function"] for t in request.body["tools"] if t["function"]["name"] == EXTRACT]
    assert tool["parameters"]["required"] == ["file_url"]
    assert tool["parameters"]["properties"]["page"]["default"] == 1
    assert "10,000" in tool["parameters"]["properties"]["page"]["description"]


async def test_05_the_top_sale_of_a_csv_is_read_from_the_table(tmp_path: Path) -> None:
    async with product(reads_the_file, top_row, tmp_path=tmp_path) as p:
        file = await p.reader.upload("report.csv", csv_bytes(SALES), "text/csv")
        answer = await p.reader.ask("What is the top sale for category A?", file)
    [stage] = answer.stages.values()
    assert answer.content == "The top sale is 1700 on 2025-10-05."
    assert stage.content.startswith(f"## Request arguments:\n\n**File URL**: {file['url']}\n\n## Response:\n")
    assert f"| {' | '.join(SALES[0])} |" in stage.content
    assert stage.status == "completed"


async def test_06_the_first_page_says_how_many_there_are_and_other_pages_are_checked(tmp_path: Path) -> None:
    def page(number: int) -> object:
        return lambda received: wants(EXTRACT, file_url=attached_urls(received)[0], page=number)

    turns = [page(1), page(0), page(-1), page(99), page(3), says("There are three pages.")]
    async with product(*turns, tmp_path=tmp_path) as p:  # type: ignore[arg-type]
        file = await p.reader.upload("manual.txt", manual().encode(), "text/plain")
        await p.reader.ask("Extract the first page of this document", file)
    first, zero, minus, far, third = (request.messages[-1]["content"] for request in p.upstream.requests[1:])
    assert first.rstrip().endswith("**Page #1. Total pages: 3**")
    assert len(first) <= 10_000 + 40
    assert all("its pages are 1 to 3" in text for text in (zero, minus, far))
    assert "warm soapy water" in third


async def test_12_a_sine_is_exact(tmp_path: Path) -> None:
    ask = wants("calculator", expression="sin(5682936329203)")
    async with product(ask, says("0.870315..."), tmp_path=tmp_path) as p:
        answer = await p.reader.ask("What is the sin of 5682936329203?")
    assert "0.8703154672931336" in p.upstream.requests[1].messages[-1]["content"]
    assert "0.8703154672931336" in answer.stages[0].content


async def test_23_an_unsupported_file_is_explained_to_the_model(tmp_path: Path) -> None:
    async with product(reads_the_file, says("I cannot read .exe files."), tmp_path=tmp_path) as p:
        file = await p.reader.upload(
            "setup.exe", b"MZ\x90\x00" + bytes(200), "application/octet-stream", by_program=True
        )
        answer = await p.reader.ask("Extract this file", file)
    result = p.upstream.requests[1].messages[-1]["content"]
    assert "not supported" in result
    assert "CSV" in result
    assert "Traceback" not in result
    assert (answer.status, answer.stages[0].status) == (200, "failed")


async def test_24_calls_that_went_wrong_are_named_and_the_corrected_one_works(tmp_path: Path) -> None:
    def wrong_page(received: Received) -> Reply:
        return wants(EXTRACT, file_url=attached_urls(received)[0], page="two")

    turns = [wrong_page, cut_arguments(EXTRACT, '{"file_url":'), wants("extract_file"), reads_the_file, top_row]
    async with product(*turns, tmp_path=tmp_path) as p:
        file = await p.reader.upload("report.csv", csv_bytes(SALES), "text/csv")
        answer = await p.reader.ask("What is the top sale for category A?", file)
    results = [request.messages[-1]["content"] for request in p.upstream.requests[1:4]]
    assert "'two' is not of type 'integer'" in results[0]
    assert "cut off" in results[1]
    assert "There is no tool 'extract_file'" in results[2]
    assert answer.content == "The top sale is 1700 on 2025-10-05."


async def test_26_a_long_file_never_floods_the_conversation(tmp_path: Path) -> None:
    def every_page(received: Received) -> Reply:
        read = sum(message["role"] == "tool" for message in received.messages)
        return wants(EXTRACT, file_url=attached_urls(received)[0], page=read + 1) if read < 10 else says("Summary.")

    async with product(then=every_page, tmp_path=tmp_path) as p:
        file = await p.reader.upload("long.txt", b"Sample text line. \n" * 5000, "text/plain")
        answer = await p.reader.ask("Summarize this file", file)
    results = [m["content"] for m in p.upstream.requests[-1].messages if m["role"] == "tool"]
    assert answer.content == "Summary."
    assert len(results) == 10
    assert max(map(len, results)) <= 10_000 + 40


async def test_27_an_endless_search_ends_at_the_cap_with_an_explanation(tmp_path: Path) -> None:
    number = count()
    async with product(then=lambda _: wants("calculator", expression=f"{next(number)}*1"), tmp_path=tmp_path) as p:
        answer = await p.reader.ask("Keep generating random numbers until you find 123456789")
    assert (answer.status, len(p.upstream.requests)) == (200, 16)
    assert "limit of 15 steps" in answer.content


@pytest.mark.fault("file: a file of somebody else, named in the text")
async def test_a_file_named_only_in_the_text_is_refused_and_explained(tmp_path: Path) -> None:
    async with product(tmp_path=tmp_path) as p:
        other = await p.other.upload("secret.csv", csv_bytes(SALES), "text/csv")
    async with product(wants(EXTRACT, file_url=other["url"]), says("I may not."), tmp_path=tmp_path) as p:
        await p.reader.ask(f"Read {other['url']}")
    result = p.upstream.requests[1].messages[-1]["content"]
    assert "attach" in result
    assert "2025-10-05" not in result


@pytest.mark.fault("file: a foreign host in file_url")
@pytest.mark.fault(
    "file: a foreign host behind a user name in file_url", case="http://core:8080@evil.example/v1/files/b/x.csv"
)
@pytest.mark.parametrize(
    "url",
    [
        "http://evil.example/files/b/x.csv",
        "http://core:8080@evil.example/v1/files/b/x.csv",
        "file:///etc/passwd",
        "files/b/../../x.csv",
        "files/b/%2e%2e/x.csv",
        "../../etc/passwd",
        "files/x.csv",
    ],
)
async def test_foreign_hosts_and_path_tricks_are_refused_without_a_request(url: str, tmp_path: Path) -> None:
    async with product(wants(EXTRACT, file_url=url), says("No."), tmp_path=tmp_path) as p:
        answer = await p.reader.ask("Read it")
    assert answer.stages[0].status == "failed"
    assert p.upstream.requests[1].messages[-1]["content"].startswith("Error: ")
    assert "files/" in p.upstream.requests[1].messages[-1]["content"]
