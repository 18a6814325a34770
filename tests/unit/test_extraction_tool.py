"""The extraction tool and the extractor for programs: pages, stage, errors, and a cache that checks access."""

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path
from typing import Any, Protocol

import pytest

from task.core_client.files import FileInfo
from task.documents.extract import SUPPORTED
from task.search.readings import Readings
from task.tools.files.file_content_extraction_tool import FileContentExtractionTool
from task.tools.toolbox import Toolbox
from task.utils.dial_file_conent_extractor import DialFileContentExtractor
from tests.support.choices import CALLER, RecordingChoice
from tests.support.core import RunningCore, local_core
from tests.support.core_peers import config, dialling
from tests.support.documents import SALES, MemoryFiles, csv_bytes, manual
from tests.support.pdfs import blank, drawn, text_pdf
from tests.support.tool_calls import call_of, called

REPORT = "files/bucket/report.csv"
MANUAL = "files/bucket/my%20manual.txt"
PDF = "files/bucket/manual.pdf"


class ToolOver(Protocol):
    def __call__(self, files: MemoryFiles, **options: int) -> FileContentExtractionTool: ...


@pytest.fixture
async def tool_over() -> AsyncGenerator[ToolOver]:
    tools: list[FileContentExtractionTool] = []

    def made(files: MemoryFiles, **options: Any) -> FileContentExtractionTool:
        tools.append(FileContentExtractionTool("http://core", readings=Readings(files, **options)))
        return tools[-1]

    yield made
    for tool in tools:
        await tool.close()


@pytest.fixture
def files() -> MemoryFiles:
    return MemoryFiles({REPORT: csv_bytes(SALES), MANUAL: manual().encode()})


async def test_a_table_reaches_the_model_and_the_stage(tool_over: ToolOver, files: MemoryFiles) -> None:
    choice = RecordingChoice()
    answer = await called(tool_over(files), choice=choice, file_url=REPORT)
    assert answer.text().startswith("**Report**: 10 rows, 4 columns\n\n| Date | Category | Sales | Profit |\n| --- |")
    assert "| 2025-10-05 | A | 1700 | 425 |" in answer.text()
    assert "Total pages" not in answer.text()
    assert choice.stages[0].content == (
        f"## Request arguments:\n\n**File URL**: {REPORT}\n\n## Response:\n\n{answer.text()}\n"
    )


async def test_the_pages_together_are_the_document(tool_over: ToolOver, files: MemoryFiles) -> None:
    tool = tool_over(files)
    answers = [await called(tool, file_url=MANUAL, page=page) for page in (1, 2, 3)]
    pages = [answer.text().rpartition("\n\n") for answer in answers]
    assert "".join(text for text, _, _ in pages) == manual()
    assert [footer for *_, footer in pages] == [f"**Page #{page}. Total pages: 3**" for page in (1, 2, 3)]
    assert files.downloads == [MANUAL]


async def test_another_page_is_named_in_stage_and_title(tool_over: ToolOver, files: MemoryFiles) -> None:
    choice = RecordingChoice()
    await Toolbox([tool_over(files)]).call_all(
        [call_of("file_content_extraction_tool", {"file_url": MANUAL, "page": 2})], choice, CALLER
    )
    assert choice.stages[0].name.startswith("file_content_extraction_tool: my manual.txt, page 2 [")
    assert "**File URL**: files/bucket/my%20manual.txt\n\n**Page**: 2\n\n## Response:" in choice.stages[0].content


@pytest.mark.parametrize("page", [0, -1, 4, 99])
async def test_a_page_out_of_range_is_answered_with_the_range(
    tool_over: ToolOver, files: MemoryFiles, page: int
) -> None:
    choice = RecordingChoice()
    answer = await called(tool_over(files), choice=choice, file_url=MANUAL, page=page)
    assert answer.failed
    assert answer.text() == f"Error: The file has no page {page}: its pages are 1 to 3."
    assert f"**Page**: {page}" in choice.stages[0].content


@pytest.mark.fault("file: an executable")
async def test_a_program_is_not_supported_and_the_supported_types_are_listed(tool_over: ToolOver) -> None:
    tool = tool_over(MemoryFiles({"files/b/tool.exe": b"MZ\x90\0"}))
    answer = await called(tool, file_url="files/b/tool.exe")
    assert answer.failed
    assert answer.text() == f"Error: 'tool.exe' is not supported. Supported are {SUPPORTED}."


@pytest.mark.fault("table: an empty file")
@pytest.mark.parametrize("content", [b"", b" \r\n\t\n"])
async def test_an_empty_file_is_called_empty(tool_over: ToolOver, content: bytes) -> None:
    answer = await called(tool_over(MemoryFiles({REPORT: content})), file_url=REPORT)
    assert not answer.failed
    assert answer.text() == "The file is empty: it holds no text."


