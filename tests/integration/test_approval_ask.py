"""`dial-agent ask` when the answer waits for an approval: a question at a terminal, else a sentence and a code."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from asyncio.subprocess import PIPE, Process
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.support.note_product import notes, noting
from tests.support.product import Product
from tests.support.up import ROOT, environment


async def asking(p: Product, home: Path, *options: str, **streams: Any) -> Process:
    environ = environment(home, DIAL_ENDPOINT=p.core.url, DIAL_API_KEY="key-one", PYTHONPATH=str(ROOT))
    arguments = (sys.executable, "-m", "task", "ask", "Note 1", *options)
    return await asyncio.create_subprocess_exec(*arguments, cwd=home, env=environ, **streams)


async def test_without_a_terminal_it_ends_with_a_sentence_and_an_exit_code(tmp_path: Path) -> None:
    async with noting(tmp_path) as p:
        process = await asking(p, tmp_path, stdin=PIPE, stdout=PIPE, stderr=PIPE)
        out, err = await asyncio.wait_for(process.communicate(b"yes\n"), 20)
        lines = await asking(p, tmp_path, "--json", stdout=PIPE, stderr=PIPE)
        told, _ = await asyncio.wait_for(lines.communicate(), 20)
    assert process.returncode == lines.returncode == 4
    assert b"May I do this?" in out
    assert b"waits for somebody's approval" in err
    assert {"event": "approval_asked", "calls": 1} in [json.loads(line) for line in told.splitlines()]
    assert notes(tmp_path) == []


async def test_at_a_terminal_the_person_is_asked_and_the_answer_goes_on(tmp_path: Path) -> None:
    ours, theirs = os.openpty()
    os.set_blocking(ours, False)
    async with noting(tmp_path) as p:
        process = await asking(p, tmp_path, stdin=theirs, stdout=theirs, stderr=theirs)
        os.close(theirs)
        shown = await until(ours, "[deny] ")
        os.write(ours, b"y\n")
        shown += await until(ours, "Result: 2")
        assert await asyncio.wait_for(process.wait(), 20) == 0
    os.close(ours)
    assert "Risk" in shown
    assert notes(tmp_path) == ["1"]


async def until(terminal: int, words: str) -> str:
    """What the terminal shows, up to these words."""
    loop, text, more = asyncio.get_running_loop(), "", asyncio.Event()
    loop.add_reader(terminal, more.set)
    try:
        async with asyncio.timeout(20):
            while words not in text:
                await more.wait()
                more.clear()
                with suppress(BlockingIOError):  # it was told twice of the same words
                    text += os.read(terminal, 65_536).decode(errors="replace")
    finally:
        loop.remove_reader(terminal)
    return text
