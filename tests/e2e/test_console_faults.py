"""The console in bad conditions, as a process: a terminal that changes or goes, hostile text, a model that dies."""

from __future__ import annotations

from pathlib import Path

import pytest

from task.llm.scripted import Pause, Reply, says, wants
from tests.support.api_client import NOTES
from tests.support.console import console, openai
from tests.support.terminal import KEYS
from tests.support.upstream import hanging, openai_upstream

pytestmark = pytest.mark.timeout(180)
LINES = [f"- line {number} of the answer\n" for number in range(60)]
SEQUENCES = (
    "\x1b]0;owned\x07", "\x1b]52;c;b3duZWQ=\x07", "\x1b[2J", "\x1b[?1049h", "\x1bc", "\x9b31m", "\x1bP+q544e\x1b\\",
    "\x1b_Gf=100;AAAA\x1b\\", "\x07", "\u202e",
)  # fmt: skip
HOSTILE = f"before {' '.join(SEQUENCES)} after"
TABLE = ("| city | people |\n", "|---|---|\n", "| Tokyo | 37 |\n", "| Del", "hi | 3")


@pytest.mark.fault("console terminal: a window that is resized while an answer streams")
@pytest.mark.system
async def test_the_window_changes_its_size_while_an_answer_streams(tmp_path: Path) -> None:
    slow = Reply(tuple(event for line in LINES for event in (*says(line).events[:1], Pause(0.01))))
    async with (
        openai_upstream(slow, says("Still here.")) as upstream,
        console(tmp_path, **openai(upstream.url)) as person,
    ):
        await person.window.send("Count." + KEYS["enter"])
        await person.window.wait_for("line 2 of")
        for columns, rows in ((40, 12), (120, 50), (60, 24)):
            await person.window.resize(columns, rows)
        assert (await person.exchange()).answer == "".join(LINES)
        await person.window.wait_for("line 59 of the answer")
        await person.say("Are you there?")
        await person.window.wait_for("Still here.")
        assert not person.window.shows("Traceback")


@pytest.mark.fault("console terminal: a pasted megabyte")
@pytest.mark.system
async def test_a_pasted_megabyte_is_one_message(tmp_path: Path) -> None:
    pasted = "\n".join(f"{number:07}" for number in range(131_072))
    async with openai_upstream(says("Read.")) as upstream, console(tmp_path, **openai(upstream.url)) as person:
        await person.window.paste(pasted)
        await person.say("")
        await person.window.wait_for("Read.")
        [message] = [item for item in upstream.requests[0].messages if item["role"] == "user"]
        assert message["content"] == pasted
        assert len(person.window.transcript) < 100_000  # shown folded


@pytest.mark.fault(
    "console terminal: control sequences, C1 and bidi characters in the text of models and tools, in titles, "
    "entities and file names"
)
async def test_control_sequences_of_models_and_tools_do_not_reach_the_terminal(tmp_path: Path) -> None:
    script = (wants("write_note", text=HOSTILE), says(HOSTILE))
    environ = {"AGENT_TOOL_PATHS": NOTES}
    async with openai_upstream(*script) as upstream, console(tmp_path, **environ, **openai(upstream.url)) as person:
        asked = await person.say("Note it.")
        assert asked.waits == ["write_note"]
        answered = await person.decide(("approve", ""))
        assert answered.answer == HOSTILE
        await person.window.wait_for("after", times=2)
        await person.type("/quit", until="Goodbye")
        assert await person.window.ended() == 0
        assert person.window.foreign_sequences() == []


@pytest.mark.fault("console: a terminal that is lost while the console answers")
@pytest.mark.system
async def test_a_lost_terminal_ends_the_program_and_keeps_the_session(tmp_path: Path) -> None:
    half = says("Half of it, ", "never the rest.")
    async with openai_upstream(hanging(half, chunks=2), says("The rest.")) as upstream:
        async with console(tmp_path, **openai(upstream.url)) as person:
            await person.window.send("Tell me." + KEYS["enter"])
            await person.window.wait_for("Half of it")
            person.window.hang_up()
            await person.window.ended()
            lost = await person.exchange()
            assert lost.answer == "Half of it, "
        async with console(
            tmp_path, "--resume", person.session_id, ready="Half of it", **openai(upstream.url)
        ) as again:
            again.seen |= person.seen
            assert (await again.say("Go on.")).answer == "The rest."
        assert "Half of it" in str(upstream.requests[1].messages)
