"""The real model of this machine: its decisions, its speed, and scenarios through the whole product."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from pathlib import Path

import psutil
import pytest

from scripts.local_answers import MEASURED, asked, measured, person_with_the_model, questions_of, staged, summary
from scripts.local_model import PROMPTS, speed, verdict
from task.cli.model_choice import embedded_model
from task.conversation.messages import user
from task.llm.base import Delta, ModelOptions
from task.local.model.process import ModelProcess
from task.local.model.prompt import predicted_prefix
from task.local.model.weights import CODER
from task.settings import load_settings
from tests.support.chat_reader import ChatReader
from tests.support.documents import SALES, csv_bytes, manual
from tests.support.isolation import OUTSIDE
from tests.support.local_tools import DEFAULT_TOOLS, EXTRACT

pytestmark = [pytest.mark.local_model, pytest.mark.system, pytest.mark.timeout(3600)]
SETTINGS = load_settings(environ=OUTSIDE)
MODEL = embedded_model(SETTINGS)

STEPS = (  # questions about the sales below, and what the answer must contain
    ("What is 15% of the total sales?", "1,215"),
    ("What is the average of the sales, to two decimals?", "1,350"),
    ("How much more did category A sell than category B?", "1,500"),
    ("Add 19% tax to the highest sale. What is the result?", "2,023"),
    ("What is the total of category A divided by 3?", "1,600"),
    ("If every sale of category B grew by 10%, what would B total?", "3,630"),
    ("What is the square root of the lowest sale, to two decimals?", "30"),
    ("What share of the total, in percent, is the sale of 2025-10-02?", "11.1"),
    ("Convert the total sales to euros at 0.9 euros a dollar.", "7,290"),
    ("What is the difference between the highest and the lowest sale?", "800"),
)
ROWS = (("Date", "Category", "Sales"), ("2025-10-01", "A", "1500"), ("2025-10-02", "B", "900"),
        ("2025-10-03", "A", "1600"), ("2025-10-04", "B", "1200"), ("2025-10-05", "A", "1700"),
        ("2025-10-06", "B", "1200"))  # fmt: skip


async def test_of_forty_fresh_questions_thirty_six_are_decided_right() -> None:
    async with ModelProcess(MODEL, print) as process:
        verdicts = [await verdict(process.chat, prompt, DEFAULT_TOOLS) for prompt in PROMPTS]
    wrong = [(item.prompt.text, item.decided) for item in verdicts if not item.right]
    assert len(wrong) <= 4, wrong


async def test_the_first_word_comes_in_time_and_the_memory_is_as_announced() -> None:
    start = await speed(MODEL, DEFAULT_TOOLS)
    assert start.cold <= 20
    assert start.warm <= 3
    assert start.memory == pytest.approx(CODER.memory, rel=0.2)


@pytest.mark.parametrize(
    ("question", "seconds"), [("Tell me a long story.", 1), ("Summarise: " + "The fox met a hare. " * 800, 2)]
)
async def test_a_client_that_disconnects_stops_generation_at_once_and_reading_after_two_seconds(
    question: str, seconds: int
) -> None:
    """While it reads, llama.cpp checks for disconnected clients once a second, and finishes the started batch."""
    async with ModelProcess(MODEL, print) as process:
        chat = process.chat
        await listened(chat.stream([predicted_prefix()], (), ModelOptions(max_tokens=1)))
        works = psutil.Process(process.pid)
        listening = asyncio.create_task(listened(chat.stream([user(question)], (), ModelOptions())))
        await until_busy(works)
        listening.cancel()
        with suppress(asyncio.CancelledError):
            await listening
        await asyncio.sleep(seconds)  # the time it has
        busy = works.cpu_times().user
        await asyncio.sleep(1)  # in which nothing is computed
        assert works.cpu_times().user - busy < 0.1


async def listened(stream: AsyncGenerator[Delta]) -> None:
    async with aclosing(stream):
        async for _ in stream:
            pass


async def until_busy(process: psutil.Process) -> None:
    async with asyncio.timeout(30):
        start = process.cpu_times().user
        while process.cpu_times().user < start + 1:
            await asyncio.sleep(0.05)


async def test_scenarios_through_the_whole_product(tmp_path: Path) -> None:
    async with person_with_the_model(tmp_path) as person:
        while (await asked(person, "Hello!")).stages:  # of the first questions they say that it is being loaded
            pass
        await one_is_listed(person)
        await two_names_its_tools(person)
        await four_streams(person)
        await five_reads_the_table(person)
        await six_reads_the_first_page(person)
        await twelve_computes(person)


async def test_a_file_and_then_a_calculation_is_right_in_six_of_ten(tmp_path: Path) -> None:
    right: list[bool] = []
    async with person_with_the_model(tmp_path) as person:
        report = await person.upload("report.csv", csv_bytes(ROWS), "text/csv")
        for question, expected in STEPS:
            answer = await asked(person, question, report)
            right.append(expected.replace(",", "") in answer.content.replace(",", ""))
            print("right" if right[-1] else "WRONG", question, repr(answer.content), repr(staged(answer)))
    assert sum(right) >= 6


@pytest.mark.parametrize(("group", "needed"), [("question", 33), ("two_steps", 6)])
async def test_questions_that_were_never_tuned_for_are_answered_right(group: str, needed: int) -> None:
    outcomes = await measured(questions_of(MEASURED, group))
    assert sum(item.right for item in outcomes) >= needed, summary(outcomes)


async def one_is_listed(person: ChatReader) -> None:
    _, applications = await person.get("../openai/applications")
    _, models = await person.get("../openai/models")
    assert b'"general-purpose-agent"' in applications
    assert MODEL.name.encode() in models


async def two_names_its_tools(person: ChatReader) -> None:
    answer = await asked(person, "Hi, what can you do?")
    said = answer.content.lower()
    assert not answer.stages
    for words in (("file", "document"), ("search",), ("python", "code"), ("picture", "image", "logo")):
        assert any(word in said for word in words), said


async def four_streams(person: ChatReader) -> None:
    answer = await asked(person, "Tell me a story about a robot")
    assert not answer.stages
    assert len(answer.content_times) >= 10
    assert answer.content_times[-1] - answer.content_times[0] > 0.5


async def five_reads_the_table(person: ChatReader) -> None:
    report = await person.upload("report.csv", csv_bytes(SALES), "text/csv")
    answer = await asked(person, "What is the top sale for category A?", report)
    assert f"**File URL**: {report['url']}" in staged(answer)
    assert "| 2025-10-05 | A | 1700 |" in staged(answer)
    assert "1700" in answer.content.replace(",", "")


async def six_reads_the_first_page(person: ChatReader) -> None:
    document = await person.upload("manual.txt", manual().encode(), "text/plain")
    answer = await asked(person, "Extract the first page of this document", document)
    assert EXTRACT in staged(answer)
    assert "**Page #1. Total pages: 3**" in staged(answer)


async def twelve_computes(person: ChatReader) -> None:
    answer = await asked(person, "What is the sin of 5682936329203?")
    assert "0.8703154672931" in staged(answer)
    assert "0.87" in answer.content
