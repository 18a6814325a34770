"""Reading pages in limited processes: bombs and slow pages end their reader only."""

import asyncio
import resource

import psutil
import pytest

from mcp_servers.duckduckgo.decoding import Unreadable
from mcp_servers.duckduckgo.reading import AT_ONCE, PageReader, ReadingLimits
from tests.support.pdfs import bomb_pdf, text_pdf

PDF, HTML = "application/pdf", "text/html"
SLOW = b"<html><body>" + b"<a href=x>y</a> " * 130_000


def readers() -> list[psutil.Process]:
    return [child for child in psutil.Process().children(recursive=True) if is_reader(child)]


def is_reader(process: psutil.Process) -> bool:
    try:
        # Not the sandbox around it, whose command lines name it too.
        return process.cmdline()[2:4] == ["-m", "mcp_servers.duckduckgo.reading"]
    except psutil.NoSuchProcess:
        return False


async def busy(number: int) -> list[psutil.Process]:
    """The readers, once there are so many of them and each is limited."""
    async with asyncio.timeout(20):
        while len(found := readers()) < number or any(limited(process) is None for process in found):
            await asyncio.sleep(0.01)
    return found


def limited(process: psutil.Process) -> int | None:
    try:
        bound = process.rlimit(psutil.RLIMIT_AS)[1]
    except psutil.NoSuchProcess:
        return None
    return bound if bound != psutil.RLIM_INFINITY else None


@pytest.mark.fault("web search: a PDF of a kilobyte that is gigabytes of text")
async def test_a_pdf_of_a_kilobyte_that_is_a_gigabyte_ends_its_reader_only() -> None:
    bomb, before = bomb_pdf(300_000), peak()
    reader = PageReader(ReadingLimits(memory_bytes=256 * 2**20))
    with pytest.raises(Unreadable, match="too much memory"):
        await reader.read(bomb, PDF, None)
    assert len(bomb) < 1024
    assert peak() - before < 64 * 2**20
    assert "page 1" in (await reader.read(text_pdf(1), PDF, None)).text.lower()


def peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


@pytest.mark.fault("web search: a page that takes minutes to read")
async def test_a_page_that_takes_too_long_is_given_up_and_its_reader_gone() -> None:
    with pytest.raises(Unreadable, match=r"longer than 0\.3 s"):
        await PageReader(ReadingLimits(seconds=0.3)).read(SLOW, HTML, None)
    assert readers() == []


@pytest.mark.fault("web search: many slow pages at once")
async def test_readers_are_few_limited_know_no_secret_and_end_when_nobody_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AGENT_MCP_TOKEN", "sesame")
    reader = PageReader()
    reading = [asyncio.create_task(reader.read(SLOW, HTML, None)) for _ in range(AT_ONCE + 2)]
    found = await busy(AT_ONCE)
    assert len(found) == AT_ONCE
    for process in found:
        assert limited(process) == ReadingLimits().memory_bytes
        assert "AGENT_MCP_TOKEN" not in process.environ()
    for task in reading:
        task.cancel()
    await asyncio.wait(reading)
    assert readers() == []


@pytest.mark.fault("web search: a damaged page, or one of endless text")
async def test_a_damaged_page_is_named_and_a_long_text_is_cut() -> None:
    reader = PageReader(ReadingLimits(characters=1000))
    with pytest.raises(Unreadable, match="PdfiumError"):
        await reader.read(b"%PDF-1.7 nothing", PDF, None)
    for body, kind in ((text_pdf(3), PDF), (b"word " * 500, "text/plain")):
        page = await reader.read(body, kind, None)
        assert (len(page.text), page.cut) == (1000, True)
