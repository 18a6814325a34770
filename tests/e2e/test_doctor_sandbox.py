"""`dial-agent doctor` about the sandbox: a row of its own, and every verdict on demand."""

import json
import re
from pathlib import Path

import pytest

from task.commands.checks import sandbox_check
from tests.support.up import dial_agent


async def test_the_row_names_the_tier_and_its_mechanisms() -> None:
    row = await sandbox_check()
    assert (row.name, row.state) == ("sandbox", "ok")
    assert "seccomp" in row.found


@pytest.mark.system
async def test_every_verdict_is_printed_and_the_exit_code_says_that_nothing_got_out(tmp_path: Path) -> None:
    shown = await dial_agent(tmp_path, "doctor", "--sandbox")
    assert shown.code == 0, shown.out
    assert re.search(r"\n\w+, .*: 0 of 1\d\d got out", shown.out)
    assert "unix_pair" in shown.out
    report = json.loads((await dial_agent(tmp_path, "doctor", "--sandbox", "--json")).out)
    assert {verdict["state"] for trial in report["trials"] for verdict in trial["verdicts"]} == {"held"}
