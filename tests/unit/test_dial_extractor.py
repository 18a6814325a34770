"""Reading files of a real local Core: the extractor for programs, and the tool as its users construct it."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path

import pytest

from task.tools.files.file_content_extraction_tool import FileContentExtractionTool
from task.utils.dial_file_conent_extractor import DialFileContentExtractor
from tests.support.core import RunningCore, local_core
from tests.support.core_peers import config, dialling
from tests.support.documents import SALES, csv_bytes, manual
from tests.support.tool_calls import called

STRANGER = "key-two"  # of another project than the first key
Upload = Callable[[str, bytes, str], Awaitable[str]]


@pytest.fixture
async def core(tmp_path: Path) -> AsyncGenerator[RunningCore]:
    async with local_core(config(), tmp_path) as running:
        yield running


@pytest.fixture
async def tool(core: RunningCore) -> AsyncGenerator[FileContentExtractionTool]:
    tool = FileContentExtractionTool(core.url)
    yield tool
    await tool.close()


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


async def test_the_tool_made_with_an_endpoint_alone_reads_with_the_callers_key(
    core: RunningCore, tool: FileContentExtractionTool, upload: Upload
) -> None:
    report = await upload("report.csv", csv_bytes(SALES), "text/csv")
    answer = await called(tool, api_key=core.keys[0], file_url=report)
    assert "| 2025-10-05 | A | 1700 | 425 |" in answer.text()
    again = await called(tool, api_key=core.keys[0], file_url=f"{core.url}/v1/{report}")
    assert again.text() == answer.text()
    foreign = await called(tool, api_key=STRANGER, file_url=report)
    assert foreign.failed
    assert "No access" in foreign.text()