async def test_a_page_in_letters_of_many_bytes_keeps_the_stage_short_and_the_answer_whole(tool_over: ToolOver) -> None:
    choice = RecordingChoice()
    answer = await called(tool_over(MemoryFiles({MANUAL: ("漢字" * 5_000).encode()})), choice=choice, file_url=MANUAL)
    assert answer.text() == "漢字" * 5_000
    emoji = await called(tool_over(MemoryFiles({MANUAL: ("😀" * 10_000).encode()})), choice=choice, file_url=MANUAL)
    assert emoji.text() == "😀" * 10_000
    assert max(len(stage.content.encode()) for stage in choice.stages) < 40_000


async def test_a_cached_document_is_served_only_to_those_who_may_read_it(
    tool_over: ToolOver, files: MemoryFiles
) -> None:
    files.readers[REPORT] = {"ann", "bob"}
    tool = tool_over(files)
    assert not (await called(tool, api_key="ann", file_url=REPORT)).failed
    eve = await called(tool, api_key="eve", file_url=REPORT)
    assert eve.failed
    assert eve.text() == f"Error: No access to {REPORT}"
    assert not (await called(tool, api_key="bob", file_url=REPORT)).failed
    assert files.downloads == [REPORT, REPORT]  # bob proves by a download of his own that he may read it


async def test_a_pdf_without_text_reports_why(tool_over: ToolOver) -> None:
    answer = await called(tool_over(MemoryFiles({PDF: drawn(blank, blank)})), file_url=PDF)
    assert answer.text() == (
        "The file contains no readable text.\n\n**Report**: 2 pages; without text, blank: pages 1-2"
    )


@pytest.mark.fault("pdf: a PDF of 100 MB")
async def test_a_pdf_of_100_mb_is_refused_with_a_sentence(tool_over: ToolOver) -> None:
    answer = await called(tool_over(MemoryFiles({PDF: b"%PDF-1.7\n" + bytes(100 * 2**20)})), file_url=PDF)
    assert answer.failed
    assert answer.text() == "Error: The file is larger than 10,485,760 bytes"


@pytest.mark.fault("readers: a file deleted between listing and download")
async def test_a_file_deleted_after_it_was_listed_is_named(tool_over: ToolOver) -> None:
    class VanishingFiles(MemoryFiles):
        async def metadata(self, url: str, api_key: str) -> FileInfo:
            found = await super().metadata(url, api_key)
            del self.contents[url]
            return found

    answer = await called(tool_over(VanishingFiles({PDF: text_pdf(1)})), file_url=PDF)
    assert answer.failed
    assert answer.text() == f"Error: There is no {PDF}"


STRANGER = "key-two"  # of another project than the first key
Upload = Callable[[str, bytes, str], Awaitable[str]]


@pytest.fixture
async def core(tmp_path: Path) -> AsyncGenerator[RunningCore]:
    async with local_core(config(), tmp_path) as running:
        yield running


@pytest.fixture
async def upload(core: RunningCore) -> AsyncGenerator[Upload]:
    """Stores a file in the first key's bucket and gives its URL."""
    async with dialling(core, core.keys[0]) as client:

        async def uploaded(name: str, content: bytes, content_type: str) -> str:
            home = await client.my_files_home()
            return (await client.files.upload(f"{home}/{name}", (name, content, content_type))).url

        yield uploaded


async def test_the_text_of_a_file_is_extracted(core: RunningCore, upload: Upload) -> None:
    extractor = DialFileContentExtractor(core.url, core.keys[0])
    report = await upload("sales 2025.csv", csv_bytes(SALES, delimiter=";", encoding="utf-16"), "text/csv")
    assert "| 2025-10-05 | A | 1700 | 425 |" in await extractor.extract_text(report)
    assert await extractor.extract_text(f"{core.url}/v1/{report}") == await extractor.extract_text(report)
    assert await extractor.extract_text(await upload("m.txt", manual().encode(), "text/plain")) == manual()


@pytest.mark.fault("file: an attachment that cannot be read")
@pytest.mark.parametrize(
    "url",
    ["files/nobody/absent.txt", "files/absent.txt", "http://127.0.0.1:9/v1/files/b/x.txt", "../../etc/passwd"],
)
async def test_a_file_that_cannot_be_read_is_an_empty_text(
    core: RunningCore, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        assert await DialFileContentExtractor(core.url, core.keys[0]).extract_text(url) == ""
    assert "no text extracted" in caplog.text
    assert core.keys[0] not in caplog.text


async def test_a_foreign_key_an_unsupported_type_and_a_large_file_are_an_empty_text(
    core: RunningCore, upload: Upload, caplog: pytest.LogCaptureFixture
) -> None:
    secret = await upload("s.txt", b"the secret text", "text/plain")
    program = await upload("tool.exe", b"MZ\x90\0", "application/octet-stream")
    mine = DialFileContentExtractor(core.url, core.keys[0])
    with caplog.at_level(logging.WARNING):
        assert await DialFileContentExtractor(core.url, STRANGER).extract_text(secret) == ""
        assert await mine.extract_text(program) == ""
        assert await mine.extract_text(secret, max_size=5) == ""
    assert await mine.extract_text(secret, max_size=15) == "the secret text"
    assert "not supported" in caplog.text
    assert "larger than 5 bytes" in caplog.text
    assert "the secret text" not in caplog.text
