"""Commands, their arguments and files are completed; hidden files and secrets are not offered."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from task.console.slash.completion import LONGEST, MOST, MOST_READ, Completion
from task.console.terminal.rendering import last_word
from tests.support.command_console import command_console

NO_MODEL = "http://127.0.0.1:9/v1"


async def completed(completion: Completion, text: str) -> list[str]:
    return await asyncio.to_thread(completion.complete, text)


async def test_commands_and_their_arguments_are_completed(tmp_path: Path) -> None:
    expected = {
        "/re": ["/resume", "/reload"], "/Q": ["/quit"], "/permissions ": ["revoke"], "/help sy": ["system"],
        "/persona poet x": [], "re": [], "": [],
    }  # fmt: skip
    async with command_console(tmp_path, NO_MODEL) as console:
        assert {text: await completed(Completion(console), text) for text in expected} == expected


@pytest.mark.fault("console commands: secrets and hidden files to complete")
async def test_files_are_completed_after_an_at_sign_and_in_commands(tmp_path: Path) -> None:
    async with command_console(tmp_path, NO_MODEL) as console:
        for name in ("report.pdf", "my report.txt", ".hidden", "sub/inner.txt", ".env", "server.pem", "id_rsa", "a\nb"):
            (console.folder / name).parent.mkdir(exist_ok=True)
            (console.folder / name).write_text("x")
        completion = Completion(console)
        everything = await completed(completion, "Read @")
        hidden = await completed(completion, "Read @.")
        inner = await completed(completion, "Read @report.pdf and @sub/")
        spaced = await completed(completion, "Read @my\\ r")
        files = await completed(completion, "/files rep")
        saving = await completed(completion, "/save --")
        outside = await completed(completion, "Read @no/such/")
        await console.types("/files my report.txt")
        attached = await completed(completion, "/files detach ")
    assert everything == ["@sub/", "@my\\ report.txt", "@report.pdf"]
    assert hidden == ["@.hidden"]
    assert inner == ["@sub/inner.txt"]
    assert spaced == ["@my\\ report.txt"]
    assert files == ["report.pdf"]
    assert saving == ["--overwrite"]
    assert outside == []
    assert attached == ["all", "my\\ report.txt"]


@pytest.mark.fault("console commands: a huge folder, or a huge text before the cursor, to complete")
async def test_a_huge_folder_and_a_huge_text_are_completed_within_bounds(tmp_path: Path) -> None:
    async with command_console(tmp_path, NO_MODEL) as console:
        for number in range(MOST + 20):
            (console.folder / f"file{number:03}.txt").touch()
        completion = Completion(console)
        found = await completed(completion, "@file")
        pasted = await completed(completion, "x" * LONGEST + " @file")
    assert len(found) == MOST < MOST_READ
    assert pasted == []


def test_the_word_that_is_replaced_keeps_escaped_blanks() -> None:
    assert [last_word(text) for text in ("see @my\\ fi", "see ", "", "/he", "a\nb", "x\\")] == [
        "@my\\ fi", "", "", "/he", "b", "x\\",
    ]  # fmt: skip
