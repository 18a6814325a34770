"""Commands typed into a real terminal: completed with Tab, and entered while an answer is written."""

from __future__ import annotations

from pathlib import Path

import pytest

from task.llm.scripted import says
from tests.support.console import console, openai
from tests.support.terminal import KEYS
from tests.support.upstream import hanging, openai_upstream


@pytest.mark.fault("console commands: a command while a turn runs")
async def test_commands_run_while_an_answer_is_written_or_ask_to_wait(tmp_path: Path) -> None:
    answers = [hanging(says("It begins ", "and ends."), chunks=2)] * 2
    async with openai_upstream(*answers) as upstream, console(tmp_path, **openai(upstream.url)) as person:
        await person.window.send("Tell me a story" + KEYS["enter"])
        await person.window.wait_for("It begins")
        await person.type("/debug", until="Debug mode enabled.")
        await person.type("/clear", until="/clear waits until the answer is complete; Ctrl-C stops it.")
        await person.type("/hlep", until="Did you mean /help?")
        await person.window.send(KEYS["ctrl-c"])
        stopped = await person.exchange()
        await person.window.wait_for("Stopped.")
        await person.type("/clear", until="Conversation history cleared.")
        assert len(upstream.requests) == 1
        await person.window.send("Again" + KEYS["enter"])
        await person.window.wait_for("It begins", times=2)
        await person.window.send("/quit" + KEYS["enter"])
        assert await person.window.ended() == 0
    assert stopped.run.status == "cancelled"


async def test_a_command_and_a_file_are_completed_with_tab(tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    (work / "report.csv").write_text("a,b\n")
    (work / ".env").write_text("KEY=1")
    async with openai_upstream(says("Read.")) as upstream, console(tmp_path, **openai(upstream.url)) as person:
        await person.window.send("/perm" + KEYS["tab"])
        await person.window.wait_for("/permissions")
        await person.window.send("\x15Read @rep")  # Ctrl-U empties the line
        await person.window.wait_for("@report.csv")
        await person.window.send(KEYS["tab"] + " please" + KEYS["enter"])
        exchange = await person.exchange()
        question = upstream.requests[0].messages[-1]["content"]
    assert exchange.answer == "Read."
    assert question == "Read @report.csv please\n\nFiles in the working directory:\n- report.csv"
