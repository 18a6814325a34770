"""The interpreter in every tier of the sandbox, and with as many conversations as it is meant for."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.support.interpreter import Talk, running_interpreter

BRIEFLY = {"dial-general-purpose-agent/seconds": 1}
CHART = "import pandas as pd\npd.Series([1, 2]).plot.bar().figure.savefig('chart.png'); 'drawn'"


@pytest.mark.system
@pytest.mark.parametrize("tier", ["bubblewrap", "landlock"])
async def test_a_session_lives_through_everything_in_each_tier(tier: str, tmp_path: Path) -> None:
    with running_interpreter(tmp_path, "--tier", tier) as server:
        async with server.client() as client:
            talk = Talk(client, tier)
            drawn = await talk.run(CHART)
            assert (drawn["result"], [file["name"] for file in drawn["files"]]) == ("'drawn'", ["chart.png"])
            assert drawn["sandbox_tier"] == tier
            assert (await talk.run("sum(range(10**12))", meta=BRIEFLY))["state_lost"]
            assert (await talk.run("import os; os.kill(os.getpid(), 9)"))["ending"] == "died"
            assert (await talk.run("import os; os.listdir('.')"))["result"] == "['chart.png']"
            denied = await talk.run(f"open('/proc/{server.process.pid}/environ').read()")
            assert denied["error"]["ename"] in ("FileNotFoundError", "PermissionError")


@pytest.mark.system
async def test_twenty_conversations_at_once_are_answered_and_kept_apart(tmp_path: Path) -> None:
    with running_interpreter(tmp_path) as server:
        async with server.client(seconds=300) as client:
            talks = [Talk(client, f"conversation {number}", f"person {number}") for number in range(20)]
            first = await asyncio.gather(*(talk.run(f"mine = {n}; {CHART}") for n, talk in enumerate(talks)))
            second = await asyncio.gather(*(talk.run("mine") for talk in talks))
    assert [result["result"] for result in first] == ["'drawn'"] * 20
    assert [result["result"] for result in second] == [str(number) for number in range(20)]
