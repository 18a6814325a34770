"""Without DIAL Core long results are kept in a folder of this machine, from which the model reads nothing else."""

import stat
from pathlib import Path

import pytest

from task.conversation.messages import FunctionCall, Message, ToolCall
from task.errors import ToolError
from task.tools.declare import tool
from task.tools.models import Caller
from task.tools.offload import LocalTexts, Offloader, ReadFileLinesTool, SearchInFileTool
from task.tools.toolbox import Toolbox
from tests.support.choices import RecordingChoice
from tests.support.tool_calls import called


async def nobody() -> str:
    return ""


CALLER = Caller("", nobody)


@tool
def count() -> str:
    """Count."""
    return "\n".join(f"number {n}" for n in range(10_000))


async def test_a_long_result_is_read_and_searched_without_core(tmp_path: Path) -> None:
    texts = LocalTexts(tmp_path / "results")
    toolbox = Toolbox([count], offloader=Offloader(texts, 1_000))
    message = (await toolbox.call_all([ToolCall("c", FunctionCall("count", "{}"))], RecordingChoice(), CALLER))[0]
    assert isinstance(message, Message)
    url = next(word.rstrip(":") for word in message.text().split() if word.startswith("results/"))
    lines = await called(ReadFileLinesTool(texts), file_url=url, first_line=7_001, last_line=7_002)
    assert lines.text() == "7001: number 7000\n7002: number 7001\n[lines 7001-7002 of 10000]"
    assert "8000: number 7999" in (await called(SearchInFileTool(texts), file_url=url, text="7999")).text()


async def test_what_is_kept_is_the_users_own(tmp_path: Path) -> None:
    texts = LocalTexts(tmp_path / "results")
    url = await texts.upload("../x/\u202ey-result.txt", b"1", "text/plain", "")
    (kept,) = (tmp_path / "results").iterdir()
    assert url == f"results/{kept.name}"
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert stat.S_IMODE(kept.parent.stat().st_mode) == 0o700
    assert (await texts.download(url, "", 10)).content == b"1"
    with pytest.raises(ToolError, match="no stored text"):
        await texts.download(url, "", 0)


@pytest.mark.fault("workspace: the address of a stored result that leads elsewhere")
@pytest.mark.parametrize(
    "url",
    [
        *("results/../secret.txt", "../secret.txt", "/etc/hostname", "results/", ""),
        *("results/0123456789abcdef-missing", "results/0123456789abcdef-\0"),
    ],
)
async def test_no_other_file_is_read(tmp_path: Path, url: str) -> None:
    (tmp_path / "secret.txt").write_text("secret")
    (tmp_path / "results").mkdir()
    message = await called(ReadFileLinesTool(LocalTexts(tmp_path / "results")), file_url=url)
    assert message.failed
    assert "no stored text" in message.text()


@pytest.mark.fault("workspace: no place to keep a long result")
async def test_a_result_that_cannot_be_kept_is_cut(tmp_path: Path) -> None:
    (tmp_path / "results").write_text("in the way")
    text = await Offloader(LocalTexts(tmp_path / "results"), 100).shortened("count", "x" * 20_000, CALLER)
    assert "could not be stored (no place to keep it: " in text
