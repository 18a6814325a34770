"""One conversation at the console: files, a chart, an approval, a denial, a persona, and its end by kill -9."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.console_screens import PAGE, documented
from tests.support.console_journey import CRITIC, SCRIPT, journey
from tests.support.note_product import notes

SCREENS = documented(PAGE.read_text("utf-8"))


@pytest.mark.fault("console: a console that is killed while it answers")
@pytest.mark.timeout(180)
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
