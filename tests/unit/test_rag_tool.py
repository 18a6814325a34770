"""The tool by itself: arguments, budget, title, and answers without a match."""

import re
from typing import Any

import pytest

from task.conversation.messages import Message
from task.documents.model import Block
from task.llm.scripted import Reply, ScriptedModel, says
from task.search.chunks import chunk_document
from task.search.readings import Readings
from task.search.shelf import DocumentCache, Opened
from task.tools.rag.rag_tool import RagOptions, RagTool, StageReport
from tests.support.choices import RecordingChoice
from tests.support.documents import DirectReaders, MemoryFiles, SlowFiles, manual
from tests.support.embedding import WordVectors
from tests.support.tool_calls import called

MANUAL, NOTES = "files/b/manual.txt", "files/b/no,tes.txt"
FILES = {MANUAL: manual().encode(), NOTES: b"The tray costs 40 euros."}


def tool(
    *replies: Reply,
    options: RagOptions | None = None,
    vectors: WordVectors | None = None,
    files: MemoryFiles | None = None,
) -> RagTool:
    model = ScriptedModel(*replies)
    return RagTool(
        "http://core", "writer", DocumentCache.create(),
        readings=Readings(files or MemoryFiles(FILES), DirectReaders()), embedder=vectors or WordVectors(),
        model=lambda name, caller: model, options=options,
    )  # fmt: skip


async def answered(rag: RagTool, choice: RecordingChoice | None = None, **arguments: Any) -> Message:
    return await called(rag, choice=choice, **({"request": "What does the tray cost?", "file_url": NOTES} | arguments))


@pytest.mark.parametrize(
    "urls", [f"{MANUAL} {NOTES}", f"{MANUAL}\n{NOTES}\n", f"{MANUAL},{NOTES}", f"{MANUAL}, {NOTES}"]
)
async def test_several_files_may_be_named_in_one_text(urls: str) -> None:
    choice = RecordingChoice()
    await answered(tool(says("40 euros.")), choice, file_url=urls)
    assert f"{MANUAL}\n{NOTES}" in choice.stages[0].content
    assert "**manual.txt**" in choice.stages[0].content


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"request": "  "}, "is empty"),
        ({"file_url": " "}, "is empty"),
        ({"file_url": " ".join(f"files/b/{n}.txt" for n in range(11))}, "at most 10"),
        ({"file_url": "files/b/missing.txt"}, "There is no files/b/missing.txt"),
        ({"request": 5}, "5 is not of type 'string'"),
    ],
)
async def test_invalid_arguments_are_explained(arguments: dict[str, Any], text: str) -> None:
    message = await answered(tool(), **arguments)
    assert message.failed
    assert text in message.text()


async def test_the_budget_decides_between_the_whole_document_and_a_search() -> None:
    for tokens, calls in ((10_000, 0), (100, 2)):
        vectors = WordVectors()
        rag = tool(says("NOT IN THE DOCUMENT"), options=RagOptions(whole_tokens=tokens), vectors=vectors)
        await answered(rag, file_url=MANUAL)
        assert vectors.calls == calls


async def test_an_invented_number_is_marked_for_the_model() -> None:
    choice = RecordingChoice()
    message = await answered(tool(says("The tray costs 45 euros [1].")), choice)
    assert "45 euros [1] (not supported by the document)" in message.text()
    assert "do not repeat it as a fact" in message.text()
    assert "marked (not supported by the document): 1 statement\n" in choice.stages[0].content


@pytest.mark.fault("search in documents: one file of several cannot be had")
async def test_a_file_that_cannot_be_read_ends_the_work_on_the_others() -> None:
    files = SlowFiles(FILES)
    message = await answered(tool(files=files), file_url=f"{MANUAL} files/b/missing.txt")
    assert "There is no files/b/missing.txt" in message.text()
    assert files.cancelled == len(files.started)


@pytest.mark.fault("search in documents: one file of several without text")
async def test_a_file_without_text_among_others_is_reported() -> None:
    empty = "files/b/scan.txt"
    rag = tool(says("The tray costs 40 euros [1]."), files=MemoryFiles({**FILES, empty: b""}))
    choice = RecordingChoice()
    message = await answered(rag, choice, file_url=f"{NOTES} {empty}")
    assert "40 euros [1]" in message.text()
    for text in (message.text(), choice.stages[0].content):
        assert "scan.txt: it is empty" in text


async def test_notes_on_a_document_end_before_the_next_one_begins() -> None:
    choice = RecordingChoice()
    files = MemoryFiles({MANUAL: manual().encode("utf-16"), "files/b/other.txt": manual().encode()})
    await answered(tool(says("Not in the document."), files=files), choice, file_url=f"{MANUAL} files/b/other.txt")
    indexing = choice.stages[0].content.partition("## Indexing document")[2]
    assert re.search(r"\n- .+\n\n\*\*other\.txt\*\*", indexing), indexing


def test_progress_is_one_line_that_grows() -> None:
    seconds, choice = 0, RecordingChoice()
    stage = choice.create_stage("search")
    stage.open()
    report = StageReport(stage, lambda: seconds)
    opened = [Opened(name, "text/plain", name, chunk_document(name, [Block(manual())])) for name in ("a", "b")]
    total = len(opened[0].document.chunks)
    report.indexing(opened)
    first, second = (report.progress(item) for item in opened)
    for done in [0] * 6 + [*range(total)]:
        seconds += 1
        first(done)
        second(0)
    report.hits([], [])
    steps = " … ".join(f"{percent} %" for percent in range(0, 50, 10))
    lines = choice.stages[0].content.splitlines()
    assert [line for line in lines if "%" in line or "model" in line] == [f"Preparing the model … {steps}"]
