"""The console as a process: one conversation with everything, and bad conditions."""

from pathlib import Path

import pytest

from scripts.console_screens import PAGE, documented
from task.llm.scripted import says, wants
from tests.support.api_client import NOTES
from tests.support.console import console, openai
from tests.support.console_journey import CRITIC, SCRIPT, journey
from tests.support.note_product import notes
from tests.support.terminal import KEYS
from tests.support.upstream import hanging, openai_upstream

SCREENS = documented(PAGE.read_text("utf-8"))


@pytest.mark.fault("console: a console that is killed while it answers")
async def test_a_conversation_with_everything_looks_as_its_page_shows(short_path: Path) -> None:
    async with journey(short_path, SCREENS) as seen:
        assert seen.pictures == SCREENS
        tools = [call["tool"] for exchange in seen.exchanges for call in exchange.calls]
        assert tools == ["fs_read", "draw_chart", "write_note", "write_note"]
        assert [exchange.waits for exchange in seen.exchanges].count(["write_note"]) == 2
        assert notes(seen.folder) == ["top sale: 1700"]
        sent = [str(request.messages) for request in seen.upstream.requests]
        assert len(sent) == len(SCRIPT)  # none for commands and empty lines
        assert "1700" in sent[1]
        assert "it is sunny" in sent[7]
        assert [CRITIC in text for text in sent[7:]] == [False, True, True, False]  # a console chooses its persona
        assert "Write a report." in sent[-1]


SEQUENCES = (
    "\x1b]0;owned\x07", "\x1b]52;c;b3duZWQ=\x07", "\x1b[2J", "\x1b[?1049h", "\x1bc", "\x9b31m", "\x1bP+q544e\x1b\\",
    "\x1b_Gf=100;AAAA\x1b\\", "\x07", "\u202e",
)  # fmt: skip
HOSTILE = f"before {' '.join(SEQUENCES)} after"
TABLE = ("| city | people |\n", "|---|---|\n", "| Tokyo | 37 |\n", "| Del", "hi | 3")


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
